"""Sparse, then dense: v' = (μ − v)∘softmax(v²/τ), the flow of Figure 4, for any temperature and spread of μ."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import entr, softmax

from joma_lib.dynamics import attention_weight, matrix_flow, right_hand_side
from joma_lib.explore._base import Explorer, Range, State
from joma_lib.explore._drawing import Axis, Panel, Shape
from joma_lib.explore._printed import model_script

__all__ = ["sparse_then_dense"]

_COMPONENTS = 10
_CENTRE, _V0 = 2.5, 0.05
_OFFSETS = [i / (_COMPONENTS - 1) - 0.5 for i in range(_COMPONENTS)]
_STEP = 0.05
_POWERS = [round(-1 + _STEP * i, 2) for i in range(81)]
_MOVED = 0.05
_LEVEL = 1e-6  # entropies closer than this count as equal, and the first of them is the lowest


def _evaluate(T: float, spread: float, time: float) -> State:
    tau = 2 * T * T
    mu = _CENTRE + spread * np.array(_OFFSETS)
    times = 10.0 ** np.array(_POWERS)
    v = matrix_flow(mu, _V0, times, attention="softmax", tau=tau)
    attention = softmax(v**2 / tau, axis=-1)
    entropy = entr(attention).sum(axis=-1)
    at, low = (
        int(np.argmin(np.abs(np.array(_POWERS) - time))),
        int(np.argmax(entropy <= entropy.min() + _LEVEL)),
    )
    rebound, fall = float(entropy[-1] - entropy[low]), float(entropy[0] - entropy[low])
    numbers = {
        "t": float(times[at]),
        "tau": tau,
        "mu": mu.tolist(),
        "v": v[at].tolist(),
        "attention": attention[at].tolist(),
        "entropy": float(entropy[at]),
        "lowest": float(entropy[low]),
        "lowest_time": float(times[low]),
        "last": float(entropy[-1]),
        "rebound": rebound,
    }
    positions = [float(i + 1) for i in range(_COMPONENTS)]
    axis = times.tolist()
    shapes: dict[str, Any] = {f"v{i}": (axis, v[:, i].tolist()) for i in range(_COMPONENTS)}
    shapes |= {
        "cursor": ([times[at]], [0.0]),
        "cursor_entropy": ([times[at]], [0.0]),
        "entropy": (axis, entropy.tolist()),
        "lowest": ([times[low]], [entropy[low]]),
        "attention": (positions, attention[at].tolist()),
        "reached": (positions, (v[at] / mu).tolist()),
    }
    return State(numbers, shapes, sentence=2 if fall < _MOVED else 1 if rebound < _MOVED else 0)


def sparse_then_dense() -> Explorer:
    """Return the explorer of Figure 4: weights, attention and entropy of ten components move together.

    Sliders: temperature T of the logits (τ = 2T²), spread of μ around 2.5, time. Its JavaScript integrates
    `joma_lib.dynamics.right_hand_side("nonlinear", "softmax")` in the page. Chapter `sparse_then_dense`.

    >>> start = sparse_then_dense().state(spread=0.0).numbers
    >>> round(start["entropy"], 6) == round(float(np.log(10)), 6)
    True
    """
    time = Axis(
        "time (log scale)", -1, 3, ((-1, "0.1"), (0, "1"), (1, "10"), (2, "100"), (3, "1000")), log=True
    )
    named = {9: ("largest μ", 1, 0, 2.4), 4: ("a middle μ", 2, 1, 2.2), 0: ("smallest μ", 3, 2, 2.2)}
    lines = tuple(
        Shape(f"v{i}", "line", *named[i][:3], width=named[i][3])
        if i in named
        else Shape(f"v{i}", "line", width=1, opacity=0.45)
        for i in range(_COMPONENTS)
    )
    components = Axis("component, by growing μ", 0.4, 10.6, tuple((i, str(i)) for i in range(1, 11)))
    panels = (
        Panel(
            "weights",
            "Weights approach μ, the largest first",
            time,
            Axis("v", 0, 4.2, tuple((i, str(i)) for i in range(5))),
            (*lines, Shape("cursor", "cursor", width=1, opacity=0.6)),
            "Curves of ten weights over time; the one with the largest target rises first, the others follow later.",
        ),
        Panel(
            "entropy",
            "Entropy of the attention",
            time,
            Axis("nats", 0, 2.4, ((0, "0"), (0.5, "0.5"), (1, "1"), (1.5, "1.5"), (2, "2"))),
            (
                Shape("entropy", "line", "entropy", width=2.2),
                Shape("lowest", "squares", "lowest", color=1),
                Shape("cursor_entropy", "cursor", width=1, opacity=0.6),
            ),
            "Entropy of the attention over time, its lowest point marked by a square.",
        ),
        Panel(
            "bars",
            "Attention at that time",
            components,
            Axis(
                "share of attention (bars), v/μ (dots)",
                0,
                1.05,
                ((0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1, "1")),
            ),
            (Shape("attention", "bars", "attention", color=2), Shape("reached", "dots", "v/μ")),
            "Bars: the share of attention of each component at the chosen time; dots: how far its weight has come.",
            bar=9,
        ),
    )
    return Explorer(
        name="sparse",
        title="Sparse, then dense: weights, attention and entropy together",
        controls=(
            Range("T", "temperature T of the logits (τ = 2T²)", 0.7, 2, 0.025, 1.225, digits=3),
            Range("spread", "spread of μ, largest minus smallest", 0, 3, 0.1, 3, digits=1),
            Range("time", "time", -1, 3, _STEP, 1.15, digits=2, log=True),
        ),
        panels=panels,
        sentences=(
            "At t = {t:2}, τ = {tau:2}: entropy {entropy:3} nats. It falls to {lowest:3} at t = {lowest_time:2} and comes back to {last:3} "
            "by t = 1000, a rebound of {rebound:3}. Weights of the smallest and the largest μ: {v.0:3} and {v.9:3}.",
            "At t = {t:2}, τ = {tau:2}: entropy {entropy:3} nats. It falls to {lowest:3} and has not come back by t = 1000: the other "
            "components still wait. Weights of the smallest and the largest μ: {v.0:3} and {v.9:3}.",
            "At t = {t:2}, τ = {tau:2}: entropy {entropy:3} nats. The components are so alike that the attention stays nearly uniform. "
            "Weights of the smallest and the largest μ: {v.0:3} and {v.9:3}.",
        ),
        evaluate=_evaluate,
        script=model_script(
            "sparse.js", rate=right_hand_side("nonlinear", "softmax"), weight=attention_weight("softmax")
        ),
        data={"offsets": _OFFSETS, "centre": _CENTRE, "v0": _V0, "powers": _POWERS},
    )
