"""Figure 3: how the weights grow under linear activation, with Theorem 2's exact solution through the measured points."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from joma_lib.figures._style import COLORS, LINES, MARKERS, new_figure, panel_label, style

__all__ = ["figure_3"]


def figure_3(
    run: xr.Dataset, times: ArrayLike, exact: ArrayLike, *, seed: int = 0, components: int = 5
) -> Figure:
    """Draw Figure 3 from a run of `joma_lib.block.train_block` and the exact solution from the same start.

    (a) V at the start and (b) at the end, nodes by tokens; (c) the fastest components of the node that grows most:
    measured at the recorded steps (markers), exact (lines).

    Parameters
    ----------
    run : with v (seed, step, node, token); `step` times the learning rate of its config is the time
    times, exact : [T] and [T, K, M], such as `joma_lib.dynamics.node_growth` returns
    seed : which of the run's seeds, by position
    components : how many components panel (c) shows

    Raises
    ------
    ValueError : a run without v, or an exact solution of another shape.

    Theorem 2; chapter `linear_attention_dynamics`.
    """
    if "v" not in run or "query" in run.v.dims:
        raise ValueError(
            "the run has no v (seed, step, node, token); give a run of train_block with one query"
        )
    v = run.v.transpose("seed", "step", "node", "token").values[seed]
    at, solution = np.asarray(times, dtype=float), np.asarray(exact, dtype=float)
    if solution.shape != (len(at), *v.shape[1:]):
        raise ValueError(
            f"exact has shape {solution.shape}; for {len(at)} times and this run it must be {(len(at), *v.shape[1:])}"
        )
    rate = float(json.loads(run.attrs["config"])["learning_rate"])
    node = int(np.argmax(np.abs(v[-1]).max(1)))
    order = np.argsort(-np.abs(v[-1, node]))[:components]
    marks = np.unique(np.linspace(0, len(run.step) - 1, 12).round().astype(int))
    with style():
        figure, axes = new_figure(1, 3, size=(10.2, 3.2))
        start, end, growth = axes[0]
        limit = max(float(np.abs(v[[0, -1]]).max()), 1e-12)  # one scale for both maps
        for ax, matrix, title in ((start, v[0], "(a) V at the start"), (end, v[-1], "(b) V at the end")):
            image = ax.imshow(
                matrix, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
            )
            figure.colorbar(image, ax=ax)
            ax.grid(False)
            ax.set(xlabel="contextual token $l$", ylabel="node $k$")
            panel_label(ax, title)
        for index, token in enumerate(order):
            color, line = COLORS[index % len(COLORS)], LINES[index % len(LINES)]
            growth.plot(at, solution[:, node, token], color=color, linestyle=line, label=f"token {token}")
            growth.plot(
                run.step.values[marks] * rate,
                v[marks, node, token],
                MARKERS[index % len(MARKERS)],
                color=color,
                linestyle="",
            )
        growth.set(xlabel="time $t$", ylabel=f"$v_{{{node},l}}$")
        growth.legend(fontsize=8)
        panel_label(growth, "(c) growth: exact and trained")
    return figure
