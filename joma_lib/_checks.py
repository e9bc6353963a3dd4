"""Checks of arrays and times that the reduced flows share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["finite_array", "increasing_times", "start_for"]

Array = NDArray[np.float64]


def finite_array(name: str, value: ArrayLike, *, ndim: tuple[int, ...] | None = None) -> Array:
    """Return `value` as a float64 array; a ValueError names an empty, non-finite or wrongly shaped one.

    >>> finite_array("mu", [1, 2], ndim=(1,))
    array([1., 2.])
    """
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {value!r:.80}; it must be an array of real numbers") from error
    if ndim is not None and array.ndim not in ndim:
        wanted = " or ".join(str(n) for n in ndim)
        raise ValueError(f"{name} has shape {array.shape}; it must have {wanted} dimension(s)")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; it must hold at least one component")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)][0]}; every entry must be finite")
    return array


def increasing_times(times: ArrayLike) -> Array:
    """Return `times` [T] as float64, checked: not negative and strictly increasing.

    >>> increasing_times([0, 1])
    array([0., 1.])
    """
    array = finite_array("times", times, ndim=(1,))
    if array[0] < 0:
        raise ValueError(f"times start at {array[0]:g}; the flow starts at 0, so ask for times from there on")
    steps = np.diff(array)
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        raise ValueError(
            f"times must increase, but {array[at]:g} is followed by {array[at + 1]:g}; sort them"
        )
    return array


def start_for(target: Array, v0: ArrayLike) -> Array:
    """Return v0 as an array of target's shape: a number is repeated, any other shape is an error.

    >>> start_for(np.ones(2), 0.5)
    array([0.5, 0.5])
    """
    start = np.array(v0, dtype=float)
    if start.ndim and start.shape != target.shape:
        raise ValueError(
            f"v0 has shape {start.shape}, but mu or delta has {target.shape}; give both the same shape"
        )
    return finite_array("v0", np.broadcast_to(start, target.shape))
