"""The latent tree with two chosen leaves, and co-occurrence against the height of their common ancestor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, LINES, MARKERS, new_figure, style
from joma_lib.latent_tree import LatentTree


def co_occurrence_tree(
    tree: LatentTree, leaves: tuple[int, int], *, rhos: Sequence[float] = (0.95, 0.8, 0.5, 0.0)
) -> Figure:
    """Draw a small tree with two leaves m, l and the path between them; beside it P(l on | m on) against H for each rho.

    The point H = L (two first-level latents) is drawn hollow: there the joint law of the latents at the root enters.
    The dashed line is P(l on), without the condition, for the largest rho.
    """
    with style():
        figure, axes = new_figure(1, 2, size=(8.4, 3.3))
        _draw_tree(axes[0, 0], tree, leaves)
        ax = axes[0, 1]
        for index, rho in enumerate(rhos):
            other = LatentTree(tree.depth, tree.branching, rho, tree.root)
            heights = np.arange(1, tree.depth + 1)
            values = [other.co_occurrence(int(height)) for height in heights]
            look = {
                "color": COLORS[index % len(COLORS)],
                "linestyle": LINES[index % len(LINES)],
                "marker": MARKERS[index % len(MARKERS)],
            }
            ax.plot(heights, values, **look, label=rf"$\rho$ = {rho:g}")
            ax.plot(heights[-1:], values[-1:], **look, markerfacecolor="white")
        ax.set(xlabel="height H of the common ancestor", ylabel="P(leaf l on | leaf m on)")
        ax.set_xticks(range(1, tree.depth + 1), [*map(str, range(1, tree.depth)), f"{tree.depth} = L"])
        ax.legend()
    return figure


def _draw_tree(ax: Axes, tree: LatentTree, leaves: tuple[int, int]) -> None:
    places = [np.arange(tree.leaves, dtype=float)]
    for parents in reversed(tree.parents):
        above = np.bincount(parents, places[0]) / np.bincount(parents)
        places.insert(0, above)
    marked: list[set[int]] = [set() for _ in places]
    height = tree.height(*leaves)
    for leaf in leaves:
        node = leaf
        for level in range(tree.depth, tree.depth - height - 1, -1):
            marked[level].add(node)
            if level > 0:
                node = int(tree.parents[level - 1][node])
    for level in range(1, tree.depth + 1):
        for node, parent in enumerate(tree.parents[level - 1]):
            strong = node in marked[level] and int(parent) in marked[level - 1]
            color, width = (COLORS[1], 2.4) if strong else ("#999999", 0.8)
            ends = [places[level][node], places[level - 1][parent]]
            ax.plot(ends, [-level, 1 - level], color=color, linestyle="-", linewidth=width, zorder=1)
    for level, xs in enumerate(places):
        colors = [COLORS[1] if node in marked[level] else "white" for node in range(len(xs))]
        ax.scatter(xs, np.full(len(xs), -level), s=38, c=colors, edgecolors="black", zorder=2)
    for leaf, name in zip(leaves, ("m", "l"), strict=True):
        ax.annotate(f"${name}$", (leaf, -tree.depth), (0, -14), textcoords="offset points", ha="center")
    names = ["label $y_0$", "first level", *[""] * (tree.depth - 2), "leaves (tokens)"][: tree.depth + 1]
    ax.set_yticks([-level for level in range(tree.depth + 1)], names)
    ax.set_xticks([])
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title(f"common ancestor at height H = {height}")
