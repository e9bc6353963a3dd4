"""What recorded explorers share: a slider through frames, numbers cut to what can be seen, axes that fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from joma_lib.explore._base import State
from joma_lib.explore._drawing import Axis

__all__ = ["decades", "fitting", "frame_state", "short"]


def short(values: Any, digits: int = 4) -> Any:
    """Return numbers as nested lists, rounded to `digits` digits of the largest.

    >>> short(np.array([[12.3456, 0.001234]]))
    [[12.35, 0.0]]
    """
    array = np.asarray(values, dtype=float)
    size = np.abs(array[np.isfinite(array)]).max(initial=0.0)
    decimals = digits - 1 - math.floor(math.log10(size)) if size > 0 else 0
    return (array.round(decimals) + 0.0).tolist()


def fitting(label: str, values: Any, *, zero: bool = False) -> Axis:
    """Return an axis that holds all values, with round ticks."""
    array = np.asarray(values, dtype=float)
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    low = min(low, 0.0) if zero else low
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high if high > low else low + 1)
    return Axis(
        label, float(ticks[0]), float(ticks[-1]), tuple((float(t), f"{t:g}".replace("-", "−")) for t in ticks)
    )


def decades(label: str, values: Any) -> Axis:
    """Return a logarithmic axis from the decade below the smallest positive value to the one above the largest."""
    array = np.asarray(values, dtype=float)
    powers = np.log10(array[np.isfinite(array) & (array > 0)])
    low, high = math.floor(powers.min()), math.ceil(powers.max())
    high = max(high, low + 1)
    step = -(-(high - low) // 6)
    return Axis(label, low, high, tuple((p, f"{10.0**p:g}") for p in range(low, high + 1, step)), log=True)


def frame_state(frames: list[dict[str, Any]], frame: float, kind: float = 0) -> State:
    """Return the state of one frame, from what the page holds too (see frames.js)."""
    chosen, at = frames[int(kind)], int(frame)
    numbers = dict(chosen["words"]) | {name: values[at] for name, values in chosen["numbers"].items()}
    shapes = dict(chosen["fixed"])
    for name, (xs, ys) in chosen["moving"].items():  # xs: one list for all frames, or one a frame
        shapes[name] = (xs[at] if isinstance(xs[0], list) else xs, ys[at])
    return State(numbers, shapes, chosen["sentence"])
