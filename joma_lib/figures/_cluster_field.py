"""The exact field of Theorem 3 in a plane of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, new_figure, panel_label, style

__all__ = ["cluster_field_map"]


def cluster_field_map(panels: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw stream lines of w' over (w_1, w_2), one panel a case, with the centres and the fixed points.

    Parameters
    ----------
    panels : {title: {"grid": [n] evenly spaced, for both axes; "field": [n, n, 2] at [row w_2, column w_1];
        "means": [C, 2]; "attracting" and "repelling": [·, 2], may be empty or missing}}

    Raises
    ------
    ValueError : nothing to draw, or a field that does not fit its grid.

    Chapter `nonlinear_dynamics`; the field is `joma_lib.cluster.cluster_field`.
    """
    if not panels:
        raise ValueError("panels is empty; give at least one case with its field")
    with style():
        figure, axes = new_figure(1, len(panels), size=(3.3 * len(panels), 3.4))
        for ax, (title, case) in zip(axes[0], panels.items(), strict=True):
            grid, field = np.asarray(case["grid"], dtype=float), np.asarray(case["field"], dtype=float)
            if field.shape != (grid.size, grid.size, 2):
                raise ValueError(
                    f"{title!r} has a field of shape {field.shape} for {grid.size} values; give [n, n, 2]"
                )
            ax.streamplot(
                grid,
                grid,
                field[..., 0],
                field[..., 1],
                color="#7F7F7F",
                linewidth=0.8,
                arrowsize=0.9,
                density=0.9,
            )
            for centre in np.reshape(case["means"], (-1, 2)):
                ax.annotate(
                    "",
                    xy=tuple(centre),
                    xytext=(0, 0),
                    arrowprops={"arrowstyle": "-|>", "color": COLORS[2], "lw": 2.2},
                )
            for kind, face in (("attracting", COLORS[1]), ("repelling", "white")):
                points = np.reshape(case.get(kind, []), (-1, 2))
                if points.size:
                    ax.plot(
                        *points.T,
                        "o",
                        ms=9,
                        mfc=face,
                        mec=COLORS[1],
                        mew=2,
                        label=f"{kind} fixed point",
                        zorder=5,
                    )
                    ax.legend(loc="lower right", frameon=True, framealpha=1)
            ax.set(
                xlabel="$w_1$",
                ylabel="$w_2$",
                aspect="equal",
                xlim=(grid[0], grid[-1]),
                ylim=(grid[0], grid[-1]),
            )
            ax.grid(False)
            panel_label(ax, title)
    return figure
