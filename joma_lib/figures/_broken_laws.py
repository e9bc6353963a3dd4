"""What breaks the invariant, and by how much: one row a setting."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from joma_lib.figures._style import COLORS, MARKERS, new_figure, style

__all__ = ["broken_laws"]


def broken_laws(drifts: Mapping[str, Mapping[str, ArrayLike]]) -> Figure:
    """Draw the relative drift of the invariant for each setting on a logarithmic axis: every seed, and the median.

    Parameters
    ----------
    drifts : {group: {setting: relative drifts, one a seed}}; groups are told apart by colour and marker

    Raises
    ------
    ValueError : nothing to draw, or a drift that is not positive and finite.

    Theorem 1; chapter `symmetry`.
    """
    rows = [(group, name, values) for group, settings in drifts.items() for name, values in settings.items()]
    if not rows:
        raise ValueError("drifts is empty; give at least one setting with its relative drifts")
    with style():
        figure, axes = new_figure(1, 1, size=(7.6, 0.8 + 0.28 * len(rows)))
        ax = axes[0, 0]
        groups = list(drifts)
        for row, (group, name, values) in enumerate(rows):
            drift = np.asarray(values, dtype=float).ravel()
            if drift.size == 0 or not (np.isfinite(drift) & (drift > 0)).all():
                raise ValueError(
                    f"{name!r} has drifts {drift}; a logarithmic axis shows positive finite numbers"
                )
            at = groups.index(group)
            color, marker = COLORS[at % len(COLORS)], MARKERS[at % len(MARKERS)]
            ax.plot(
                drift, np.full(drift.size, row), marker, color=color, alpha=0.35, markersize=4, linestyle=""
            )
            label = group if name == next(iter(drifts[group])) else None
            ax.plot(np.median(drift), row, marker, color=color, markersize=9, linestyle="", label=label)
        ax.set_yticks(range(len(rows)), [name for _, name, _ in rows])
        ax.invert_yaxis()
        ax.axvline(1, color="0.4", linestyle=":")
        ax.set(xscale="log", xlabel="relative drift of the invariant")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
