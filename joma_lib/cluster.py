"""Theorem 3 in exact form: how one hidden unit moves when its inputs come in isotropic Gaussian clusters.

Cluster c has inputs x = x̄_c + s ξ with ξ standard normal, so that the pre-activation u = wᵀx + β is N(r_c, σ²), with
r_c = wᵀx̄_c + β and σ = s‖w‖. Stein's lemma turns the gradient flow w' = Σ_c a_c E[φ'(u) x | c] into

    w' = Σ_c a_c (P_c x̄_c + s² Q_c w),    P = E[φ'(u)],    Q = E[φ''(u)] = ∂P/∂r.

P is φ' blurred by a Gaussian of variance σ², so it solves the heat equation; that is how the expressions here are proved
(linear, ReLU, erf(u/√2), GELU). tanh and softplus have no closed form and are integrated. Chapter `nonlinear_dynamics`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import sympy
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from joma_lib._checks import finite_array

__all__ = [
    "ACTIVATIONS",
    "SYMBOLS",
    "averaged_curvature",
    "averaged_slope",
    "averages",
    "axis_field",
    "cluster_field",
    "fixed_points",
    "fixed_rates",
    "sampled_field",
    "slope",
]

Array = NDArray[np.float64]

SYMBOLS: dict[str, sympy.Symbol] = {
    "u": sympy.Symbol("u", real=True),
    "r": sympy.Symbol("r", real=True),
    "sigma": sympy.Symbol("sigma", positive=True),
}
"""u: pre-activation; r and sigma: its mean and its standard deviation over a cluster."""

_U, _R, _SIGMA = SYMBOLS["u"], SYMBOLS["r"], SYMBOLS["sigma"]


def _pdf(q: sympy.Expr) -> sympy.Expr:
    return sympy.exp(-(q**2) / 2) / sympy.sqrt(2 * sympy.pi)


def _cdf(q: sympy.Expr) -> sympy.Expr:
    return sympy.erfc(-q / sympy.sqrt(2)) / 2


_SLOPES: dict[str, sympy.Expr] = {
    "linear": sympy.Integer(1),
    "relu": sympy.Heaviside(_U),
    "erf": 2 * _pdf(_U),
    "gelu": _cdf(_U) + _U * _pdf(_U),
    "tanh": 1 - sympy.tanh(_U) ** 2,
    "softplus": (1 + sympy.tanh(_U / 2)) / 2,
}
_Q = _R / sympy.sqrt(1 + _SIGMA**2)
_AVERAGED: dict[str, sympy.Expr] = {
    "linear": sympy.Integer(1),
    "relu": _cdf(_R / _SIGMA),
    "erf": 2 * _pdf(_Q) / sympy.sqrt(1 + _SIGMA**2),
    "gelu": _cdf(_Q) + _pdf(_Q) * _Q / (1 + _SIGMA**2),
}

ACTIVATIONS = tuple(_SLOPES)
"""linear, relu, erf (erf(u/√2)) and gelu in closed form; tanh and softplus by quadrature."""

_GRID = np.linspace(-9.0, 9.0, 1801)  # the trapezoidal rule converges exponentially for analytic integrands
_WEIGHTS = np.exp(-(_GRID**2) / 2) / np.exp(-(_GRID**2) / 2).sum()
_WIDEST = (
    40.0  # beyond it the step σ/100 is too coarse for tanh, whose poles lie π/2 off the axis: 2e-11 at 40
)


def _known(activation: str, allowed: tuple[str, ...] = ACTIVATIONS) -> None:
    if activation not in allowed:
        raise ValueError(f"activation {activation!r} is unknown here; use one of {', '.join(allowed)}")


def slope(activation: str) -> sympy.Expr:
    """Return φ'(u), an expression in `SYMBOLS["u"]`.

    >>> slope("relu")
    Heaviside(u)
    """
    _known(activation)
    return _SLOPES[activation]


def averaged_slope(activation: str) -> sympy.Expr:
    """Return P = E[φ'(u)] for u ~ N(r, σ²), an expression in `SYMBOLS`; closed forms only.

    >>> averaged_slope("linear"), averaged_slope("relu").subs(SYMBOLS["r"], 0)
    (1, 1/2)
    """
    _known(activation, tuple(_AVERAGED))
    return _AVERAGED[activation]


def averaged_curvature(activation: str) -> sympy.Expr:
    """Return Q = E[φ''(u)] = ∂P/∂r for u ~ N(r, σ²), an expression in `SYMBOLS`; closed forms only.

    >>> averaged_curvature("linear")
    0
    """
    return sympy.diff(averaged_slope(activation), _R)


@cache
def _moment(activation: str, order: int) -> Callable[[Any, Any], Array]:
    """Return the `order`-th derivative of P with respect to r, as a function of arrays r and σ."""
    if activation in _AVERAGED:
        closed = sympy.lambdify(
            (_R, _SIGMA), sympy.diff(_AVERAGED[activation], _R, order), ["scipy", "numpy"]
        )
        return lambda r, sigma: closed(r, sigma) + np.zeros(np.broadcast(r, sigma).shape)
    integrand = sympy.lambdify(_U, sympy.diff(_SLOPES[activation], _U, order), ["scipy", "numpy"])

    def by_quadrature(r: Any, sigma: Any) -> Array:
        u = np.asarray(r)[..., None] + np.asarray(sigma)[..., None] * _GRID
        return integrand(u) @ _WEIGHTS

    return by_quadrature


def averages(activation: str, r: ArrayLike, sigma: ArrayLike) -> tuple[Array, Array]:
    """Return P = E[φ'(u)] and Q = E[φ''(u)] for u ~ N(r, σ²), float64 arrays of the common shape of r and σ > 0.

    Raises ValueError for an unknown activation or a σ that is not positive. Theorem 3, chapter `nonlinear_dynamics`.

    >>> P, Q = averages("relu", 0.0, 2.0)
    >>> float(P), round(float(Q), 4)
    (0.5, 0.1995)
    """
    _known(activation)
    mean, deviation = np.asarray(r, dtype=float), np.asarray(sigma, dtype=float)
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
        raise ValueError(f"sigma is {sigma!r:.60} and r {r!r:.60}; give finite numbers with sigma > 0")
    if activation not in _AVERAGED and (deviation > _WIDEST).any():
        raise ValueError(
            f"sigma reaches {deviation.max():g}; {activation} is integrated, so keep sigma = s‖w‖ below {_WIDEST:g}"
        )
    return _moment(activation, 0)(mean, deviation), _moment(activation, 1)(mean, deviation)


def _clusters(w: ArrayLike, means: ArrayLike, strengths: ArrayLike) -> tuple[Array, Array, Array]:
    at = finite_array("w", w)
    centres = np.atleast_2d(finite_array("means", means, ndim=(1, 2)))
    weights = np.atleast_1d(np.asarray(strengths, dtype=float))
    if centres.shape[-1] != at.shape[-1] or weights.shape != centres.shape[:1]:
        raise ValueError(
            f"w has {at.shape[-1]} tokens, means {centres.shape}, strengths {weights.shape}; give [C, M] means and [C] strengths"
        )
    if not np.isfinite(weights).all():
        raise ValueError(f"strengths are {strengths!r:.60}; every a_c must be finite")
    return at, centres, weights


def _positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; give a positive finite number")
    return float(value)


def cluster_field(
    activation: str,
    w: ArrayLike,
    means: ArrayLike,
    strengths: ArrayLike,
    spread: float,
    *,
    bias: float = 0.0,
) -> Array:
    """Return w' = Σ_c a_c (P_c x̄_c + s² Q_c w), the exact form of Theorem 3 for isotropic Gaussian clusters.

    Parameters
    ----------
    w : [..., M], not zero (σ = s‖w‖ must be positive)
    means, strengths : [C, M] and [C], the centres x̄_c and a_c = E[g | c] P(c)
    spread : s > 0, standard deviation of each input within a cluster
    bias : β, added to the pre-activation and held fixed

    Returns
    -------
    [..., M], float64. Raises ValueError for shapes that do not fit, w = 0 or s ≤ 0.

    >>> cluster_field("linear", [3.0, 1.0], [[1.0, 2.0]], [0.5], 0.3).tolist()
    [0.5, 1.0]
    """
    at, centres, weights = _clusters(w, means, strengths)
    s = _positive("spread", spread)
    r = at @ centres.T + bias  # [..., C]
    sigma = s * np.linalg.norm(at, axis=-1, keepdims=True)
    P, Q = averages(activation, r, sigma)
    return (weights * P) @ centres + s**2 * (weights * Q).sum(-1, keepdims=True) * at


def sampled_field(
    activation: str,
    w: ArrayLike,
    means: ArrayLike,
    strengths: ArrayLike,
    spread: float,
    *,
    bias: float = 0.0,
    samples: int = 100_000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Return a Monte Carlo estimate of Σ_c a_c E[φ'(wᵀx + β) x | c] and its standard error, [M] each, without Stein's lemma.

    `samples` a cluster, drawn from `numpy.random.default_rng(seed)`; other arguments as for `cluster_field`, w of one
    dimension.

    >>> mean, error = sampled_field("linear", [3.0, 1.0], [[1.0, 2.0]], [0.5], 0.3, samples=1000)
    >>> bool((abs(mean - [0.5, 1.0]) < 5 * error).all())
    True
    """
    _known(activation)
    at, centres, weights = _clusters(w, means, strengths)
    if at.ndim != 1 or samples < 2:
        raise ValueError(
            f"w has shape {at.shape} and samples is {samples}; give one w and two samples or more"
        )
    derivative = sympy.lambdify(_U, _SLOPES[activation], ["scipy", "numpy"])
    generator = np.random.default_rng(seed)
    mean, variance = np.zeros_like(at), np.zeros_like(at)
    for centre, a in zip(centres, weights, strict=True):
        x = centre + _positive("spread", spread) * generator.standard_normal((samples, at.size))
        terms = a * (derivative(x @ at + bias) * np.ones(samples))[:, None] * x
        mean += terms.mean(0)
        variance += terms.var(0, ddof=1) / samples
    return mean, np.sqrt(variance)


def axis_field(
    activation: str, position: ArrayLike, norm: float, spread: float, *, bias: float = 0.0
) -> Array:
    """Return F(c), the field of one cluster (a = 1) on its axis: at w = c x̄ it is w' = F(c) x̄, F = P + s² Q c.

    `position` c is any array without zeros, `norm` = ‖x̄‖ > 0. A fixed point of one cluster lies on this axis wherever
    Q ≠ 0, since P x̄ + s² Q w = 0 makes w a multiple of x̄.

    >>> bool(abs(axis_field("erf", 4.0, 1.0, 0.5, bias=1.0)) < 1e-15)
    True
    """
    c = np.asarray(position, dtype=float)
    n, s = _positive("norm", norm), _positive("spread", spread)
    P, Q = averages(activation, c * n**2 + bias, s * np.abs(c) * n)
    return P + s**2 * Q * c


def fixed_points(
    activation: str,
    norm: float,
    spread: float,
    *,
    bias: float = 0.0,
    limit: float = 50.0,
    points: int = 4_001,
) -> Array:
    """Return all c with |c| ≤ limit where w = c x̄ is a fixed point of one cluster, in increasing order (may be empty).

    Sign changes of `axis_field` on `points` values of c on either side of zero, spaced evenly in √|c|, refined by
    Brent's method to 1e-12. c = 0 itself is left out: there σ = 0, and w' = φ'(β) x̄.

    >>> fixed_points("relu", 1.0, 0.5, bias=0.5).round(1).tolist()
    [-2.3]
    """
    _known(activation)
    _positive("limit", limit)
    if points < 3:
        raise ValueError(f"points is {points}; scan at least 3 values of c on a side")

    def on_axis(c: float) -> float:
        return float(axis_field(activation, c, norm, spread, bias=bias))

    half = limit * np.linspace(0, 1, points)[1:] ** 2
    found: list[float] = []
    for grid in (-half[::-1], half):
        values = np.concatenate(
            [axis_field(activation, part, norm, spread, bias=bias) for part in np.array_split(grid, 20)]
        )
        # A field that has sunk into rounding error changes sign at random: those changes are not fixed points.
        loud = np.maximum(abs(values[:-1]), abs(values[1:])) > 1e-14
        crossing = (values[:-1] * values[1:] < 0) | ((values[1:] == 0) & (values[:-1] != 0))
        for i in np.flatnonzero(loud & crossing):
            low, high = grid[i], grid[i + 1]
            ends = (on_axis(low), on_axis(high))  # a root on the grid itself may keep its sign, by rounding
            if ends[0] * ends[1] > 0:
                found.append(float(low if abs(ends[0]) < abs(ends[1]) else high))
            else:
                found.append(brentq(on_axis, low, high, xtol=1e-12))
    return np.array(found)


def fixed_rates(
    activation: str, position: float, norm: float, spread: float, *, bias: float = 0.0
) -> tuple[float, float]:
    """Return the two eigenvalues (along x̄, across x̄) of the field of one cluster (a = 1) at a fixed point w = c x̄.

    Across: s² Q, common to all M − 1 directions. Along: dF/dc, written with derivatives of P in r alone, because the
    heat equation gives ∂P/∂(σ²) = ½ ∂²P/∂r². Negative means attracting, for a > 0.

    >>> along, across = fixed_rates("erf", 4.0, 1.0, 0.5, bias=1.0)
    >>> along < 0 and across < 0
    True
    """
    _known(activation)
    n, s, c = _positive("norm", norm), _positive("spread", spread), float(position)
    r, sigma = np.asarray(c * n**2 + bias), np.asarray(s * abs(c) * n)
    Q, third, fourth = (float(_moment(activation, order)(r, sigma)) for order in (1, 2, 3))
    along = n**2 * (Q + 2 * s**2 * c * third + s**4 * c**2 * fourth) + s**2 * Q
    return along, s**2 * Q
