"""Many draws of the flow of Figure 4 at once, and what the entropy of their attention does: falls, turns, comes back.

The attention of a draw is softmax(v²/τ) over its components, however the weights themselves were driven, so that flows
with and without attention, normalised or not, can be compared by one number. Chapter `sparse_then_dense`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, softmax

from joma_lib._checks import finite_array
from joma_lib.dynamics import euler_flow, salient_flow

__all__ = ["bounce", "draw_targets", "eventual_rebound", "salient_runs"]

Array = NDArray[np.float64]

_COLUMNS, _TIMES = 600, np.geomspace(0.02, 40.0, 1000)
_BLOCK = 4_000_000  # floats held at once


def draw_targets(
    draws: int = 100, components: int = 10, *, low: float = 1.0, high: float = 4.0, seed: int = 0
) -> Array:
    """Return targets μ as in Figure 4, uniform in [low, high) and sorted in each draw: [draws, components].

    >>> draw_targets(2, 3, seed=1).round(2)
    array([[1.43, 2.54, 3.85],
           [1.94, 2.27, 3.85]])
    """
    if draws < 1 or components < 2:
        raise ValueError(f"draws {draws} and components {components} must be at least 1 and 2")
    if not low < high:
        raise ValueError(f"low {low} must lie below high {high}; exchange them")
    return np.sort(np.random.default_rng(seed).uniform(low, high, (draws, components)), axis=1)


def salient_runs(
    mu: ArrayLike,
    *,
    v0: float = 0.05,
    steps: int = 5000,
    step_size: float = 0.02,
    tau: float = 3.0,
    activation: str = "nonlinear",
    attention: str = "softmax",
    every: int = 10,
) -> xr.Dataset:
    """Iterate `dynamics.euler_flow` for all draws at once; the defaults are those of the published script of Figure 4.

    Parameters
    ----------
    mu : [draws, components]
    activation, attention : as in `dynamics.euler_flow`; each draw is one node
    every : keep each `every`-th step

    Returns
    -------
    Dataset of float64: v, attention = softmax(v²/τ) (draw, step, component); mu (draw, component); entropy (draw, step)
    in nats; coordinate `time` = step × step_size.

    Raises
    ------
    ValueError : shapes, unknown names, or a step so large that the iteration overflows.

    >>> dict(salient_runs(draw_targets(4, 10), steps=50).sizes)
    {'draw': 4, 'step': 6, 'component': 10}
    """
    target = finite_array("mu", mu, ndim=(2,))
    options = {"step_size": step_size, "tau": tau, "activation": activation, "attention": attention}
    flow = euler_flow(target[:, None], v0, steps, every=every, **options)  # type: ignore[arg-type]
    v = np.moveaxis(flow[:, :, 0], 0, 1)
    weights = softmax(v**2 / tau, axis=-1)
    step = np.arange(v.shape[1]) * every
    axes = ("draw", "step", "component")
    return xr.Dataset(
        {
            "v": (axes, v),
            "attention": (axes, weights),
            "entropy": (axes[:2], entr(weights).sum(axis=-1), {"units": "nats"}),
            "mu": (("draw", "component"), target),
        },
        coords={"step": step, "time": ("step", step * step_size)},
        attrs={**options, "v0": v0},
    )


def bounce(runs: xr.Dataset) -> xr.Dataset:
    """Return what the entropy of each draw did: start, lowest, step of the lowest, last, fall, rebound (nats).

    Parameters
    ----------
    runs : with entropy (draw, step), such as `salient_runs` returns

    >>> flat = xr.Dataset({"entropy": (("draw", "step"), [[2.0, 1.0, 1.5]])}, coords={"step": [0, 10, 20]})
    >>> float(bounce(flat).rebound[0]), int(bounce(flat).lowest_step[0])
    (0.5, 10)
    """
    if "entropy" not in runs or "step" not in runs.entropy.dims:
        raise ValueError("runs holds no entropy over step; give a Dataset of salient_runs")
    entropy = runs.entropy
    low, last, start = entropy.min("step"), entropy.isel(step=-1, drop=True), entropy.isel(step=0, drop=True)
    return xr.Dataset(
        {
            "start": start,
            "lowest": low,
            "lowest_step": entropy.idxmin("step"),
            "last": last,
            "fall": start - low,
            "rebound": last - low,
        }
    )


def eventual_rebound(mu: ArrayLike, tau: ArrayLike) -> Array:
    """Return by how much entropy comes back when nobody stops the clock: H at v = μ less its lowest value on the way.

    One common normaliser changes the clock and not the orbit (v(0) = 0 here), so this holds with and without softmax.
    In u = v √(2/τ) every component follows one family of curves, u' = (m − u) e^{u²/2}: they are computed once, by
    exact quadrature, for 600 values of m, and read off between them (to about 1e-3).

    Parameters
    ----------
    mu : [..., components], positive, with μ √(2/τ) between 0.02 and 30
    tau : a number or [n]

    Returns
    -------
    float64, [n, ...] or, for one τ, [...].

    >>> bool(eventual_rebound([1.0, 2.0, 4.0], 3.0) > 0.05)
    True
    """
    target = finite_array("mu", mu)
    divisors = finite_array("tau", np.atleast_1d(tau))
    if (divisors <= 0).any():
        raise ValueError(f"tau is {divisors.min():g}; it divides v² and must be a positive number")
    scaled = np.multiply.outer(np.sqrt(2 / divisors), target)
    if scaled.min() < 0.02 or scaled.max() > 30:
        raise ValueError(
            f"mu √(2/tau) spans {scaled.min():.3g} to {scaled.max():.3g}; keep it positive, between 0.02 and 30"
        )
    edge = np.log([scaled.min() * 0.999, scaled.max() * 1.001])
    table = salient_flow(np.exp(np.linspace(edge[0], edge[1], _COLUMNS)), 0.0, _TIMES)
    rows = scaled.reshape(-1, target.shape[-1])
    size = max(1, _BLOCK // (len(_TIMES) * target.shape[-1]))
    rebounds = np.concatenate(
        [_rebound(rows[at : at + size], table, edge) for at in range(0, len(rows), size)]
    )
    return rebounds.reshape((*np.shape(tau), *target.shape[:-1]))


def _rebound(rows: Array, table: Array, edge: Array) -> Array:
    """Return the rebound of draws [n, components] of m from the table [times, columns]."""
    place = (np.log(rows) - edge[0]) / (edge[1] - edge[0]) * (_COLUMNS - 1)
    below = np.floor(place).astype(int)
    part = place - below
    u = table[:, below] * (1 - part) + table[:, below + 1] * part
    entropy = entr(softmax(u * u / 2, axis=-1)).sum(axis=-1)
    last = entr(softmax(rows * rows / 2, axis=-1)).sum(axis=-1)
    return last - np.minimum(entropy.min(axis=0), last)
