"""Theorem 2's race: four tokens with constant Δ, one of which takes the attention in finite time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import sympy as sp
from scipy.special import entr, erf

from joma_lib.dynamics import SYMBOLS, blow_up_time, linear_growth, right_hand_side
from joma_lib.explore._base import Explorer, Range, State
from joma_lib.explore._drawing import Axis, Panel, Shape
from joma_lib.explore._printed import model_script

__all__ = ["race"]

_TOKENS = 4
_START = (1.0, 0.8, 0.5, -0.3)
_LATEST = 99.9
_FRACTIONS = [round(0.999 * (1 - (1 - i / 100) ** 2), 6) for i in range(101)]


@cache
def closed_forms() -> dict[str, sp.Expr]:
    """Return what solves v' = right_hand_side("linear", "own") from v(0) = 0, derived from it by SymPy.

    growth: v(Delta, t); end: the time at which growth leaves its domain; common: the ratio that all tokens share, in (Delta, v).
    """
    Delta, t = sp.symbols("Delta t", real=True)
    v, v_l = SYMBOLS["v"], sp.Symbol("v", real=True)
    rate = right_hand_side("linear", "own").subs(
        {SYMBOLS["s"]: v**2, SYMBOLS["tau"]: 2, SYMBOLS["mu"]: Delta}
    )
    clock = sp.integrate(1 / rate, (v, 0, v_l))  # the time that v needs
    growth = sp.solve(sp.Eq(clock, t), v_l)[0]
    inside = next(part for part in sp.preorder_traversal(growth) if part.func == sp.erfinv).args[0]
    common = sp.simplify(clock / (Delta * clock.subs(v_l, sp.oo)))  # scaled to erf(v/√2)/Δ
    return {"growth": growth, "end": sp.solve(sp.Eq(inside, 1), t)[0], "common": common}


def _evaluate(time: float, **values: float) -> State:
    delta = np.array([values[f"delta{i}"] for i in range(1, _TOKENS + 1)])
    largest = float(np.abs(delta).max())
    fraction = time / 100
    grid = np.array(_FRACTIONS)
    if largest == 0:
        end = t = np.inf
        v, curves = np.zeros(_TOKENS), np.zeros((len(grid), _TOKENS))
    else:
        end = blow_up_time(delta)
        t = end * fraction
        v, curves = linear_growth(delta, [t])[0], linear_growth(delta, grid * end)
    weights = np.exp(v**2 / 2)
    attention = weights / weights.sum()
    winner = int(np.argmax(np.abs(delta) == largest))
    common = float(erf(v[winner] / np.sqrt(2)) / delta[winner]) if largest and t else 0.0
    positions = [float(i) for i in range(1, _TOKENS + 1)]
    shapes: dict[str, Any] = {f"v{i + 1}": (_FRACTIONS, curves[:, i].tolist()) for i in range(_TOKENS)}
    shapes |= {
        "cursor": ([fraction], [0.0]),
        "now": ([fraction] * _TOKENS, v.tolist()),
        "attention": (positions, attention.tolist()),
    }
    numbers = {
        "t": float(t),
        "end": float(end),
        "percent_of_end": time,
        "v": v.tolist(),
        "attention": attention.tolist(),
        "common": common,
        "winner": winner + 1,
        "percent": float(100 * attention[winner]),
        "entropy": float(entr(attention).sum()),
    }
    return State(numbers, shapes, sentence=0 if largest else 1)


def race() -> Explorer:
    """Return the explorer of Theorem 2: v' = Δ∘exp(v²/2) for four tokens, and the attention that follows.

    Sliders: Δ of each token, and the time in percent of the blow-up time √(π/2)/max|Δ|. Its JavaScript evaluates the
    closed form that SymPy derives from `joma_lib.dynamics.right_hand_side`. Chapter `linear_attention_dynamics`.

    >>> race().state(time=50.0).numbers["winner"]
    1
    """
    controls = tuple(
        Range(f"delta{i}", f"Δ<sub>{i}</sub> of token {i}", -1, 1, 0.05, _START[i - 1])
        for i in range(1, _TOKENS + 1)
    )
    lines = tuple(
        Shape(f"v{i}", "line", f"token {i}", color=i - 1, dash=i - 1, width=2) for i in range(1, _TOKENS + 1)
    )
    growth = Panel(
        "growth",
        "Weights: one runs away, the others stop",
        Axis("time / blow-up time", 0, 1, ((0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1, "1"))),
        Axis("v", -3.5, 3.5, ((-3, "−3"), (-2, "−2"), (-1, "−1"), (0, "0"), (1, "1"), (2, "2"), (3, "3"))),
        (*lines, Shape("cursor", "cursor", width=1, opacity=0.6), Shape("now", "dots")),
        "Curves of the four weights over time, up to the blow-up; a vertical line marks the chosen time.",
    )
    bars = Panel(
        "bars",
        "Attention at that time",
        Axis("token", 0.5, 4.5, tuple((i, str(i)) for i in range(1, _TOKENS + 1))),
        Axis("share of attention", 0, 1, ((0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1, "1"))),
        (Shape("attention", "bars", color=2),),
        "Bars: the share of attention of each of the four tokens at the chosen time.",
        bar=22,
    )
    return Explorer(
        name="race",
        title="Theorem 2: the race of four tokens",
        controls=(*controls, Range("time", "time, in % of the blow-up time", 0, _LATEST, 0.1, 90, digits=1)),
        panels=(growth, bars),
        sentences=(
            "At t = {t:4} of t* = {end:4}: v = ({v.0:3}, {v.1:3}, {v.2:3}, {v.3:3}). The ratio erf(v/√2)/Δ is {common:4} for every token "
            "that moves. Token {winner:0} leads with {percent:1} % of the attention; entropy {entropy:3} nats.",
            "Every Δ is 0: nothing grows, and the attention stays uniform (entropy {entropy:3} nats).",
        ),
        evaluate=_evaluate,
        script=model_script("race.js", **closed_forms()),
        data={"fractions": _FRACTIONS},
    )
