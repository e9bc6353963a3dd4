"""Theorem 4 by exact quadrature: v' = (μ − v) exp(v²/2), component by component (used by `joma_lib.dynamics`).

With s = ln[(μ − v_0)/(μ − v)] the flow is s' = exp(v²/2), v = μ − (μ − v_0) e^{−s}, hence t = ∫_0^s exp(−v(σ)²/2) dσ:
a bounded, smooth, positive integrand. Gauss–Legendre panels give t(s) to rounding, Newton inverts it: no step size, no stiffness.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma_lib._checks import finite_array, increasing_times, start_for

__all__ = ["log_distance", "salient_flow", "salient_offset", "salient_time"]

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LAST = 45.0  # from s = 45 on, μ − v is below a millionth of float64's resolution of μ − v_0
_UNDERFLOW = 38.7  # exp(−v²/2) is zero in float64 beyond


def _arc(v: Array | float) -> Array:
    """Return a coordinate in which exp(−v²/2) changes by a bounded factor a unit, and v by at most one."""
    clipped = np.clip(v, -_UNDERFLOW, _UNDERFLOW)
    return np.where(np.abs(clipped) < 1, clipped, np.sign(clipped) * (clipped**2 + 1) / 2)


def _from_arc(arc: Array) -> Array:
    return np.where(np.abs(arc) < 1, arc, np.sign(arc) * np.sqrt(np.maximum(2 * np.abs(arc) - 1, 0)))


def _panels(mu: float, v0: float) -> Array:
    """Return increasing s from 0 to `_LAST` between which exp(−v(s)²/2) is tame."""
    ends = _arc(np.array([v0, mu]))
    count = int(np.ceil(abs(ends[1] - ends[0]))) + 1
    v = _from_arc(np.linspace(ends[0], ends[1], count + 1)[1:-1])
    fraction = (v - v0) / (mu - v0)
    inside = -np.log1p(-fraction[(fraction > 0) & (fraction < 1)])
    return np.unique(np.concatenate([np.arange(0, _LAST + 0.25, 0.5), inside[inside < _LAST]]))


def _integral(mu: float, v0: float, low: Array, high: Array) -> Array:
    """Return ∫ exp(−v(σ)²/2) dσ from low to high (arrays of one shape), a panel at most each."""
    half = 0.5 * (high - low)
    v = v0 - (mu - v0) * np.expm1(-(low + half)[..., None] - half[..., None] * _NODES)
    return half * (np.exp(-0.5 * v * v) @ _WEIGHTS)


def _progress(mu: float, v0: float, times: Array) -> Array:
    """Return s at the times; s grows without bound, also where v equals μ in float64."""
    edges = _panels(mu, v0)
    reached = np.concatenate([[0.0], np.cumsum(_integral(mu, v0, edges[:-1], edges[1:]))])
    panel = np.clip(np.searchsorted(reached, times, side="right") - 1, 0, len(edges) - 2)
    low, high = edges[panel], edges[panel + 1]
    span = reached[panel + 1] - reached[panel]
    part = np.divide(times - reached[panel], span, out=np.ones_like(times), where=span > 0)
    s = low + (high - low) * np.clip(part, 0, 1)
    for _ in range(12):
        v = v0 - (mu - v0) * np.expm1(-s)
        rate = np.exp(np.minimum(0.5 * v * v, 700.0))
        step = (times - reached[panel] - _integral(mu, v0, low, s)) * rate
        s = np.clip(s + step, low, high)
    late = times > reached[-1]
    with np.errstate(over="ignore"):
        tail = edges[-1] + (times - reached[-1]) * np.exp(0.5 * mu * mu)
    return np.where(times == 0, 0.0, np.where(late, tail, s))


def _columns(mu: ArrayLike, v0: ArrayLike) -> tuple[Array, Array]:
    target = finite_array("mu", mu, ndim=(1,))
    return target, start_for(target, v0)


def _all_progress(target: Array, start: Array, at: Array) -> Array:
    columns = [
        _progress(mu, v, at) if mu != v else np.full(len(at), np.inf)
        for mu, v in zip(target, start, strict=True)
    ]
    return np.stack(columns, axis=-1)


def salient_flow(mu: ArrayLike, v0: ArrayLike, times: ArrayLike) -> Array:
    """Solve v' = (μ − v)∘exp(v²/2) from v(0) = v0, by exact quadrature and inversion.

    For exp(v²/τ) rescale: v = √(τ/2) u with u' = (√(2/τ) μ − u) exp(u²/2).

    Parameters
    ----------
    mu : [M]
    v0 : a number, or [M]
    times : [T], not negative, increasing

    Returns
    -------
    [T, M], float64, to 1e-8 and usually 1e-13, however stiff (chapter `sparse_then_dense`).

    Raises
    ------
    ValueError : shapes, non-finite input, times negative or not increasing.

    >>> salient_flow([1.0, 2.0], [0.05, 0.05], [0.0, 0.5, 5.0]).round(4)
    array([[0.05  , 0.05  ],
           [0.4352, 0.9162],
           [0.9994, 2.    ]])
    """
    target, start = _columns(mu, v0)
    s = _all_progress(target, start, increasing_times(times))
    return np.where(s < 0.5, start - (target - start) * np.expm1(-s), target - (target - start) * np.exp(-s))


def log_distance(mu: ArrayLike, v0: ArrayLike, times: ArrayLike) -> Array:
    """Return ln(1/|δ|), δ = 1 − v/μ, along `salient_flow`: exact where δ itself has long underflowed.

    >>> log_distance([2.0], [0.0], [0.0, 100.0]).round(1)
    array([[  0. ],
           [732.6]])
    """
    target, start = _columns(mu, v0)
    _distances(target, start)
    return _all_progress(target, start, increasing_times(times)) - np.log(np.abs(1 - start / target))


def _distances(target: Array, start: Array) -> None:
    if (target == 0).any():
        raise ValueError("mu has a zero component, for which δ = 1 − v/μ is not defined; leave it out")
    if (start == target).any():
        raise ValueError("v0 equals mu in some component, which never moves; leave it out")


def _remaining(target: Array, start: Array, remaining: ArrayLike) -> Array:
    left = start_for(target, remaining)
    whole = np.abs(1 - start / target)
    if (left <= 0).any() or (left > whole).any():
        raise ValueError(f"remaining must lie above 0 and at most at its start value (here {whole.round(6)})")
    return np.log(whole / left)


def _elapsed(mu: float, v0: float, s: float, less: float) -> float:
    """Return ∫_0^s [exp(−v(σ)²/2) − less] dσ."""
    edges = _panels(mu, v0)
    edges = np.append(edges[edges < min(s, _LAST)], min(s, _LAST))
    half = 0.5 * np.diff(edges)
    v = v0 - (mu - v0) * np.expm1(-(edges[:-1] + half)[:, None] - half[:, None] * _NODES)
    value = float(half @ ((np.exp(-0.5 * v * v) - less) @ _WEIGHTS))
    return value + max(s - _LAST, 0.0) * (np.exp(-0.5 * mu * mu) - less)


def salient_time(mu: ArrayLike, v0: ArrayLike, remaining: ArrayLike) -> Array:
    """Return the time at which |δ_j| = |1 − v_j/μ_j| has fallen to `remaining` (Theorem 4's exact quadrature).

    Parameters
    ----------
    mu : [M], without zeros
    v0 : a number, or [M]
    remaining : a number, or [M]: 0 < remaining ≤ |1 − v0/μ|

    Returns
    -------
    [M], float64: e^{−μ²/2} ln(δ_0/δ) + D(δ), see `salient_offset`.

    >>> salient_time([1.0], [0.0], [0.5]).round(4)
    array([0.6604])
    """
    target, start = _columns(mu, v0)
    _distances(target, start)
    s = _remaining(target, start, remaining)
    return np.array([_elapsed(*row, 0.0) for row in zip(target, start, s, strict=True)])


def salient_offset(mu: ArrayLike, v0: ArrayLike, remaining: ArrayLike | None = None) -> Array:
    """Return D = ∫_δ^{δ_0} [e^{−μ²(1−x)²/2} − e^{−μ²/2}] dx/x, by how much a component starts late (Theorem 4).

    Without `remaining` its limit for δ → 0; then ln(1/δ) = ln(1/δ_0) + e^{μ²/2} (t − D), up to a term of order δ.

    >>> salient_offset([1.0], [0.0]).round(4)
    array([0.5342])
    """
    target, start = _columns(mu, v0)
    _distances(target, start)
    s = np.full(len(target), _LAST) if remaining is None else _remaining(target, start, remaining)
    return np.array(
        [_elapsed(m, v, end, float(np.exp(-0.5 * m * m))) for m, v, end in zip(target, start, s, strict=True)]
    )
