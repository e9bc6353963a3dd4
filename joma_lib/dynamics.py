"""The reduced flows of Theorems 2 to 4: right-hand sides in symbols, closed forms, and solvers.

Once attention is integrated out, one weight v_kl (node k, token l) obeys

    v' = drive · e(s) / A,   drive = Δ (linear activation) or μ − v (nonlinear),   e(s) = exp(s / τ),

with s = Σ_k v_kl² where the nodes share their logits, s = v_kl² where each has its own, and A = Σ_l e(s_l) for softmax.
`right_hand_side` is that formula in SymPy; `matrix_flow` and `euler_flow` integrate the very same expression, lambdified.
τ = 2 is the paper's e^{v²/2}; a temperature T of the logits is τ = 2T². Chapters `linear_attention_dynamics`,
`sparse_then_dense` and `stable_rank`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import sympy
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from joma_lib._checks import finite_array, increasing_times, start_for
from joma_lib._growth import (
    blow_up_time,
    growth_limits,
    linear_attention_growth,
    linear_growth,
    node_growth,
    normalized_growth,
    softmax_clock,
)
from joma_lib._learning import cross_entropy_growth
from joma_lib._salient import log_distance, salient_flow, salient_offset, salient_time

__all__ = [
    "ATTENTIONS",
    "DRIVES",
    "SYMBOLS",
    "attention_weight",
    "blow_up_time",
    "cross_entropy_growth",
    "euler_flow",
    "growth_limits",
    "linear_attention_growth",
    "linear_growth",
    "log_distance",
    "matrix_flow",
    "node_growth",
    "normalized_growth",
    "right_hand_side",
    "salient_flow",
    "salient_offset",
    "salient_time",
    "softmax_clock",
]

Array = NDArray[np.float64]

SYMBOLS: dict[str, sympy.Symbol] = {
    name: sympy.Symbol(name, real=True, positive=name in ("tau", "A", "s") or None)
    for name in ("v", "mu", "s", "tau", "A")
}
"""Symbols of `right_hand_side`: v, mu (the target μ, or Δ), s (the sum of squares), tau, A (the normaliser)."""

DRIVES: dict[str, sympy.Expr] = {"nonlinear": SYMBOLS["mu"] - SYMBOLS["v"], "linear": SYMBOLS["mu"]}
"""What pulls a weight, by activation: μ − v, or the constant Δ (passed as mu)."""

ATTENTIONS = ("shared", "own", "softmax", "none")
"""Logits shared by the nodes; each node its own; shared and normalised over tokens; no attention (e = 1)."""

_ABSOLUTE, _RELATIVE = 1e-12, 1e-10
_LARGEST_EXPONENT = 30.0


def attention_weight(attention: str) -> sympy.Expr:
    """Return e(s), the weight before normalisation, as a SymPy expression; 1 without attention.

    >>> attention_weight("shared")
    exp(s/tau)
    """
    _known("attention", attention, ATTENTIONS)
    return sympy.Integer(1) if attention == "none" else sympy.exp(SYMBOLS["s"] / SYMBOLS["tau"])


def right_hand_side(activation: str = "nonlinear", attention: str = "shared") -> sympy.Expr:
    """Return v' as a SymPy expression in `SYMBOLS`.

    For "softmax" the normaliser A = Σ_l e(s_l) stays a symbol; s = Σ_k v_kl², for "own" s = v_kl².

    >>> right_hand_side("nonlinear", "shared")
    (mu - v)*exp(s/tau)
    >>> right_hand_side("linear", "softmax")
    mu*exp(s/tau)/A
    """
    _known("activation", activation, tuple(DRIVES))
    rate = DRIVES[activation] * attention_weight(attention)
    return rate / SYMBOLS["A"] if attention == "softmax" else rate


@cache
def _compiled(activation: str, attention: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    names = [SYMBOLS[name] for name in ("v", "mu", "s", "tau", "A")]
    weight = sympy.lambdify(names[2:4], attention_weight(attention), "numpy")
    return weight, sympy.lambdify(names, right_hand_side(activation, attention), "numpy")


def _rate(v: Array, mu: Array, tau: float, activation: str, attention: str) -> Array:
    """Return v' for arrays [..., K, M]."""
    weight, rate = _compiled(activation, attention)
    s = v * v
    if attention != "own":
        s = s.sum(axis=-2, keepdims=True)
    normalizer: Any = 1.0
    if attention == "softmax":  # a common shift of s cancels, and keeps exp from overflowing
        s = s - s.max(axis=-1, keepdims=True)
        normalizer = weight(s, tau).sum(axis=-1, keepdims=True)
    return rate(v, mu, s, tau, normalizer) + np.zeros_like(v)


def _known(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(allowed)}")


def _divisor(tau: float) -> float:
    if not (np.isfinite(tau) and tau > 0):
        raise ValueError(f"tau is {tau!r}; it divides v² and must be a positive number")
    return float(tau)


def matrix_flow(
    mu: ArrayLike,
    v0: ArrayLike,
    times: ArrayLike,
    *,
    attention: str = "shared",
    activation: str = "nonlinear",
    tau: float = 2.0,
) -> Array:
    """Solve V' = drive ∘ e for K nodes that look at M tokens, from V(0) = v0.

    Parameters
    ----------
    mu : [M] or [K, M], the target μ (nonlinear) or Δ (linear activation)
    v0 : a number, or an array of mu's shape
    times : [T], not negative, increasing
    attention : one of `ATTENTIONS`
    activation : "nonlinear" (μ − V) or "linear" (Δ)
    tau : divisor of the squares, 2T² for a temperature T

    Returns
    -------
    V at the times, [T, M] or [T, K, M], float64. LSODA (it changes to a stiff method by itself), relative tolerance
    1e-10, absolute 1e-12; for one node and `attention="own"` `salient_flow` is exact.

    Raises
    ------
    ValueError : shapes, unknown names, non-finite input, or times past a blow-up.

    >>> bool(abs(matrix_flow([1.0], [0.0], [50.0])[0, 0] - 1) < 1e-9)
    True
    """
    _known("attention", attention, ATTENTIONS)
    _known("activation", activation, tuple(DRIVES))
    target = finite_array("mu", mu, ndim=(1, 2))
    start = start_for(target, v0)
    at = increasing_times(times)
    tau = _divisor(tau)
    shape = target.shape
    nodes = target.reshape(-1, shape[-1])

    def rate(_: float, flat: Array) -> Array:
        return _rate(flat.reshape(nodes.shape), nodes, tau, activation, attention).ravel()

    # A weight that is pulled to μ stays between start and target; one that passes this limit is on its way to infinity.
    limit = (
        _LARGEST_EXPONENT
        + float(np.maximum(nodes**2, start.reshape(nodes.shape) ** 2).sum(axis=0).max()) / tau
    )

    def diverges(_: float, flat: Array) -> float:
        v = flat.reshape(nodes.shape)
        s = v * v if attention == "own" else (v * v).sum(axis=0)
        return limit - float(s.max()) / tau

    diverges.terminal = True  # type: ignore[attr-defined]
    bounded = attention in ("softmax", "none")
    if at[-1] == 0:
        return start[None].copy()
    solution = solve_ivp(
        rate,
        (0.0, at[-1]),
        start.ravel(),
        method="LSODA",
        t_eval=at,
        rtol=_RELATIVE,
        atol=_ABSOLUTE,
        events=None if bounded else diverges,
    )
    if solution.status == 1:
        end = float(solution.t[-1]) if solution.t_events is None else float(solution.t_events[0][0])
        raise ValueError(
            f"times reach {at[-1]:g}, but the flow blows up at about {end:.6g}; ask for earlier ones"
        )
    if solution.status != 0:
        raise ValueError(f"the solver stopped ({solution.message}); ask for earlier times or a larger tau")
    return solution.y.T.reshape(-1, *shape)


def euler_flow(
    mu: ArrayLike,
    v0: ArrayLike,
    steps: int,
    *,
    step_size: float = 0.02,
    tau: float = 3.0,
    attention: str = "softmax",
    activation: str = "nonlinear",
    every: int = 1,
) -> Array:
    """Iterate v += step_size · v', as the published script of Figure 4 does, for a whole batch of draws at once.

    Parameters
    ----------
    mu : [M], or [..., K, M] for draws of K nodes (for single nodes [draws, 1, M])
    v0 : a number, or an array of mu's shape
    steps : number of steps
    every : keep each `every`-th state

    Returns
    -------
    [steps // every + 1, *mu.shape]: the start and every kept state.

    Raises
    ------
    ValueError : shapes, unknown names, non-finite input, or a step so large that the iteration overflows.

    >>> euler_flow([1.0, 2.0], 0.05, 10, every=5).shape
    (3, 2)
    """
    _known("attention", attention, ATTENTIONS)
    _known("activation", activation, tuple(DRIVES))
    target = finite_array("mu", mu)
    v = start_for(target, v0)
    tau = _divisor(tau)
    if steps < 1 or every < 1 or not (np.isfinite(step_size) and step_size > 0):
        raise ValueError(f"steps {steps}, every {every} and step_size {step_size} must all be positive")
    batch = target[None] if target.ndim == 1 else target
    v = v.reshape(batch.shape)
    kept = np.empty((steps // every + 1, *batch.shape))
    kept[0] = v
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, steps + 1):
            v = v + step_size * _rate(v, batch, tau, activation, attention)
            if step % every == 0:
                kept[step // every] = v
    if not np.isfinite(v).all():
        raise ValueError(
            f"step_size {step_size} is too large for this flow, which overflowed; take a smaller one"
        )
    return kept.reshape(-1, *target.shape)
