"""Symbolic gradient flow: velocities, derivatives along it, and the normal form of sums."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from joma_lib.flow import Flow, collect

A, J, K = sp.symbols("i j k", integer=True)
M, N = sp.symbols("M N", integer=True, positive=True)
X, Z, V, R = (sp.IndexedBase(name) for name in "xzvr")


def numeric(expression: sp.Expr, size: dict[sp.Symbol, int], values: dict[str, np.ndarray]) -> float:
    """Write sums out for a concrete size and put numbers in."""
    written = expression.subs(size).doit()
    numbers = {
        atom: values[atom.base.name][tuple(int(index) - 1 for index in atom.indices)]
        for atom in written.atoms(sp.Indexed)
    }
    return float(written.subs(numbers))


def test_descent_on_symbols_and_matrices():
    w = sp.Matrix(2, 2, sp.symbols("w1:5"))
    flow = Flow.descent((w.T * w).trace() / 2, w)
    assert flow.derivative(w) == -w
    assert flow.velocity(sp.Symbol("other")) == 0
    rotation = Flow({w[0]: -w[1], w[1]: w[0]})
    assert rotation.is_conserved(w[0] ** 2 + w[1] ** 2)
    assert rotation.is_conserved(sp.Matrix([w[0] ** 2 + w[1] ** 2, w[3]]))
    assert not rotation.is_conserved(w[0])
    assert not rotation.is_conserved(w[0] ** 2 - w[1] ** 2)  # the wrong sign


def test_collect_preserves_the_value():
    random = np.random.default_rng(0)
    values = {name: random.normal(size=(3, 3) if name in "vr" else 3) for name in "xzvr"}
    inner = sp.Sum(sp.exp(Z[J]) * X[J], (J, 1, M))
    terms = [
        sp.Sum(X[A] * sp.exp(Z[A]) * V[K, A] / inner**2, (A, 1, M), (K, 1, M)),
        sp.Sum((X[A] + sp.Sum(V[A, J] * Z[J], (J, 1, M))) ** 2, (A, 1, M)),
        sp.Sum(X[A] * sp.Sum(X[J] * (V[A, J] + V[J, A]) * sp.Sum(R[J, K], (K, 1, M)), (J, 1, M)), (A, 1, M)),
        sp.Sum(X[A], (A, 1, M)) * sp.Sum(sp.Sum(Z[J] + 1, (J, 1, M)), (A, 1, M)) / inner,
    ]
    for term in terms:
        form = collect(term)
        assert collect(form) == form
        assert numeric(form, {M: 3}, values) == pytest.approx(numeric(term, {M: 3}, values), rel=1e-12)


def test_collect_makes_equal_sums_look_equal():
    total = sp.Sum(X[J] * sp.exp(Z[J]), (J, 1, M))
    assert collect(sp.Sum(X[A] * sp.exp(Z[A]) / total, (A, 1, M))) == 1
    swapped = sp.Sum(V[A, J] * X[A] * Z[J], (A, 1, M), (J, 1, N)) - sp.Sum(
        V[A, J] * X[A] * Z[J], (J, 1, N), (A, 1, M)
    )
    assert collect(swapped) == 0
    assert collect(sp.Sum(X[A] * X[J], (A, 1, M), (J, 1, M)) + sp.Sum(X[A], (A, 1, M)) ** 2) != 0
    clash = sp.Symbol("i_1", integer=True)
    assert clash in collect(sp.Sum(V[A, clash], (A, 1, M))).free_symbols


def test_families_move_as_autograd_says():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(1)
    sizes = {M: 4, N: 3}
    values = {
        "x": random.random((3, 4)),
        "z": random.normal(size=4),
        "v": random.normal(size=(2, 4)),
        "r": random.normal(size=(3, 2)),
    }
    n, nodes = sp.symbols("n", integer=True), 2
    raw = X[n, A] * sp.exp(Z[A])
    loss = sp.Sum(
        R[n, K] * raw / sp.Sum(raw.subs(A, J), (J, 1, M)) * V[K, A], (A, 1, M), (K, 1, nodes), (n, 1, N)
    )
    flow = Flow.descent(loss, Z[A], V[K, A])
    z, v = (torch.tensor(values[name], requires_grad=True) for name in "zv")
    b = torch.softmax(torch.log(torch.tensor(values["x"])) + z, 1)
    (torch.tensor(values["r"]) * (b @ v.T)).sum().backward()
    got = [numeric(flow.velocity(Z[sp.Integer(at)]), sizes, values) for at in range(1, 5)]
    np.testing.assert_allclose(got, -z.grad, rtol=1e-10)
    got = [
        [numeric(flow.velocity(V[sp.Integer(k), sp.Integer(at)]), sizes, values) for at in range(1, 5)]
        for k in (1, 2)
    ]
    np.testing.assert_allclose(got, -v.grad, rtol=1e-10)


def test_velocity_under_a_sum_keeps_indices_apart():
    flow = Flow({Z[A]: sp.Sum(V[A, J], (J, 1, M))})
    rate = flow.derivative(sp.Sum(X[J] * Z[J], (J, 1, M)))
    values = {"x": np.arange(3.0), "v": np.arange(9.0).reshape(3, 3) ** 2}
    assert numeric(rate, {M: 3}, values) == pytest.approx(float(values["x"] @ values["v"].sum(1)))


def test_bad_variables():
    with pytest.raises(TypeError, match="neither a Symbol nor an Indexed"):
        Flow({sp.Symbol("x") ** 2: 1})
    with pytest.raises(TypeError, match="distinct symbols"):
        Flow({V[A, A]: 1})
    with pytest.raises(TypeError, match="distinct symbols"):
        Flow({Z[1]: 1})
    with pytest.raises(ValueError, match="two velocities"):
        Flow({Z[A]: 1, Z[J]: 2})
    with pytest.raises(ValueError, match="empty"):
        Flow({})
