"""Are the two callables of a model of your own right? `joma_lib.pretrained.check_adapter`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import joma_lib._lazy
from joma_lib._forward import require_loaded, undisturbed, visible_pairs
from joma_lib._measure import AttentionMaps, Matrices, measure
from joma_lib._probe import prepare_probe
from joma_lib.metrics import attention_entropy

torch = joma_lib._lazy.require("torch", extra="torch")

__all__ = ["Check", "check_adapter"]


@dataclass(frozen=True)
class Check:
    """One thing that was checked, whether it is right, and what was seen."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.passed else 'WRONG'} {self.name}: {self.detail}"


def check_adapter(
    model: Any,
    input_ids: Any,
    *,
    attention_maps: AttentionMaps,
    matrices: Matrices | None = None,
    causal: bool = True,
) -> list[Check]:
    """Check the callables that let `measure` read a model of another kind.

    Parameters
    ----------
    model, attention_maps, matrices, causal : as for `measure`
    input_ids : sequences without padding, of at least two tokens; padding is put around them here

    Returns
    -------
    list of Check : shapes, rows, causality, padding; layers, layout and heads of the matrices; and that `measure` runs. Later
        checks are left out where an earlier one makes them meaningless.

    Raises
    ------
    ValueError, TypeError : ids that `measure` would refuse.

    Chapter `pretrained`.

    >>> maps = lambda model, ids, mask: [torch.ones(1, 1, 3, 3).tril()]
    >>> [check.name for check in check_adapter(torch.nn.Linear(1, 1), [[0, 1, 2]], attention_maps=maps) if not check.passed]
    ['rows sum to 1']
    """
    require_loaded(model)
    ids, mask = prepare_probe(model, input_ids, None)
    with undisturbed(model, eager=False):
        checks = list(_maps(model, ids, mask, attention_maps, causal))
        if matrices is not None and all(check.passed for check in checks):
            heads = [found.shape[1] for found in attention_maps(model, ids, mask)]
            checks += _layout(list(matrices(model)), heads)
    if all(check.passed for check in checks):

        def call() -> Any:
            return measure(
                model,
                ids,
                weights=matrices is not None,
                attention_maps=attention_maps,
                matrices=matrices,
                causal=causal,
            ).sizes

        checks.append(_tried("measure runs", call))
    return checks


def _tried(name: str, call: Callable[[], Any]) -> Check:
    try:
        return Check(name, True, str(dict(call())))
    except (ValueError, TypeError) as error:
        return Check(name, False, str(error))


def _maps(model: Any, ids: Any, mask: Any, attention_maps: AttentionMaps, causal: bool) -> Iterator[Check]:
    found = list(attention_maps(model, ids, mask))
    size, length = ids.shape
    right = [
        isinstance(m, torch.Tensor)
        and m.ndim == 4
        and m.shape[::2] == (size, length)
        and m.shape[3] == length
        for m in found
    ]
    shapes = [tuple(m.shape) if isinstance(m, torch.Tensor) else type(m).__name__ for m in found]
    passed = bool(found) and all(right)
    yield Check(
        "maps have the shape [batch, heads, queries, keys]",
        passed,
        f"{len(found)} layer(s), {shapes[:3]} for ids {tuple(ids.shape)}",
    )
    if not passed:
        return
    wrong = None
    for at, one in enumerate(found):
        try:
            attention_entropy(one)
        except ValueError as error:
            wrong = f"layer {at}: {error}"
            break
    yield Check("rows sum to 1", wrong is None, wrong or f"{len(found)} layer(s)")
    if wrong:
        return
    if causal:
        future = max(float((m * ~visible_pairs(mask)[:, None]).max()) for m in found)
        yield Check(
            "no query sees the future", future <= 1e-6, f"largest weight on a later position {future:.2g}"
        )
    for side, (left, after) in {"left": (2, 0), "right": (0, 2)}.items():
        filled, real = (torch.nn.functional.pad(one, (left, after)) for one in (ids, mask))
        part = slice(left, left + length)
        try:
            padded = list(attention_maps(model, filled, real))
            gap = max(float((a[..., part, part] - b).abs().max()) for a, b in zip(padded, found, strict=True))
        except Exception as error:  # the reader's own code: anything may come
            yield Check(f"padding on the {side} changes nothing", False, f"{type(error).__name__}: {error}")
            continue
        yield Check(
            f"padding on the {side} changes nothing", gap < 1e-4, f"largest change of a weight {gap:.2g}"
        )


def _layout(layers: list[Any], heads: list[int]) -> Iterator[Check]:
    yield Check(
        "as many mappings as maps", len(layers) == len(heads), f"{len(layers)} and {len(heads)} layer(s)"
    )
    for at, (layer, count) in enumerate(zip(layers, heads, strict=False)):
        inner = [name for name in ("lower", "gate", "up") if name in layer]
        if not inner or "upper" not in layer:
            yield Check(
                f"layer {at} names its matrices",
                False,
                f"{sorted(layer)}, not lower and upper (or gate, up, upper)",
            )
            return
        hidden, width = layer[inner[0]].shape
        agree = all(layer[name].shape == (hidden, width) for name in inner) and layer["upper"].shape == (
            width,
            hidden,
        )
        stream = layer["query"].shape[-1] if "query" in layer else min(hidden, width)
        shapes = {name: tuple(layer[name].shape) for name in (*inner, "upper")}
        passed = agree and width == stream
        hint = (
            ""
            if passed
            else f"; as [outputs, inputs], with model width {stream}, {inner[0]} is [hidden, {stream}] and upper [{stream}, hidden]"
        )
        yield Check(f"layer {at}: feed-forward matrices are [outputs, inputs]", passed, f"{shapes}{hint}")
        if "query" in layer and "key" in layer:
            shapes = {name: tuple(layer[name].shape) for name in ("query", "key")}
            passed = (
                shapes["query"] == shapes["key"] and len(shapes["query"]) == 3 and shapes["query"][0] == count
            )
            yield Check(
                f"layer {at}: query and key are [heads, head width, model width]",
                passed,
                f"{shapes} for {count} head(s)",
            )
