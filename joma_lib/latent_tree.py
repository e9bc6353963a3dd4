"""Theorem 5: the hierarchical binary latent tree, exact co-occurrence of its leaves, and a sampler.

A label y_0 in {1..D} stands at the root. The first-level latents depend on it, independently of each other; below,
every edge keeps the bit of the node above with probability (1 + rho)/2. Leaves are the tokens: 1 = on. How often two
leaves are on together depends on the height of their lowest common ancestor alone, up to the first-level latents above
them. Here by formula (`co_occurrence`, the SymPy expression of `formula`, lambdified), by message passing
(`conditional`) and by enumeration of a small tree (`enumerate_conditional`). Chapter: latent_tree.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import sympy as sp
from numpy.typing import ArrayLike

__all__ = ["SYMBOLS", "LatentTree", "formula"]

_MOST_NODES = 20
_SLACK = 1e-9

SYMBOLS = {
    name: sp.Symbol(tex, real=True)
    for name, tex in {
        "rho": "rho",
        "rho_m": "rho_0^beta",
        "rho_l": "rho_0^alpha",
        "both": "kappa_alpha_beta",
    }.items()
} | {name: sp.Symbol(name, integer=True, positive=True) for name in ("L", "H")}
"""Symbols of `formula`: rho; rho_m, rho_l = E[1 - 2y] of the first-level latent above leaf m, l; both = E of the product."""


def formula(apart: bool = False) -> sp.Expr:
    """Return P(leaf l on | leaf m on) as a SymPy expression in `SYMBOLS` (Theorem 5).

    Parameters
    ----------
    apart : False for leaves under one first-level latent (H < L), True for H = L, where the paper's formula fails.

    >>> formula().subs({SYMBOLS["rho_m"]: 0, SYMBOLS["H"]: 1})
    rho**2/2 + 1/2
    """
    rho, top_m, top_l, both, depth, height = (
        SYMBOLS[name] for name in ("rho", "rho_m", "rho_l", "both", "L", "H")
    )
    reach = rho ** (depth - 1)
    if apart:
        above = 1 - reach * top_l - reach * top_m + reach**2 * both
    else:
        above = 1 + rho ** (2 * height) - 2 * reach * top_m
    return above / (2 * (1 - reach * top_m))


@cache
def _numeric(apart: bool) -> Callable[..., float]:
    return sp.lambdify(list(SYMBOLS.values()), formula(apart), "numpy")


@dataclass(frozen=True, eq=False)
class LatentTree:
    """A hierarchical binary latent tree.

    Parameters
    ----------
    depth : L >= 1, edges from the root label to a leaf
    branching : children of a node: one int, or one entry a level (the first: the number A of first-level latents); an
        entry may itself be a sequence, one int a node of that level, for a tree that is uneven within a level
    rho : in [-1, 1]; below the first level an edge keeps the bit with probability (1 + rho)/2
    root : (p, P); p [D] label probabilities, P [D, A] probability that a first-level latent is on given the label

    Raises
    ------
    ValueError, TypeError : naming the value that cannot be, and what can.

    >>> tree = LatentTree(depth=3, branching=2, rho=0.8, root=([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> tree.leaves
    8
    >>> round(tree.co_occurrence(1), 3), round(tree.co_occurrence(2), 3), round(tree.co_occurrence(3), 3)
    (0.82, 0.705, 0.369)
    """

    depth: int
    branching: int | Sequence[int | Sequence[int]]
    rho: float
    root: tuple[ArrayLike, ArrayLike]

    def __post_init__(self) -> None:
        depth = _integer(self.depth, "depth")
        if depth < 1:
            raise ValueError(f"depth is {depth}; a tree has at least 1 edge from the root label to a leaf")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "_children", _children(self.branching, depth))
        if isinstance(self.rho, (str, bytes)) or np.ndim(self.rho) != 0:
            raise TypeError(f"rho is {self.rho!r}; give one number in [-1, 1]")
        rho = float(self.rho)
        if not -1 <= rho <= 1:
            raise ValueError(f"rho is {rho}; (1 + rho)/2 is a probability, so keep rho in [-1, 1]")
        object.__setattr__(self, "rho", rho)
        object.__setattr__(self, "root", _root(self.root, self.widths[1]))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Number of nodes at each level, from the root (1) to the leaves."""
        return (1, *(int(children.sum()) for children in self._levels))

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return self.widths[-1]

    @cached_property
    def parents(self) -> tuple[np.ndarray, ...]:
        """For levels 1..L, the index of each node's parent in the level above."""
        return tuple(np.repeat(np.arange(len(children)), children) for children in self._levels)

    @property
    def rho_0(self) -> np.ndarray:
        """E[1 - 2y] of each first-level latent, [A]; positive: usually off."""
        p, on = self._root
        return 1 - 2 * p @ on

    def first_level(self, leaf: int) -> int:
        """Index of the first-level latent above a leaf."""
        return int(self._ancestors(leaf)[-2])

    def height(self, leaf: int, other: int) -> int:
        """Edges from two leaves up to their lowest common ancestor (0: the same leaf).

        >>> tree = LatentTree(2, 2, 0.5, ([1.0], [[0.5, 0.5]]))
        >>> [tree.height(0, leaf) for leaf in range(4)]
        [0, 1, 2, 2]
        """
        same = [a == b for a, b in zip(self._ancestors(leaf), self._ancestors(other), strict=True)]
        return same.index(True)

    def co_occurrence(self, height: int, *, branch: int = 0, other: int = 1) -> float:
        """Return P(leaf l on | leaf m on) when their lowest common ancestor is `height` edges up (Theorem 5).

        `branch` is the first-level latent above the conditioning leaf m; `other`, the one above l, counts when
        height = L only. For 1 <= H < L: (1 + rho^2H - 2 rho^(L-1) rho_0) / (2 - 2 rho^(L-1) rho_0); for H = L the
        first-level latents differ and their joint law enters (see `formula`). Chapter: latent_tree.

        Raises
        ------
        ValueError : no such height or latent, no such pair of leaves in this tree, or a leaf m that is never on.
        """
        height, branch = _integer(height, "height"), _integer(branch, "branch")
        firsts = self.widths[1]
        if not 1 <= height <= self.depth:
            raise ValueError(
                f"height is {height}; two leaves meet between 1 and depth = {self.depth} edges up"
            )
        if not 0 <= branch < firsts:
            raise ValueError(f"branch is {branch}; the first-level latents are 0 to {firsts - 1}")
        apart = height == self.depth
        if apart:
            other = _integer(other, "other")
            if not 0 <= other < firsts or other == branch:
                raise ValueError(
                    f"other is {other}; leaves that meet at the root hang under two first-level latents, "
                    f"so give one of 0 to {firsts - 1} that is not branch = {branch}"
                )
        elif not self._has_pair(height, branch):
            raise ValueError(
                f"height is {height}, but under first-level latent {branch} no two leaves meet there; "
                "give a level with at least 2 children"
            )
        p, on = self._root
        signs = 1 - 2 * on
        means = p @ signs
        top_l = means[other] if apart else 0.0
        both = p @ (signs[:, other] * signs[:, branch]) if apart else 0.0
        if 1 - self.rho ** (self.depth - 1) * means[branch] <= 0:
            raise ValueError(
                f"leaves under first-level latent {branch} are never on; raise its probability in root"
            )
        return float(_numeric(apart)(self.rho, means[branch], top_l, both, self.depth, height))

    def conditional(self, leaf: int) -> np.ndarray:
        """Return P(each leaf on | `leaf` on), [leaves], by message passing: exact, any tree, O(nodes).

        Upwards along the path of `leaf`, through the labels, and down to every other leaf.

        >>> tree = LatentTree(2, 2, 0.5, ([1.0], [[0.5, 0.5]]))
        >>> tree.conditional(0).tolist()
        [1.0, 0.625, 0.5, 0.5]
        """
        path = self._ancestors(leaf)  # from the leaf (level L) to the root (level 0)
        keep = np.array([[1 + self.rho, 1 - self.rho], [1 - self.rho, 1 + self.rho]]) / 2
        up = [np.array([0.0, 1.0])]  # up[i]: likelihood of the evidence given the node i edges above the leaf
        for _ in range(self.depth - 1):
            up.append(keep @ up[-1])
        p, on = self._root
        first = path[self.depth - 1]
        law = np.stack([1 - on, on], axis=-1)  # [D, A, 2]
        labels = p * (law[:, first] @ up[-1])
        evidence = labels.sum()
        if evidence <= 0:
            raise ValueError(
                f"leaf {leaf} is never on; raise the probability of its first-level latent in root"
            )
        belief = np.einsum("d,dan->an", labels / evidence, law)
        belief[first] = p @ law[:, first] * up[-1] / evidence
        for level in range(2, self.depth + 1):
            above = path[self.depth - level + 1]
            message = belief[self.parents[level - 1]] @ keep
            on_path = path[self.depth - level]
            i = self.depth - level
            cavity = np.divide(belief[above], up[i + 1], out=np.zeros(2), where=up[i + 1] > 0)
            message[on_path] = (cavity @ keep) * up[i]
            belief = message
        return belief[:, 1]

    def enumerate_conditional(self) -> np.ndarray:
        """Return P(l on | m on), [leaves l, leaves m], by summing over all states of a small tree.

        Raises
        ------
        ValueError : more than 20 nodes.

        >>> tree = LatentTree(2, 2, 0.5, ([1.0], [[0.5, 0.5]]))
        >>> tree.enumerate_conditional()[:, 0].tolist()
        [1.0, 0.625, 0.5, 0.5]
        """
        nodes = sum(self.widths[1:])
        if nodes > _MOST_NODES:
            raise ValueError(
                f"the tree has {nodes} nodes; enumeration takes at most {_MOST_NODES}, use conditional"
            )
        states = np.array(list(itertools.product((0, 1), repeat=nodes)), dtype=np.int8)
        levels = np.split(states, np.cumsum(self.widths[1:])[:-1], axis=1)
        p, on = self._root
        given = np.where(levels[0][:, None, :] == 1, on, 1 - on).prod(axis=-1)  # [states, D]
        weight = given @ p
        for level in range(1, self.depth):
            kept = levels[level] == levels[level - 1][:, self.parents[level]]
            weight = weight * np.where(kept, (1 + self.rho) / 2, (1 - self.rho) / 2).prod(axis=1)
        bits = levels[-1].astype(float)
        joint = bits.T @ (weight[:, None] * bits)
        with np.errstate(invalid="ignore", divide="ignore"):
            return joint / np.diag(joint)

    def sample(self, n: int, generator: Any) -> tuple[Any, Any]:
        """Draw n samples: (leaves [n, leaves] of 0/1, labels [n] in 0..D-1).

        Parameters
        ----------
        n : number of samples
        generator : `numpy.random.Generator` (NumPy arrays come back) or `torch.Generator` (tensors, on its device)

        Raises
        ------
        TypeError : any other generator; global random streams are never used.

        >>> tree = LatentTree(2, 2, 0.5, ([1.0], [[0.5, 0.5]]))
        >>> leaves, labels = tree.sample(5, np.random.default_rng(0))
        >>> leaves.shape, labels.shape
        ((5, 4), (5,))
        """
        n = _integer(n, "n")
        if n < 0:
            raise ValueError(f"n is {n}; draw 0 or more samples")
        torch = sys.modules.get("torch")
        if isinstance(generator, np.random.Generator):
            return self._draw(n, generator.random)
        if torch is not None and isinstance(generator, torch.Generator):
            leaves, labels = self._draw(
                n,
                lambda shape: (
                    torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
                    .cpu()
                    .numpy()
                ),
            )
            device = generator.device
            return torch.from_numpy(leaves).to(device), torch.from_numpy(labels).to(device)
        raise TypeError(
            f"generator is a {type(generator).__name__}; give numpy.random.default_rng(seed) or a torch.Generator"
        )

    def _draw(self, n: int, uniform: Callable[[Any], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        p, on = self._root
        labels = np.searchsorted(np.cumsum(p)[:-1], uniform((n,)), side="right").astype(np.int64)
        bits = uniform((n, self.widths[1])) < on[labels]
        for parents in self.parents[1:]:
            bits = bits[:, parents] ^ (uniform((n, len(parents))) < (1 - self.rho) / 2)
        return bits.astype(np.int64), labels

    @property
    def _levels(self) -> tuple[np.ndarray, ...]:
        return self.__dict__["_children"]

    @property
    def _root(self) -> tuple[np.ndarray, np.ndarray]:
        p, on = self.root
        return np.asarray(p), np.asarray(on)

    def _ancestors(self, leaf: int) -> list[int]:
        """Index of the leaf in its level, of its parent, ..., of the root."""
        leaf = _integer(leaf, "leaf")
        if not 0 <= leaf < self.leaves:
            raise ValueError(f"leaf is {leaf}; the leaves are 0 to {self.leaves - 1}")
        path = [leaf]
        for parents in reversed(self.parents):
            path.append(int(parents[path[-1]]))
        return path

    def _has_pair(self, height: int, branch: int) -> bool:
        under = np.array([branch])
        for level in range(1, self.depth - height):
            under = np.flatnonzero(np.isin(self.parents[level], under))
        return bool((self._levels[self.depth - height][under] >= 2).any())


def _integer(value: Any, name: str) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}; give an int")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; give an int") from None


def _children(branching: Any, depth: int) -> tuple[np.ndarray, ...]:
    """Number of children of every node, one array a level."""
    several = (
        isinstance(branching, (list, tuple, np.ndarray)) and np.ndim(np.asarray(branching, dtype=object)) > 0
    )
    entries = list(branching) if several else [branching] * depth
    if len(entries) != depth:
        raise ValueError(f"branching has {len(entries)} entries; give one int, or depth = {depth} of them")
    levels, nodes = [], 1
    for level, entry in enumerate(entries):
        if isinstance(entry, (list, tuple, np.ndarray)) and np.ndim(entry) == 1:
            children = np.array([_integer(item, f"branching[{level}]") for item in entry], dtype=np.int64)
            if len(children) != nodes:
                raise ValueError(
                    f"branching[{level}] has {len(children)} entries; level {level} has {nodes} nodes"
                )
        else:
            children = np.full(nodes, _integer(entry, f"branching[{level}]"), dtype=np.int64)
        if (children < 1).any():
            raise ValueError(f"branching[{level}] is {entry}; a node above the leaves has at least 1 child")
        levels.append(children)
        nodes = int(children.sum())
    return tuple(levels)


def _root(root: Any, firsts: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        p, on = root
        p, on = np.array(p, dtype=float), np.array(on, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(
            f"root is {root!r}; give (p, P) with p [labels] and P [labels, first-level latents]"
        ) from None
    if p.ndim != 1 or len(p) == 0 or on.shape != (len(p), firsts):
        raise ValueError(
            f"root has shapes {p.shape} and {on.shape}; give p [D] and P [D, A] with A = {firsts} first-level latents"
        )
    if not (p >= 0).all() or not abs(p.sum() - 1) < _SLACK:
        raise ValueError(f"the label probabilities are {p.tolist()}; they must be >= 0 and sum to 1")
    if not ((on >= 0) & (on <= 1)).all():
        raise ValueError(f"P holds {on.min()} to {on.max()}; probabilities lie in [0, 1]")
    p, on = p / p.sum(), on.copy()
    p.flags.writeable = on.flags.writeable = False
    return p, on
