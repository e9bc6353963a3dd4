"""Theorem 2 in closed form: linear activation and constant Δ (used by `joma_lib.dynamics`).

The common clock of all closed forms here: dv = Δ e^{v²/2} dt integrates to erf(v/√2) = erf(v_0/√2) + √(2/π) Δ t.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, erfc, erfcinv, erfinv

from joma_lib._checks import finite_array, increasing_times, start_for

__all__ = [
    "blow_up_time",
    "growth_limits",
    "linear_attention_growth",
    "linear_growth",
    "node_growth",
    "normalized_growth",
    "softmax_clock",
]

Array = NDArray[np.float64]


def _nonzero(delta: ArrayLike, ndim: tuple[int, ...] = (1,)) -> Array:
    array = finite_array("delta", delta, ndim=ndim)
    if not array.any():
        raise ValueError(
            "delta is zero in every component, so nothing grows; give at least one non-zero entry"
        )
    return array


def _before(times: Array, end: float) -> None:
    if times[-1] >= end:
        raise ValueError(
            f"times reach {times[-1]:.17g}, but the solution blows up at {end:.17g}; stay below it"
        )


def _inverse_erf(part: Array, rest: Array) -> Array:
    """Return erfinv(part), where rest = 1 − |part| is known without cancellation."""
    return np.where(rest < 0.5, np.sign(part) * erfcinv(rest), erfinv(part))


def blow_up_time(delta: ArrayLike) -> float:
    """Return t* = √(π/2)/max|Δ|, when the most salient weight diverges (Theorem 2; v(0) = 0).

    Parameters
    ----------
    delta : [M], Δ = E[g x]; or [K, M] for K nodes with common logits, where ‖Δ_·l‖ takes the place of |Δ_l|

    Raises
    ------
    ValueError : not finite, or zero in every component.

    >>> round(blow_up_time([0.5, -1.0]), 6)
    1.253314
    """
    array = _nonzero(delta, (1, 2))
    size = np.abs(array) if array.ndim == 1 else np.linalg.norm(array, axis=0)
    return float(np.sqrt(np.pi / 2) / size.max())


def linear_growth(delta: ArrayLike, times: ArrayLike) -> Array:
    """Return v(t) of v' = Δ∘exp(v²/2), v(0) = 0: v_l = √2 erfinv(√(2/π) Δ_l t) (Theorem 2).

    Parameters
    ----------
    delta : [M], Δ = E[g x]
    times : [T], not negative, increasing, before `blow_up_time(delta)`

    Returns
    -------
    [T, M], float64, to rounding (chapter `linear_attention_dynamics`).

    Raises
    ------
    ValueError : zero or non-finite delta; times not increasing, negative, or at or past the blow-up.

    >>> linear_growth([1.0, 0.5], [0.0, 0.5]).round(4)
    array([[0.    , 0.    ],
           [0.5229, 0.2527]])
    """
    array = _nonzero(delta)
    at = increasing_times(times)
    end = blow_up_time(array)
    _before(at, end)
    largest = np.abs(array).max()
    done, left = at[:, None] / end, (end - at[:, None]) / end
    ratio, gap = array / largest, (largest - np.abs(array)) / largest
    return np.sqrt(2) * _inverse_erf(ratio * done, gap + np.abs(ratio) * left)


def growth_limits(delta: ArrayLike) -> Array:
    """Return where each component stands at the blow-up: √2 erfinv(Δ_l/max|Δ|), ±inf for the winner.

    >>> growth_limits([1.0, 0.5]).round(4)
    array([   inf, 0.6745])
    """
    array = _nonzero(delta)
    largest = np.abs(array).max()
    return np.sqrt(2) * _inverse_erf(array / largest, (largest - np.abs(array)) / largest)


def node_growth(delta: ArrayLike, times: ArrayLike, *, v0: ArrayLike = 0.0) -> Array:
    """Return V(t) of v_kl' = Δ_kl exp(½ Σ_k v_kl²): K nodes with common logits, from any start.

    Along Δ_·l the weight u = Δ_·l·v_·l/‖Δ_·l‖ obeys u' = ‖Δ_·l‖ e^C e^{u²/2}; across it nothing moves, and
    C = ½‖v_⊥‖². For v0 = 0: v_kl = (Δ_kl/‖Δ_·l‖) √2 erfinv(√(2/π) ‖Δ_·l‖ t).

    Parameters
    ----------
    delta : [K, M]
    times : [T], before the blow-up of these data
    v0 : a number, or [K, M]

    Returns
    -------
    [T, K, M], float64.

    Raises
    ------
    ValueError : as `linear_growth`.

    >>> node_growth([[3.0], [4.0]], [0.1])[0, :, 0].round(4)
    array([0.3137, 0.4183])
    """
    array = _nonzero(delta, (2,))
    at = increasing_times(times)
    start = start_for(array, v0)
    size = np.linalg.norm(array, axis=0)
    unit = np.divide(array, size, out=np.zeros_like(array), where=size > 0)
    along = (unit * start).sum(axis=0)
    across = start - unit * along
    speed = np.sqrt(2 / np.pi) * size * np.exp(0.5 * (across**2).sum(axis=0))
    room, behind = erfc(along / np.sqrt(2)), erfc(-along / np.sqrt(2))
    moving = speed > 0
    _before(at, float((room[moving] / speed[moving]).min()))
    done = speed * at[:, None]
    part = erf(along / np.sqrt(2)) + done
    grown = np.sqrt(2) * _inverse_erf(part, np.where(part > 0, room - done, behind + done))
    u = np.where(moving, grown, along)
    return across + unit * u[:, None, :]


def linear_attention_growth(
    delta: ArrayLike, times: ArrayLike, *, z0: ArrayLike, v0: ArrayLike = 0.0
) -> tuple[Array, Array]:
    """Return (v, z) of linear attention b = x∘z: v_kl' = Δ_kl z_l, z_l' = Σ_k Δ_kl v_kl, a linear flow.

    With D = ‖Δ_·l‖ and u = Δ_·l·v_·l(0)/D: z = z_0 cosh Dt + u sinh Dt, and v moves along Δ_·l alone; z² − Σ_k v² is constant.

    Parameters
    ----------
    delta : [K, M]
    times : [T], not negative, increasing
    z0 : a number, or [M]; v0 : a number, or [K, M]

    Returns
    -------
    v [T, K, M] and z [T, M], float64.

    >>> v, z = linear_attention_growth([[1.0]], [1.0], z0=0.1)
    >>> (z**2 - v[:, 0] ** 2).round(12)
    array([[0.01]])
    """
    array = _nonzero(delta, (2,))
    at = increasing_times(times)[:, None]
    start, logits = start_for(array, v0), start_for(array[0], z0)
    size = np.linalg.norm(array, axis=0)
    unit = np.divide(array, size, out=np.zeros_like(array), where=size > 0)
    along = (unit * start).sum(axis=0)
    cosh, sinh = np.cosh(size * at), np.sinh(size * at)
    moved = along * (cosh - 1) + logits * sinh
    return start + unit * moved[:, None, :], logits * cosh + along * sinh


def softmax_clock(delta: ArrayLike, times: ArrayLike) -> Array:
    """Return the time that normalised attention needs for what exp attention (A = 1) does by `times`.

    One common normaliser Σ_l e^{v_l²/2} leaves the orbit and slows the clock: the new time is Σ_l v_l/Δ_l, since
    e^{v_l²/2} dt = dv_l/Δ_l (a component with Δ_l = 0 adds t).

    >>> softmax_clock([1.0, 0.0], [0.5]).round(4)
    array([1.0229])
    """
    array = _nonzero(delta)
    v = linear_growth(array, times)
    at = increasing_times(times)[:, None]
    return np.where(array != 0, v / np.where(array != 0, array, 1.0), at).sum(axis=1)


def normalized_growth(delta: ArrayLike, times: ArrayLike) -> Array:
    """Return v(t) of v' = Δ∘exp(v²/2)/Σ_l exp(v_l²/2), v(0) = 0: Theorem 2 under softmax, which never blows up.

    The winner's weight is found by bisection from Σ_l v_l/Δ_l = t, the others follow from it (`softmax_clock`).

    Parameters
    ----------
    delta : [M]
    times : [T], not negative, increasing; no upper limit

    Returns
    -------
    [T, M], float64, to about 1e-13 relative.

    >>> normalized_growth([1.0, 0.5], [0.0, 4.0]).round(4)
    array([[0.    , 0.    ],
           [2.6632, 0.6684]])
    """
    array = _nonzero(delta)
    at = increasing_times(times)
    largest = np.abs(array).max()
    ratio = np.abs(array) / largest
    gap = (largest - np.abs(array)) / largest

    def others(winner: Array) -> Array:
        far = erfc(winner / np.sqrt(2))[:, None]
        v = np.sqrt(2) * _inverse_erf(ratio * (1 - far), gap + ratio * far)
        return np.where(gap == 0, winner[:, None], v)

    def clock(winner: Array) -> Array:
        zero = np.sqrt(np.pi / 2) * erf(winner / np.sqrt(2))[:, None] / largest
        return np.where(ratio > 0, others(winner) / np.where(ratio > 0, ratio * largest, 1.0), zero).sum(
            axis=1
        )

    low, high = np.zeros_like(at), largest * at
    for _ in range(60):
        middle = 0.5 * (low + high)
        late = clock(middle) > at
        low, high = np.where(late, low, middle), np.where(late, middle, high)
    return np.sign(array) * others(0.5 * (low + high))
