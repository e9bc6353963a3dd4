"""Entropy of attention by layer, along recorded training runs of the language model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from joma_lib.explore._base import Choice, Explorer, Range
from joma_lib.explore._drawing import Axis, Panel, Shape
from joma_lib.explore._frames import fitting, frame_state, short
from joma_lib.explore._printed import model_script
from joma_lib.runs import list_runs, load_run

__all__ = ["entropy_by_layer"]

_FRAMES = 40


def _variable(run: Any) -> Any:
    """Return the run's entropy by step and layer as an array with dimensions (seed, step, layer), or None."""
    names = [
        name for name in run.data_vars if "entropy" in str(name) and {"step", "layer"} <= set(run[name].dims)
    ]
    names.sort(key=lambda name: (name not in ("attention_entropy", "entropy"), len(str(name)), str(name)))
    if not names:
        return None
    array = run[names[0]]
    array = array.mean([dim for dim in array.dims if dim not in ("seed", "step", "layer")])
    array = array if "seed" in array.dims else array.expand_dims("seed")
    return array.transpose("seed", "step", "layer")


def _chosen(runs: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Return {label: entropy [seed, step, layer]}."""
    if runs is None:
        found = {name: _variable(load_run(name)) for name in list_runs()}
        found = {name: array for name, array in found.items() if array is not None}
        if not found:
            raise ValueError(
                "no recorded run holds entropy by step and layer; record one with `joma train language`, or give runs"
            )
        return found
    named = runs if isinstance(runs, Mapping) else {name: load_run(name) for name in runs}
    found = {label: _variable(run) for label, run in named.items()}
    for label, array in found.items():
        if array is None:
            raise ValueError(
                f"run {label!r} holds no entropy with dimensions step and layer; give a run of the language model"
            )
    if not found:
        raise ValueError("runs is empty; give at least one run")
    return found


def _frames(label: str, array: Any, index: int) -> dict[str, Any]:
    keep = np.unique(np.linspace(0, array.sizes["step"] - 1, _FRAMES).round().astype(int))
    keep = np.resize(
        np.concatenate([keep, np.full(_FRAMES, keep[-1])]), _FRAMES
    )  # a short run rests at its end
    entropy, steps = array.values[:, keep], array["step"].values[keep]
    mean = entropy.mean(axis=0)
    layers = np.arange(1, mean.shape[1] + 1, dtype=float).tolist()
    low = mean.argmin(axis=0)
    return {
        "words": {
            "run": label,
            "lowest_step": int(steps[low[-1]]),
            "lowest": float(f"{mean.min(axis=0)[-1]:.4g}"),
            "start": float(f"{mean[0, -1]:.4g}"),
            "end": float(f"{mean[-1, -1]:.4g}"),
        },
        "fixed": {f"layer{index}x{i}": [steps.tolist(), short(mean[:, i], 3)] for i in range(len(layers))},
        "moving": {
            f"cursor{index}": [[[int(step)] for step in steps], [[0.0]] * len(steps)],
            f"bars{index}": [layers, short(mean, 3)],
            f"seeds{index}": [
                [x for x in layers for _ in range(2)],
                short(np.stack([entropy.min(0), entropy.max(0)], -1).reshape(len(keep), -1), 3),
            ],
        },
        "numbers": {
            "step": [int(step) for step in steps],
            "first": short(mean[:, 0]),
            "last": short(mean[:, -1]),
        },
        "sentence": 0 if mean.shape[1] > 1 else 1,
    }


def entropy_by_layer(runs: Mapping[str, Any] | Iterable[str] | None = None) -> Explorer:
    """Return the explorer of Figures 6 and 8: entropy of attention by layer, along recorded training.

    Parameters
    ----------
    runs : {label: run}, or names of recorded runs; without it all that come with the package and hold entropy by step
        and layer. Means over seeds are drawn, and their smallest and largest value

    Returns
    -------
    Explorer with a choice of runs and a slider of steps. Chapter `wikitext`.

    Raises
    ------
    ValueError : no such run is there, or one lacks entropy by step and layer.

    >>> entropy_by_layer([])
    Traceback (most recent call last):
    ValueError: runs is empty; give at least one run
    """
    chosen = _chosen(runs)
    frames = [_frames(label, array, i) for i, (label, array) in enumerate(chosen.items())]
    highest = max(float(array.max()) for array in chosen.values())
    nats = fitting("nats", [0, highest], zero=True)
    panels: list[Panel] = []
    for i, array in enumerate(chosen.values()):
        count = array.sizes["layer"]
        lines = tuple(
            Shape(f"layer{i}x{j}", "line", f"layer {j + 1}", color=j, dash=(j + j // 5) % 5, width=1.6)
            for j in range(count)
        )
        panels += [
            Panel(
                f"curves{i}",
                "Entropy of attention during training",
                fitting("training step", frames[i]["numbers"]["step"], zero=True),
                nats,
                (*lines, Shape(f"cursor{i}", "cursor", width=1, opacity=0.6)),
                "Entropy of attention over training steps, one line a layer; a vertical line marks the chosen step.",
                when=("kind", i),
            ),
            Panel(
                f"layers{i}",
                "By layer at that step",
                Axis("layer", 0.4, count + 0.6, tuple((j, str(j)) for j in range(1, count + 1))),
                nats,
                (
                    Shape(f"bars{i}", "bars", "mean over seeds", color=2),
                    Shape(f"seeds{i}", "pairs", "least to most", width=2.5),
                ),
                "Bars: entropy of attention of each layer at the chosen step; strokes: from the lowest to the highest seed.",
                when=("kind", i),
                bar=min(20.0, round(100 / count, 1)),
            ),
        ]
    said = "{run:s}, step {step:0}: entropy {first:3} nats in the first layer"
    range_ = "The last layer starts at {start:3}, is lowest at step {lowest_step:0} with {lowest:3} and ends at {end:3}."
    return Explorer(
        name="entropy",
        title="Entropy of attention by layer, during training",
        controls=(
            Choice("kind", "recorded run", tuple(map(str, chosen))),
            Range("frame", "training step", 0, _FRAMES - 1, 1, _FRAMES // 4, digits=0),
        ),
        panels=tuple(panels),
        sentences=(
            said + ", {last:3} in the last. " + range_,
            said.replace("the first layer", "its only layer") + ". " + range_,
        ),
        evaluate=partial(frame_state, frames),
        script=model_script("frames.js"),
        data={"frames": json.loads(json.dumps(frames))},
        frames="frame",
    )
