"""Stable rank along a flow or a training run, each setting beside its control."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from joma_lib.figures._style import band, new_figure, panel_label, style

__all__ = ["stable_rank_paths"]


def stable_rank_paths(
    panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
    *,
    xlabel: str = "time $t$",
    log: bool = True,
) -> Figure:
    """Draw stable rank over time, one panel a case, one line a setting: mean and one standard deviation over draws.

    Parameters
    ----------
    panels : {title: {setting: (times [T], ranks [draws, T])}}
    log : a logarithmic time axis, on which times must be positive

    Raises
    ------
    ValueError : nothing to draw, or ranks that do not fit their times.

    Chapter `stable_rank` (the paper's Figure 7 shows this quantity for pretrained models).
    """
    if not panels:
        raise ValueError("panels is empty; give at least one case with its settings")
    with style():
        figure, axes = new_figure(1, len(panels), size=(4.2 * len(panels), 3.2))
        for ax, (title, settings) in zip(axes[0], panels.items(), strict=True):
            for index, (name, (times, ranks)) in enumerate(settings.items()):
                at, values = np.asarray(times, dtype=float), np.asarray(ranks, dtype=float)
                if values.ndim != 2 or values.shape[1] != len(at):
                    raise ValueError(
                        f"{name!r} has ranks of shape {values.shape} for {len(at)} times; give [draws, T]"
                    )
                band(ax, at, values, index=index, label=name)
            ax.set(xlabel=xlabel, xscale="log" if log else "linear")
            panel_label(ax, title)
            ax.legend()
        axes[0, 0].set_ylabel("stable rank of $V$")
    return figure
