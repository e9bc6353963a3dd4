"""The invariant along a training run: what Theorem 1 predicts for each logit against what training made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from joma_lib import invariants
from joma_lib.explore._base import Choice, Explorer, Range
from joma_lib.explore._drawing import Axis, Panel, Shape
from joma_lib.explore._frames import decades, fitting, frame_state, short
from joma_lib.explore._printed import model_script
from joma_lib.metrics import normalized_correlation

__all__ = ["invariant"]

KINDS = ("linear", "exp", "softmax")
_FRAMES = 25
# Exp attention grows towards a blow-up in finite time; smaller steps, and a stop before it, keep the flow in sight.
_SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"steps": 2000, "learning_rate": 0.1},
    "exp": {"steps": 3200, "learning_rate": 0.02},
    "softmax": {"steps": 2000, "learning_rate": 0.1},
}
_QUANTITY = {"linear": "z²", "exp": "z", "softmax": "z"}


def _trained(seed: int) -> dict[str, Any]:
    from joma_lib.block import BlockConfig, train_block

    return {
        kind: train_block(
            BlockConfig(attention=kind, **_SETTINGS[kind]),
            seeds=[seed],
            record=_SETTINGS[kind]["steps"] // _FRAMES,
            device="cpu",
        )
        for kind in KINDS
    }


def _compared(kind: str, run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (the logits' quantity, what the conserved quantity of the first step predicts for it), [frames, tokens]."""
    temperature = json.loads(run.attrs["config"])["temperature"]
    z, v = run.z.values[0], run.v.values[0]
    options: dict[str, Any] = {"temperature": temperature}
    if kind == "softmax":  # the paper's form takes b̄ as constant: its value at the start
        options["mean_attention"] = np.broadcast_to(run.mean_attention.values[0, :1], z.shape)
    conserved = invariants.conserved(kind, z, v, **options)
    actual = z**2 if kind == "linear" else z
    return actual, actual - (conserved - conserved[:1])


def _frames(kind: str, run: Any, index: int) -> dict[str, Any]:
    actual, predicted = _compared(kind, run)
    change = np.abs(actual - actual[:1]).max()
    drift = np.abs(actual - predicted).max(axis=1) / change
    correlation = normalized_correlation(actual - actual[:1], predicted - predicted[:1], constant="nan")
    part = np.linspace(0, 1, len(drift))
    low, high = float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))
    return {
        "words": {"kind": kind, "quantity": _QUANTITY[kind]},
        "fixed": {f"diagonal{index}": short([[low, high], [low, high]])},
        "moving": {
            f"points{index}": [short(predicted), short(actual)],
            "cursor": [[[x] for x in part.round(4).tolist()], [[1.0]] * len(part)],
        },
        "numbers": {
            "step": run.step.values.tolist(),
            "drift": [float(f"{100 * d:.4g}") for d in drift],
            "correlation": short(correlation, 5),
            "loss": short(run.loss.values[0], 4),
        },
        "sentence": 1 if kind == "softmax" else 0,
        "curve": [part.round(4).tolist(), [float(f"{d:.4g}") for d in drift]],
    }


def invariant(runs: Mapping[str, Any] | None = None, *, seed: int = 0) -> Explorer:
    """Return the explorer of Theorem 1: recorded frames of a training run, for linear, exp and softmax attention.

    Parameters
    ----------
    runs : {"linear": run, "exp": run, "softmax": run} of `train_block`, equally many frames each; the first seed is
        shown. Without it, blocks on the data of Figure 2 are trained (a second or so)
    seed : of that training

    Returns
    -------
    Explorer with a choice of attention and a slider of steps. Each dot is a token: its logit against what the first
    step's value of `joma_lib.invariants.conserved` predicts from v alone. Chapter `invariant`.

    Raises
    ------
    ValueError : a kind of attention is missing, or the runs differ in their number of frames.

    >>> page = invariant()  # doctest: +SKIP
    """
    runs = _trained(seed) if runs is None else runs
    missing = [kind for kind in KINDS if kind not in runs]
    if missing:
        raise ValueError(f"runs lack {', '.join(missing)}; give one run of each of {', '.join(KINDS)}")
    counts = {kind: runs[kind].sizes["step"] for kind in KINDS}
    if len(set(counts.values())) > 1:
        raise ValueError(f"runs have {counts} frames; record equally many steps of each")
    frames = [_frames(kind, runs[kind], i) for i, kind in enumerate(KINDS)]
    curves = {f"drift{i}": one.pop("curve") for i, one in enumerate(frames)}
    for one in frames:
        one["fixed"] |= curves
    panels = []
    for i, kind in enumerate(KINDS):
        points = frames[i]["moving"][f"points{i}"]
        name = _QUANTITY[kind]
        panels.append(
            Panel(
                f"scatter{i}",
                f"{name} of each token, {kind} attention",
                fitting(f"{name} predicted from v", points[0]),
                fitting(f"{name} as trained", points[1]),
                (
                    Shape(f"diagonal{i}", "line", "as predicted", dash=1, width=1, opacity=0.7),
                    Shape(f"points{i}", "dots", "a token", color=2),
                ),
                f"Scatter of twenty tokens: {name} as trained against {name} predicted by the invariant; on the dashed line they agree.",
                when=("kind", i),
            )
        )
    panels.append(
        Panel(
            "drift",
            "Largest deviation from the prediction",
            Axis("part of the run", 0, 1, ((0, "0"), (0.5, "0.5"), (1, "1"))),
            decades("relative to the largest change of the run", [ys for _, ys in curves.values()]),
            (
                *(Shape(f"drift{i}", "line", kind, color=i, dash=i, width=2) for i, kind in enumerate(KINDS)),
                Shape("cursor", "cursor", width=1, opacity=0.6),
            ),
            "Deviation from the invariant over the run on a log scale, one line for each kind of attention.",
        )
    )
    said = (
        "Step {step:0}, {kind:s} attention, loss {loss:3} nats: {quantity:s} strays from what v predicts by at most {drift:DIGITS} % "
        "of the run's largest change"
    )
    return Explorer(
        name="invariant",
        title="Theorem 1: the invariant along a training run",
        controls=(
            Choice("kind", "attention", KINDS),
            Range("frame", "step", 0, len(frames[0]["numbers"]["step"]) - 1, 1, 20, digits=0),
        ),
        panels=tuple(panels),
        sentences=(
            said.replace("DIGITS", "4") + "; what is left comes from the finite steps.",
            said.replace("DIGITS", "0")
            + ". The closed form takes the mean attention as constant, and it is not: the changes correlate ({correlation:3}), their "
            "size does not agree.",
        ),
        evaluate=partial(frame_state, frames),
        script=model_script("frames.js"),
        data={"frames": frames},
        frames="frame",
    )
