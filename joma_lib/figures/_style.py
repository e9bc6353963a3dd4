"""One style for all figures: white ground (readable in a dark page), colour-blind and grey safe, line styles as well.

The palette is that of Okabe and Ito, ordered so that neighbours differ in lightness too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

__all__ = ["COLORS", "LINES", "MARKERS", "band", "new_figure", "panel_label", "style"]

COLORS = ("#000000", "#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7F7F7F")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_RC: dict[Any, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "axes.facecolor": "white",
    "axes.edgecolor": "#333333",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.titlelocation": "left",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": "black",
    "axes.labelcolor": "black",
    "image.cmap": "cividis",
    "svg.hashsalt": "joma",
}


class _Figure(Figure):
    """A figure that a notebook shows as PNG by itself: no pyplot, no global state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, facecolor="white", metadata={"Software": None})
        return buffer.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Use the book's style inside a `with`; Matplotlib's settings are as before after it.

    >>> before = mpl.rcParams["axes.grid"]
    >>> with style():
    ...     mpl.rcParams["axes.grid"]
    True
    >>> mpl.rcParams["axes.grid"] == before
    True
    """
    cycle = cycler(color=COLORS) + cycler(linestyle=LINES)
    with mpl.rc_context({**_RC, "axes.prop_cycle": cycle}):
        yield


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] | None = None,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, np.ndarray]:
    """Return a figure without pyplot state and its axes as an array [rows, columns]; call it inside `style()`.

    `size` is in inches; without it each panel gets 3.4 × 2.7.

    >>> with style():
    ...     figure, axes = new_figure(1, 2)
    >>> axes.shape
    (1, 2)
    """
    figure = _Figure(figsize=size or (3.4 * columns, 2.7 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)


def band(axes: Axes, x: ArrayLike, values: ArrayLike, *, index: int = 0, label: str | None = None) -> None:
    """Draw the mean over the first axis of `values` [seeds, len(x)] and a band of one standard deviation.

    `index` chooses colour and line style.
    """
    values = np.asarray(values, dtype=float)
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1 if len(values) > 1 else 0)
    color, line = COLORS[index % len(COLORS)], LINES[index % len(LINES)]
    axes.plot(x, mean, color=color, linestyle=line, label=label)
    if len(values) > 1:
        axes.fill_between(np.asarray(x), mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)


def panel_label(axes: Axes | Sequence[Axes], text: str) -> None:
    """Put a left-aligned title such as "(a) linear" on an axes."""
    for one in np.atleast_1d(np.asarray(axes, dtype=object)).ravel():
        one.set_title(text, loc="left")
