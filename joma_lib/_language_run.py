"""One seed of the language model in training: its state, its measures, and the file it goes on from.

Chapter: wikitext.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from joma_lib import _lazy, runs
from joma_lib._language_config import LanguageConfig
from joma_lib._language_data import Corpus
from joma_lib._language_model import LanguageModel, linear_cross_entropy
from joma_lib.metrics import attention_entropy, stable_rank

torch = _lazy.require("torch", extra="torch")

__all__ = ["LanguageRun", "as_dataset", "checked_seed", "published_entropy", "read_state"]

_EVALUATION_COLUMNS = 10
_PUBLISHED_ROW = 3500  # the published curves show rows 3,500 to 3,534 of column 0 of the validation data
_SEQUENCES_AT_ONCE = 200
_DIMS = {
    "entropy_one_sequence": ("layer",),
    "entropy": ("layer",),
    "entropy_se": ("layer",),
    "entropy_by_query": ("layer", "query"),
    "stable_rank_lower": ("layer",),
    "stable_rank_upper": ("layer",),
    "stable_rank_query_key": ("layer", "head"),
    "train_loss": (),
    "validation_loss": (),
}


class LanguageRun:
    """One seed of one setting in the middle of its training.

    >>> from joma_lib.language import synthetic_corpus
    >>> corpus = synthetic_corpus(tokens=1000, words=40, topics=2)
    >>> config = LanguageConfig(width=8, hidden=8, steps=3, batch=4, context=5, record_every=1, validate_every=1)
    >>> LanguageRun(corpus, config, seed=1).advance(2).steps
    [0, 1, 2]
    """

    def __init__(self, corpus: Corpus, config: LanguageConfig, seed: int, *, device: Any = "cpu") -> None:
        self.config, self.seed, self.device = config, checked_seed(seed), torch.device(device)
        self.name, self.data_fingerprint = corpus.name, corpus.fingerprint
        self.train = _columns(corpus.train, config.batch, "train", config.context).to(self.device)
        self.valid = _columns(corpus.valid, _EVALUATION_COLUMNS, "valid", 1).to(self.device)
        self.model = LanguageModel(config, len(corpus.vocabulary), self.seed).to(self.device)
        self.draws = torch.Generator(self.device).manual_seed(self.seed)
        self.space: dict[str, Any] = {}
        self.step, self.seconds = 0, 0.0
        self.steps: list[int] = []
        self.measured: dict[str, Any] = {}
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.loss_count = 0
        self._restart()

    @property
    def epoch(self) -> int:
        """Steps of one pass through the training split; the last is shorter where the split does not divide."""
        return -(-(len(self.train) - 1) // self.config.context)

    def advance(self, steps: int) -> LanguageRun:
        """Train `steps` more steps, measuring at the recorded ones and at the last."""
        started = time.perf_counter()
        self._record()
        for _ in range(steps):
            if self.config.restart and self.step % self.epoch == 0:
                self._restart()
            self._update()
            self.step += 1
            self._record()
        self.seconds += time.perf_counter() - started
        return self

    def loss(self) -> float:
        """Return the cross-entropy of the whole validation set, in nats a token."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for tokens, targets in self._validation():
                hidden, _ = self.model(tokens)
                rows = hidden.reshape(-1, self.config.width)
                total += linear_cross_entropy(
                    rows, self.model.decoder, targets.reshape(-1), self.config.precision, self.space
                )
        return float(total) / (self.valid.numel() - _EVALUATION_COLUMNS)

    def entropies(self) -> Any:
        """Return the entropy [layer, sequences, queries] (nats; mean over heads) of the validation set's full sequences."""
        length = min(self.config.context, len(self.valid) - 1)
        found = []
        with torch.no_grad():
            for tokens, _ in self._validation():
                if len(tokens) == length:
                    _, maps = self.model(tokens)
                    found.append(torch.stack([attention_entropy(m).mean(1) for m in maps]))
        return torch.cat(found, 1).double().cpu()

    def dataset(self) -> xr.Dataset:
        """What was measured so far, with a dimension `seed` of length 1 (see `train_language`)."""
        return as_dataset(self._state())

    def save(self, path: Path) -> None:
        """Write all that is needed to go on, in one step."""
        part = path.with_name(f".{path.name}.part")
        torch.save(self._state() | self._weights(), part)
        os.replace(part, path)

    def load(self, path: Path) -> LanguageRun:
        """Go on from a file of `save`; ValueError for a damaged file, or one of another setting, seed or text."""
        state = read_state(path)
        for key in ("config", "seed", "data_fingerprint"):
            if state[key] != self._state()[key]:
                raise ValueError(f"{path.name} is of another {key}; give each setting a folder of its own")
        self.step, self.seconds, self.steps = state["step"], state["seconds"], state["steps"]
        self.measured = state["measured"]
        self.loss_sum, self.loss_count = state["loss_sum"].to(self.device), state["loss_count"]
        self.draws.set_state(state["draws"])
        self.model.load_state_dict(state["model"])
        self._restart()
        self.optimizer.load_state_dict(state["optimizer"])
        return self

    def _restart(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), self.config.lr, fused=True)

    def _update(self) -> None:
        row = self.step % self.epoch * self.config.context
        tokens = self.train[row : row + self.config.context][: len(self.train) - 1 - row]
        targets = self.train[row + 1 : row + 1 + len(tokens)].reshape(-1)
        self.optimizer.zero_grad()
        hidden, _ = self.model(tokens, self.draws)
        rows = hidden.reshape(-1, self.config.width)
        total = linear_cross_entropy(
            rows, self.model.decoder, targets, self.config.precision, self.space
        ) / len(targets)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.loss_sum += total.detach()
        self.loss_count += 1

    def _record(self) -> None:
        last = self.step == self.config.steps
        if (self.step % self.config.record_every and not last) or self.step in self.steps[-1:]:
            return
        nan = torch.tensor(torch.nan, dtype=torch.float64)
        loss = self.loss_sum.cpu() / self.loss_count if self.loss_count else nan
        if self.loss_count and not loss.isfinite():
            raise ValueError(
                f"the loss of seed {self.seed} is not finite at step {self.step}; lower lr = {self.config.lr}"
            )
        row = self._cheap() | {"train_loss": loss}
        self.loss_sum, self.loss_count = torch.zeros_like(self.loss_sum), 0
        layers, queries = self.config.layers, min(self.config.context, len(self.valid) - 1)
        if self.step % self.config.validate_every == 0 or last:
            entropies = self.entropies()
            means = entropies.mean(-1)
            row["entropy"] = means.mean(-1)
            row["entropy_se"] = means.std(-1) / means.shape[-1] ** 0.5
            row["entropy_by_query"] = entropies.mean(1)
            row["validation_loss"] = torch.tensor(self.loss(), dtype=torch.float64)
        else:
            row["entropy"] = row["entropy_se"] = nan.expand(layers)
            row["entropy_by_query"] = nan.expand(layers, queries)
            row["validation_loss"] = nan
        self.steps.append(self.step)
        for name, value in row.items():
            value = value.double()[None]
            self.measured[name] = torch.cat([self.measured[name], value]) if name in self.measured else value

    def _cheap(self) -> dict[str, Any]:
        """What is measured at every record: the published sequence, and stable ranks."""
        row = {"entropy_one_sequence": published_entropy(self.model, self.valid)}
        layers, d, heads = self.model.encoder.layers, self.config.width, self.config.heads
        row["stable_rank_lower"] = torch.stack([_rank(layer.linear1.weight) for layer in layers])
        row["stable_rank_upper"] = torch.stack([_rank(layer.linear2.weight) for layer in layers])
        pairs = [layer.self_attn.in_proj_weight[: 2 * d].view(2, heads, d // heads, d) for layer in layers]
        row["stable_rank_query_key"] = torch.stack([_rank(q.transpose(-1, -2) @ k) for q, k in pairs])
        return row

    def _validation(self) -> Iterator[tuple[Any, Any]]:
        """(tokens, targets) [length, sequences]: the full sequences, many at once, then what is left over."""
        context, rows = self.config.context, len(self.valid) - 1
        full = rows // context * context
        cut = [
            part.view(-1, context, _EVALUATION_COLUMNS)
            .transpose(0, 1)
            .flatten(1)
            .split(_SEQUENCES_AT_ONCE, 1)
            for part in (self.valid[:full], self.valid[1 : full + 1])
            if full
        ]
        yield from zip(*cut, strict=True)
        if rows > full:
            yield self.valid[full:-1], self.valid[full + 1 :]

    def _state(self) -> dict[str, Any]:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return {
            "config": json.dumps(asdict(self.config), sort_keys=True),
            "seed": self.seed,
            "data_name": self.name,
            "data_fingerprint": self.data_fingerprint,
            "device": name if name != "cpu" else f"cpu, {torch.get_num_threads()} thread(s)",
            "epoch": self.epoch,
            "step": self.step,
            "seconds": self.seconds,
            "steps": self.steps,
            "measured": self.measured,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
        }

    def _weights(self) -> dict[str, Any]:
        return {
            "draws": self.draws.get_state(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }


def published_entropy(model: LanguageModel, valid: Any) -> Any:
    """Return the entropy of the published curves [layer], nats, float32: one sequence, and −Σ p ln(p + 1e-8).

    `valid` is the validation split in ten columns; where it is too short for the published rows, its first rows are used.
    """
    context = model.config.context
    start = _PUBLISHED_ROW if len(valid) >= _PUBLISHED_ROW + context else 0
    with torch.no_grad():
        _, maps = model(valid[start : start + context, :1])
    found = []
    for weights in maps:
        p = weights.mean(1)[0]
        found.append(-(p * (p + 1e-8).log()).sum(-1).mean())
    return torch.stack(found).cpu()


def as_dataset(state: dict[str, Any]) -> xr.Dataset:
    """What a state has measured, with a dimension `seed` of length 1."""
    measured = {name: value.numpy() for name, value in state["measured"].items()}
    out = xr.Dataset({name: (("step", *_DIMS[name]), value) for name, value in measured.items()})
    out = out.assign_coords({name: np.arange(size) for name, size in out.sizes.items() if name != "step"})
    out = out.assign_coords(step=np.array(state["steps"], dtype=np.int64)).expand_dims(seed=[state["seed"]])
    for name in out.data_vars:
        if "rank" not in str(name):
            out[name].attrs["units"] = "nats"
    out.attrs = runs.provenance(
        json.loads(state["config"]),
        seeds=[state["seed"]],
        device=state["device"],
        wall_seconds=state["seconds"],
        data=state["data_fingerprint"],
    )
    out.attrs |= {"data_name": state["data_name"], "steps_an_epoch": state["epoch"]}
    return out


def _columns(ids: Any, columns: int, split: str, context: int) -> Any:
    """Return a split as [rows, columns], each column a stretch of consecutive text."""
    rows = len(ids) // columns
    if rows < context + 1:
        raise ValueError(
            f"the {split} split has {len(ids)} tokens, too few for {columns} columns of {context + 1}; give more text"
        )
    return (
        torch.as_tensor(np.asarray(ids[: rows * columns]), dtype=torch.long)
        .view(columns, rows)
        .T.contiguous()
    )


def _rank(matrix: Any) -> Any:
    return stable_rank(matrix.detach().double().cpu())


def read_state(path: Path) -> dict[str, Any]:
    """Return what `LanguageRun.save` wrote; ValueError for a damaged file."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(
            f"{path.name} is damaged or no state of a run; delete it to start that seed again"
        ) from error


def checked_seed(seed: Any) -> int:
    """Return an int that is not negative; anything else is an error."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}; give an int")
    if seed < 0:
        raise ValueError(f"seed is {seed}; give 0 or more")
    return int(seed)
