"""The block drawn: which symbol stands where, and the two factors whose product is all that the loss sees."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from joma_lib.figures._style import COLORS, new_figure, style

__all__ = ["block_diagram"]

_PLAIN, _LEARNT = "#F2F2F2", "#FFFFFF"


def block_diagram() -> Figure:
    """Draw the paper's block from token frequencies to the loss; what is trained has a thick frame.

    >>> len(block_diagram().axes)
    1
    """
    with style():
        figure, ((axes,),) = new_figure(size=(6.6, 5.2))
        axes.set(xlim=(0, 10.6), ylim=(0, 10.2))
        axes.axis("off")
        _box(axes, 2.2, 9.3, "token frequencies\n$x \\geq 0,\\ \\sum_l x_l = 1$")
        _box(axes, 7.8, 9.3, "logits of query $q$\n$z \\in \\mathbb{R}^M$", color=COLORS[1])
        _box(axes, 5.0, 7.0, "attention  $b$\n$x\\circ z$ ,  $x\\circ e^{z/T}/A$ ,  softmax", width=4.8)
        _box(axes, 5.0, 4.8, "residual stream\n$f = U_C\\,b + u_q$", width=4.8)
        _box(axes, 1.5, 4.8, "query\n$u_q$", width=1.7)
        _box(
            axes,
            5.0,
            2.6,
            "hidden nodes  $h_k = \\phi(w_k^\\top f)$\n$w_k^\\top f = \\sum_l b_l\\,v_{kl} + w_k^\\top u_q$",
            width=4.8,
        )
        _box(axes, 9.1, 2.6, "lower MLP\n$w_k$\n$v_k = U_C^\\top w_k$", color=COLORS[2], width=2.4)
        _box(axes, 5.0, 0.6, "layers above: loss $L(h_1,\\ldots,h_K)$", width=4.8, height=0.9)
        for start, end in (
            ((2.2, 8.6), (4.2, 7.7)),
            ((7.8, 8.6), (5.8, 7.7)),
            ((5.0, 6.3), (5.0, 5.5)),
            ((2.35, 4.8), (2.6, 4.8)),
            ((5.0, 4.1), (5.0, 3.3)),
            ((7.9, 2.6), (7.45, 2.6)),
            ((5.0, 1.9), (5.0, 1.05)),
        ):
            axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color="#333333"))
        axes.text(7.9, 0.5, "thick frame: trained", fontsize=9, ha="left", color="#333333")
    return figure


def _box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    width: float = 3.6,
    height: float = 1.35,
    color: str | None = None,
    size: float = 10,
) -> None:
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner,
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.15",
            edgecolor=color or "#333333",
            facecolor=_LEARNT if color else _PLAIN,
            linewidth=2.6 if color else 1.0,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=size)
