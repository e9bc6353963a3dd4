"""Theorem 5 on a drawn binary tree: how often a leaf is on when another one is."""

from __future__ import annotations

import sympy as sp

from joma_lib.explore._base import Explorer, Range, State
from joma_lib.explore._drawing import Axis, Panel, Shape
from joma_lib.explore._printed import model_script
from joma_lib.latent_tree import SYMBOLS, LatentTree, formula

__all__ = ["latent_tree"]

_DEEPEST = 5


def root_law(rho_0: float) -> tuple[list[float], list[list[float]]]:
    """Return (p, P) of two equally likely labels, each of which favours its own first-level latent, with this rho_0."""
    on, apart = (1 - rho_0) / 2, (1 - abs(rho_0)) / 4
    return [0.5, 0.5], [[on + apart, on - apart], [on - apart, on + apart]]


def _named(apart: bool) -> sp.Expr:
    """Return the chapter's formula in symbols whose names JavaScript can bear."""
    return formula(apart).subs({symbol: sp.Symbol(name) for name, symbol in SYMBOLS.items()})


def _place(depth: int, height: int, i: int) -> tuple[float, float]:
    return (i + 0.5) / 2 ** (depth - height), float(height)


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _evaluate(rho: float, rho_0: float, L: float, H: float) -> State:
    L, H = int(L), min(int(H), int(L))
    tree = LatentTree(depth=L, branching=2, rho=rho, root=root_law(rho_0))
    heights = list(range(1, L + 1))
    p = [tree.co_occurrence(height) for height in heights]
    edges = [
        point
        for h in heights
        for i in range(2 ** (L - h + 1))
        for point in (_place(L, h - 1, i), _place(L, h, i // 2))
    ]
    partner = 2 ** (H - 1)
    path = [
        point
        for leaf in (0, partner)
        for h in heights[:H]
        for point in (_place(L, h - 1, leaf >> (h - 1)), _place(L, h, leaf >> h))
    ]
    base = (1 - rho ** (L - 1) * rho_0) / 2
    leaves = range(2**L)
    shapes = {
        "edges": _columns(edges),
        "path": _columns(path),
        "given": _columns([_place(L, 0, 0)]),
        "partners": _columns([_place(L, 0, partner + i) for i in range(partner)]),
        "meet": _columns([_place(L, H, 0)]),
        "curve": ([float(h) for h in heights], p),
        "chosen": ([float(H)], [p[H - 1]]),
        "base": ([1.0, float(L)], [base, base]),
        "leaves": (
            [_place(L, 0, i)[0] for i in leaves],
            [p[tree.height(0, i) - 1] if i else 1.0 for i in leaves],
        ),
    }
    signs = [[1 - 2 * on for on in row] for row in root_law(rho_0)[1]]
    both = sum(0.5 * first * second for first, second in signs)
    numbers = {
        "H": H,
        "L": L,
        "rho": rho,
        "both": both,
        "p": p,
        "now": p[H - 1],
        "base": base,
        "lift": p[H - 1] / base,
    }
    return State(numbers, shapes, sentence=1 if H == L else 0)


def latent_tree() -> Explorer:
    """Return the explorer of Theorem 5: P(leaf l on | leaf m on) on a binary tree, by the height H where they meet.

    Sliders: rho, rho_0 of the first-level latents, depth L, height H. Two equally likely labels favour one first-level
    latent each. Its JavaScript evaluates `joma_lib.latent_tree.formula`. Chapter `latent_tree`.

    >>> numbers = latent_tree().state(rho=0.0, rho_0=0.0, H=1).numbers
    >>> numbers["now"], numbers["base"]
    (0.5, 0.5)
    """
    shares = ((0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1, "1"))
    panels = (
        Panel(
            "tree",
            "The tree: leaf m, and the leaves that meet it at height H",
            Axis("leaves", 0, 1, ()),
            Axis(
                "height above the leaves",
                -0.3,
                _DEEPEST + 0.2,
                tuple((i, str(i)) for i in range(_DEEPEST + 1)),
            ),
            (
                Shape("edges", "pairs", width=1, opacity=0.6),
                Shape("path", "pairs", "way between them", color=1, width=3),
                Shape("given", "squares", "m: known to be on", color=1),
                Shape("partners", "dots", "l: meets m at H", color=2),
                Shape("meet", "dots"),
            ),
            "A binary tree; the first leaf, the leaves that meet it at the chosen height, and the way between them are marked.",
        ),
        Panel(
            "leaves",
            "How often each leaf is on, given m",
            Axis("leaves, in the order of the tree", 0, 1, ()),
            Axis("probability", 0, 1, shares),
            (Shape("leaves", "bars", color=2),),
            "Bars under the leaves of the tree: the probability that each is on when the first is.",
            bar=3,
        ),
        Panel(
            "curve",
            "The same by height: near relatives first",
            Axis("height H", 0.7, _DEEPEST + 0.3, tuple((i, str(i)) for i in range(1, _DEEPEST + 1))),
            Axis("P(l on | m on)", 0, 1, shares),
            (
                Shape("curve", "line", "given m", width=2),
                Shape("base", "line", "without knowing m", color=3, dash=1),
                Shape("chosen", "squares", "at H", color=1),
            ),
            "Probability that a leaf is on, given the other, by the height at which they meet; a dashed line shows it without that knowledge.",
        ),
    )
    return Explorer(
        name="tree",
        title="Theorem 5: who is on together in a latent tree",
        controls=(
            Range("rho", "ρ, how faithfully an edge copies its bit", -1, 1, 0.05, 0.8),
            Range(
                "rho_0",
                "ρ<sub>0</sub> of the first-level latents (positive: mostly off)",
                -0.8,
                0.8,
                0.05,
                0.4,
            ),
            Range("L", "depth L", 2, _DEEPEST, 1, 4, digits=0),
            Range("H", "height H where l and m meet (at most L)", 1, _DEEPEST, 1, 2, digits=0),
        ),
        panels=panels,
        sentences=(
            "L = {L:0}, H = {H:0}: P(l on | m on) = {now:4}, against {base:4} without knowing m: {lift:2} times as often.",
            "L = {L:0}, H = L: P(l on | m on) = {now:4}, against {base:4} without knowing m: {lift:2} times as often. Here l and m hang under "
            "different first-level latents, and the law of those two enters.",
        ),
        evaluate=_evaluate,
        script=model_script("tree.js", together=_named(False), apart=_named(True)),
    )
