"""Theorem 5: formula, message passing and enumeration agree; the sampler agrees within its error bars."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from joma_lib.latent_tree import SYMBOLS, LatentTree, formula


def _tree(depth=3, branching=2, rho=0.7, labels=3, seed=0):
    rng = np.random.default_rng(seed)
    firsts = branching if isinstance(branching, int) else branching[0]
    p = rng.dirichlet(np.ones(labels))
    return LatentTree(depth, branching, rho, (p, rng.uniform(0.05, 0.95, (labels, firsts))))


TREES = [
    _tree(),
    _tree(depth=1, branching=4),
    _tree(depth=2, branching=(3, 2), rho=-0.4),
    _tree(depth=3, branching=(2, 1, 3), labels=1),
    _tree(depth=4, branching=(2, 1, 2, 2), rho=0.9, labels=4),
    _tree(depth=3, branching=(2, (1, 3), (2, 1, 1, 3)), rho=0.6),
    _tree(rho=0.0),
    _tree(rho=1.0),
    _tree(rho=-1.0),
]


def _by_formula(tree: LatentTree) -> np.ndarray:
    table = np.ones((tree.leaves, tree.leaves))
    for m in range(tree.leaves):
        for other in range(tree.leaves):
            if other != m:
                pair = {"branch": tree.first_level(m), "other": tree.first_level(other)}
                table[other, m] = tree.co_occurrence(tree.height(other, m), **pair)
    return table


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"L{tree.depth}-{tree.leaves}")
def test_formula_message_passing_and_enumeration_agree(tree):
    exact = tree.enumerate_conditional()
    passed = np.stack([tree.conditional(leaf) for leaf in range(tree.leaves)], axis=1)
    np.testing.assert_allclose(passed, exact, rtol=0, atol=1e-12)
    np.testing.assert_allclose(_by_formula(tree), exact, rtol=0, atol=1e-12)


@given(
    depth=st.integers(1, 7),
    rho=st.floats(-1, 1),
    labels=st.integers(1, 5),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_formula_is_message_passing_on_any_tree(depth, rho, labels, seed, data):
    branching = (data.draw(st.integers(2, 4)), *data.draw(st.tuples(*[st.integers(1, 3)] * (depth - 1))))
    tree = _tree(depth, branching, rho, labels, seed)
    m = data.draw(st.integers(0, tree.leaves - 1))
    passed = tree.conditional(m)
    for other in np.random.default_rng(seed).integers(0, tree.leaves, 5):
        if other != m:
            pair = {"branch": tree.first_level(m), "other": tree.first_level(other)}
            assert tree.co_occurrence(tree.height(m, other), **pair) == pytest.approx(
                passed[other], abs=1e-12
            )


def test_the_papers_formula_fails_at_the_root_and_the_difference_is_the_stated_one():
    tree = _tree(depth=3, branching=2, labels=3)
    exact = tree.enumerate_conditional()[-1, 0]
    rho_0, reach = tree.rho_0[0], tree.rho**2
    paper = (1 + tree.rho**6 - 2 * reach * rho_0) / 2 / (1 - reach * rho_0)
    assert tree.co_occurrence(3) == pytest.approx(exact, abs=1e-14)
    assert abs(paper - exact) > 0.01


def test_which_first_level_latent_conditions_matters():
    tree = _tree(depth=3, branching=(3, 2, 2))
    values = [tree.co_occurrence(1, branch=branch) for branch in range(3)]
    assert len({round(value, 6) for value in values}) == 3
    assert tree.co_occurrence(3, branch=0, other=2) != pytest.approx(tree.co_occurrence(3, branch=2, other=0))
    p, on = (np.asarray(part) for part in tree.root)
    np.testing.assert_allclose(tree.rho_0, 1 - 2 * p @ on)


def test_thousands_of_leaves():
    tree = _tree(depth=12, branching=2, rho=0.95)
    row = tree.conditional(1234)
    assert row.shape == (4096,)
    for height in range(1, 12):
        other = 1234 ^ (1 << (height - 1))
        assert tree.height(other, 1234) == height
        branch = tree.first_level(1234)
        assert row[other] == pytest.approx(tree.co_occurrence(height, branch=branch), abs=1e-12)
    assert tree.co_occurrence(1) > tree.co_occurrence(5) > tree.co_occurrence(11)


def test_the_symbolic_formula_is_derived_from_the_messages():
    """P(l, m on) from the expectations of the signs s = 1 - 2 y along the path, for both cases."""
    rho, top_m, top_l, both = (SYMBOLS[name] for name in ("rho", "rho_m", "rho_l", "both"))
    depth, height = SYMBOLS["L"], SYMBOLS["H"]
    mean_m, mean_l = rho ** (depth - 1) * top_m, rho ** (depth - 1) * top_l
    together = (1 - mean_m - mean_m + rho ** (2 * height)) / 4
    assert sp.simplify(together / ((1 - mean_m) / 2) - formula()) == 0
    apart = (1 - mean_m - mean_l + rho ** (2 * (depth - 1)) * both) / 4
    assert sp.simplify(apart / ((1 - mean_m) / 2) - formula(apart=True)) == 0


@pytest.mark.parametrize("index", [0, 2, 5])
def test_sampler_agrees_within_its_error_bars(index):
    tree, n = TREES[index], 40_000
    leaves, labels = tree.sample(n, np.random.default_rng(index))
    assert leaves.shape == (n, tree.leaves) and labels.shape == (n,)
    assert set(np.unique(leaves)) <= {0, 1}
    p = np.asarray(tree.root[0])
    share = np.bincount(labels, minlength=len(p)) / n
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-12).all()
    exact, on = tree.enumerate_conditional(), leaves.sum(axis=0)
    measured = (leaves.T @ leaves) / on
    error = np.sqrt(exact * (1 - exact) / on) + 1e-12
    score = (measured - exact) / error
    assert np.abs(score).max() < 5
    off = ~np.eye(tree.leaves, dtype=bool)
    assert np.sqrt(np.mean(score[off] ** 2)) > 0.3  # error bars that are far too wide would see nothing


def test_sampler_keeps_the_labels_and_is_reproducible(global_state_untouched):
    torch = pytest.importorskip("torch")
    tree = LatentTree(1, 2, 0.5, ([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]))
    leaves, labels = tree.sample(1000, np.random.default_rng(3))
    np.testing.assert_array_equal(leaves[:, 1], labels)
    np.testing.assert_array_equal(leaves, tree.sample(1000, np.random.default_rng(3))[0])
    tensors = [tree.sample(1000, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert isinstance(tensors[0][0], torch.Tensor) and torch.equal(tensors[0][0], tensors[1][0])
    assert torch.equal(tensors[0][0][:, 1], tensors[0][1])
    assert tree.sample(0, np.random.default_rng(0))[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"depth": 0}, ValueError, "depth is 0"),
        ({"depth": 2.5}, TypeError, "depth is 2.5"),
        ({"branching": (2, 2)}, ValueError, "2 entries"),
        ({"branching": (2, 0, 2)}, ValueError, "at least 1 child"),
        ({"branching": (2, (1, 2, 3), 2)}, ValueError, "3 entries"),
        ({"rho": 1.2}, ValueError, "rho is 1.2"),
        ({"rho": float("nan")}, ValueError, "rho is nan"),
        ({"rho": "0.5"}, TypeError, "one number"),
        ({"root": ([0.5, 0.6], [[0.1, 0.2]] * 2)}, ValueError, "sum to 1"),
        ({"root": ([0.5, 0.5], [[0.1, 1.2]] * 2)}, ValueError, "in \\[0, 1\\]"),
        ({"root": ([0.5, 0.5], [[0.1]] * 2)}, ValueError, "A = 2"),
        ({"root": 3}, TypeError, "give \\(p, P\\)"),
    ],
)
def test_impossible_trees_are_refused_in_one_sentence(arguments, error, words):
    good = {"depth": 3, "branching": 2, "rho": 0.5, "root": ([0.5, 0.5], [[0.1, 0.9], [0.9, 0.1]])}
    LatentTree(**good)
    with pytest.raises(error, match=words) as caught:
        LatentTree(**{**good, **arguments})
    assert "\n" not in str(caught.value)


def test_impossible_questions_are_refused():
    tree = _tree(depth=3, branching=(2, 1, 2))
    for height in (0, 4):
        with pytest.raises(ValueError, match=f"height is {height}"):
            tree.co_occurrence(height)
    with pytest.raises(ValueError, match="no two leaves meet"):
        tree.co_occurrence(2)
    with pytest.raises(ValueError, match="branch is 2"):
        tree.co_occurrence(1, branch=2)
    for other in (0, 2, -1):
        with pytest.raises(ValueError, match=f"other is {other}"):
            tree.co_occurrence(3, other=other)
    with pytest.raises(TypeError):
        tree.co_occurrence(1.5)
    with pytest.raises(ValueError, match="leaf is 4"):
        tree.conditional(4)
    with pytest.raises(ValueError, match="at most 20"):
        _tree(depth=5).enumerate_conditional()
    with pytest.raises(TypeError, match="default_rng"):
        tree.sample(3, 0)
    never = LatentTree(2, 2, 1.0, ([1.0], [[0.0, 0.5]]))
    with pytest.raises(ValueError, match="never on"):
        never.co_occurrence(1)
    with pytest.raises(ValueError, match="never on"):
        never.conditional(0)
    assert never.co_occurrence(2, branch=1, other=0) == 0


def test_import_brings_no_torch():
    code = "import sys, joma_lib.latent_tree; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
