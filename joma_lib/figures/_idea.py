"""The picture of the front page: a block, its invariant, and what follows for attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from joma_lib.figures._style import COLORS, LINES, new_figure, style

__all__ = ["idea"]


def _salient_flow(mu: np.ndarray, steps: int = 5000, rate: float = 0.02, tau: float = 3.0) -> np.ndarray:
    """The flow of the published Figure 4: v += rate (mu - v) softmax(v²/tau); returns v [steps, M]."""
    v = np.full(len(mu), 0.05)
    path = np.empty((steps, len(mu)))
    for step in range(steps):
        path[step] = v
        v = v + rate * (mu - v) * _softmax(v**2 / tau)
    return path


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _block(axes: Axes) -> None:
    boxes = [
        (0.06, "tokens $x$"),
        (0.34, "attention\nlogits $z$"),
        (0.62, "MLP\nweights $v$"),
        (0.90, "loss"),
    ]
    for height, text in boxes:
        axes.add_patch(
            FancyBboxPatch(
                (0.2, height - 0.07),
                0.6,
                0.14,
                boxstyle="round,pad=0.02",
                facecolor="#F2F2F2",
                edgecolor="#333333",
            )
        )
        axes.text(0.5, height, text, ha="center", va="center")
    for (low, _), (high, _) in pairwise(boxes):
        axes.annotate("", (0.5, high - 0.09), (0.5, low + 0.09), arrowprops={"arrowstyle": "->"})
    axes.set(xlim=(0, 1), ylim=(-0.05, 1.02), title="1  a block is trained")


def _law(axes: Axes) -> None:
    axes.text(0.5, 0.80, r"$z_l-\frac{1}{2}\sum_k v_{kl}^2=\mathrm{const.}$", ha="center", fontsize=13)
    axes.text(
        0.5,
        0.64,
        "for every token, loss and activation:\nthe logits follow the MLP",
        ha="center",
        va="top",
        fontsize=9,
    )
    axes.annotate("", (0.5, 0.34), (0.5, 0.44), arrowprops={"arrowstyle": "->"})
    axes.text(0.5, 0.2, r"$\dot v=(\mu-v)\circ e^{v^2/2}$", ha="center", fontsize=13)
    axes.text(0.5, 0.12, "attention is integrated out", ha="center", va="top", fontsize=9)
    axes.set(xlim=(0, 1), ylim=(0, 1), title="2  gradient flow ties z to v")


def _entropy(axes: Axes) -> None:
    mu = np.linspace(1.0, 4.0, 10)
    attention = _softmax(_salient_flow(mu) ** 2 / 3.0)
    entropy = -(attention * np.log(attention)).sum(axis=1)
    axes.semilogx(np.arange(1, len(entropy) + 1), entropy, color=COLORS[2], linestyle=LINES[0])
    low = int(entropy.argmin())
    axes.annotate(
        "sparse", (low + 1, entropy[low]), (12, entropy[low] + 0.1), arrowprops={"arrowstyle": "->"}
    )
    axes.annotate("dense again", (len(entropy), entropy[-1]), (300, 2.1), arrowprops={"arrowstyle": "->"})
    axes.set(xlabel="training step", ylabel="attention entropy (nats)", title="3  sparse, then dense")


def idea() -> Figure:
    """Return the front page's picture; its third panel is computed (the flow of the paper's Figure 4).

    >>> len(idea().axes)
    3
    """
    with style():
        figure, axes = new_figure(1, 3, size=(9.6, 3.3))
        _block(axes[0, 0])
        _law(axes[0, 1])
        _entropy(axes[0, 2])
        for panel in axes[0, :2]:
            panel.set_axis_off()
    return figure
