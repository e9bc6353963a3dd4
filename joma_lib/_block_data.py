"""What a block is trained on and where: the data of Figure 2, checks of the reader's own (used by `joma_lib.block`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from joma_lib._block_step import Data
from joma_lib._lazy import require

torch = require("torch", extra="torch")

__all__ = [
    "Samples",
    "as_data",
    "draw_embedding",
    "draw_smooth_classes",
    "find_device",
    "given_samples",
    "number",
    "recorded_steps",
    "whole",
]


@dataclass(frozen=True)
class Samples:
    """Data of all seeds: x [S, N, M], targets as they came and as rows [S, N, C], queries [N]."""

    x: np.ndarray
    targets: np.ndarray
    rows: np.ndarray
    queries: np.ndarray


def whole(name: str, value: Any, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; give a whole number")
    if value < at_least:
        raise ValueError(f"{name} is {value}; give a whole number of at least {at_least}")
    return int(value)


def number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; give a number")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; give a finite number")
    return float(value)


def draw_smooth_classes(config: Any, generator: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    classes = config.outputs or config.nodes
    distinct = config.tokens // 2
    centre = distinct * np.arange(classes)[:, None] / classes
    signal = np.exp(-((np.arange(distinct) - centre) ** 2) / (3 * max(distinct, 1)))
    shape = (config.queries, classes, config.tokens - distinct)
    common = 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
    x = np.concatenate((np.broadcast_to(signal, (config.queries, *signal.shape)), common), axis=-1)
    x = (x / x.sum(-1, keepdims=True)).reshape(-1, config.tokens)
    return x, np.tile(np.arange(classes), config.queries), np.repeat(np.arange(config.queries), classes)


def given_samples(
    config: Any, seeds: int, generators: list[Any], x: Any, targets: Any, queries: Any
) -> Samples:
    """Check the reader's data, or draw those of Figure 2 for each generator."""
    if x is None and targets is None and queries is None:
        if config.loss != "cross-entropy":
            raise ValueError(f"loss {config.loss!r} has no data set of its own; give x and targets")
        drawn = [draw_smooth_classes(config, generator) for generator in generators]
        x, targets, queries = (
            np.stack([one[0] for one in drawn]),
            np.stack([one[1] for one in drawn]),
            drawn[0][2],
        )
    elif x is None or targets is None:
        raise ValueError("x and targets come together; give both, or none of the data for those of Figure 2")
    x, targets = _array(x), _array(targets)
    if x.ndim == 2:
        x, targets = np.stack([x] * seeds), np.stack([targets] * seeds)
    if x.ndim != 3 or x.shape[0] != seeds or x.shape[2] != config.tokens or not x.shape[1]:
        raise ValueError(
            f"x has shape {x.shape}; give [samples, {config.tokens} tokens] or [{seeds} seeds, samples, {config.tokens}]"
        )
    if targets.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"targets have shape {targets.shape} for x {x.shape}; give one target a sample (and seed)"
        )
    if not np.isfinite(x).all() or (x < 0).any():
        raise ValueError(f"x has the entry {_worst(x)}; token frequencies are finite and not negative")
    sums = x.sum(-1)
    if (np.abs(sums - 1) > 1e-4).any():
        raise ValueError(
            f"a row of x sums to {sums.ravel()[np.abs(sums - 1).argmax()]:.6g}; divide each row by its sum"
        )
    if queries is None:
        queries = np.zeros(x.shape[1], dtype=int)
        if config.queries > 1:
            raise ValueError(
                f"queries are missing; give the query (0 to {config.queries - 1}) of each sample"
            )
    queries = _array(queries)
    if queries.shape != x.shape[1:2] or queries.dtype.kind not in "iu":
        raise ValueError(
            f"queries have shape {queries.shape} and dtype {queries.dtype}; give one integer a sample"
        )
    if queries.min() < 0 or queries.max() >= config.queries:
        raise ValueError(
            f"queries run from {queries.min()} to {queries.max()}; use 0 to {config.queries - 1}"
        )
    return Samples(x.astype(np.float64), targets, _rows(config, targets), queries)


def _rows(config: Any, targets: np.ndarray) -> np.ndarray:
    outputs = config.outputs or config.nodes
    if targets.ndim == 2 and config.loss == "cross-entropy":
        if targets.dtype.kind not in "iu":
            raise ValueError(
                f"targets have dtype {targets.dtype}; give classes as integers, or probabilities [N, {outputs}]"
            )
        if targets.min() < 0 or targets.max() >= outputs:
            raise ValueError(
                f"targets run from {targets.min()} to {targets.max()}; there are classes 0 to {outputs - 1}"
            )
        return np.eye(outputs)[targets]
    rows = targets[..., None] if targets.ndim == 2 else targets
    if rows.ndim != 3 or rows.shape[-1] != outputs:
        raise ValueError(
            f"targets have shape {targets.shape[1:]} a seed; give [samples, {outputs}] for {config.loss}"
        )
    rows = rows.astype(np.float64)
    if not np.isfinite(rows).all():
        raise ValueError(f"targets have the entry {_worst(rows)}; give finite numbers")
    if config.loss == "cross-entropy" and ((rows < 0).any() or (np.abs(rows.sum(-1) - 1) > 1e-4).any()):
        raise ValueError(
            "targets are no class probabilities: a row has a negative entry or does not sum to one; normalise it"
        )
    return rows


def _worst(array: np.ndarray) -> float:
    flat = array.ravel()
    bad = ~np.isfinite(flat)
    return float(flat[bad][0] if bad.any() else flat.min())


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def draw_embedding(config: Any, generator: Any) -> Any:
    """Return [d, M + Q]: the embeddings of the tokens and of the queries, as columns."""
    drawn = torch.randn(
        config.width, config.tokens + config.queries, generator=generator, dtype=torch.float64
    ) / math.sqrt(config.width)
    if config.embedding == "gaussian":
        return drawn
    q, r = torch.linalg.qr(drawn)
    return q * torch.sign(torch.diagonal(r))


def as_data(samples: Samples, config: Any, device: Any, dtype: Any) -> Data:
    code = np.broadcast_to(np.eye(config.queries)[samples.queries], (*samples.x.shape[:2], config.queries))

    def move(array: np.ndarray) -> Any:
        return torch.tensor(array, dtype=torch.float64).to(device, dtype).contiguous()

    return Data(x=move(samples.x), code=move(code), targets=move(samples.rows))


def recorded_steps(record: int | Iterable[int] | None, steps: int) -> list[int]:
    if record is None:
        chosen = np.linspace(0, steps, min(steps, 100) + 1).round().astype(int).tolist()
    elif isinstance(record, Iterable):
        chosen = [whole("record", step, at_least=0) for step in record]
    else:
        chosen = list(range(0, steps, whole("record", record, at_least=1)))
    if max(chosen, default=0) > steps:
        raise ValueError(f"record asks for step {max(chosen)}; the run has {steps} steps")
    return sorted({0, *chosen, steps})


def find_device(name: str) -> Any:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {name!r} is unknown; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not there; use auto or cpu")
    return device
