"""Theorem 3 in closed form against quadrature, Monte Carlo and finite differences; where fixed points are."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad

from joma_lib import cluster

CLOSED = ("linear", "relu", "erf", "gelu")
R, SIGMA = cluster.SYMBOLS["r"], cluster.SYMBOLS["sigma"]
MEANS = np.array([[1.0, 0.3, -0.2], [-0.4, 0.8, 0.5]])
STRENGTHS = np.array([0.6, -0.3])
W = np.array([0.7, -0.4, 0.9])


def by_quad(activation: str, r: float, sigma: float) -> float:
    """E[φ'(u)], adaptively, with the kinks and the middle of φ' as break points."""
    derivative = sp.lambdify(cluster.SYMBOLS["u"], cluster.slope(activation), ["scipy", "numpy"])
    middle = float(np.clip(-r / sigma, -11, 11))
    parts = [(-12.0, middle), (middle, 12.0)]
    pdf = lambda y: np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi)  # noqa: E731
    return sum(
        quad(lambda y: float(derivative(r + sigma * y)) * pdf(y), *part, epsabs=1e-13, limit=300)[0]
        for part in parts
    )


@pytest.mark.parametrize("activation", cluster.ACTIVATIONS)
@pytest.mark.parametrize(("r", "sigma"), [(0.3, 0.2), (-1.5, 2.0), (4.0, 1.0), (-10.0, 5.0)])
def test_averages_against_quadrature(activation, r, sigma):
    P, Q = cluster.averages(activation, r, sigma)
    assert float(P) == pytest.approx(by_quad(activation, r, sigma), abs=1e-10)
    step = 1e-4
    change = by_quad(activation, r + step, sigma) - by_quad(activation, r - step, sigma)
    assert float(Q) == pytest.approx(change / (2 * step), abs=1e-7)


@pytest.mark.parametrize("activation", CLOSED)
def test_closed_forms_solve_the_heat_equation(activation):
    """∂P/∂σ = σ ∂²P/∂r², and P → φ' as σ → 0: together they make P the Gaussian average of φ'."""
    P = cluster.averaged_slope(activation)
    assert sp.simplify(sp.diff(P, SIGMA) - SIGMA * sp.diff(P, R, 2)) == 0
    derivative = cluster.slope(activation).subs(cluster.SYMBOLS["u"], R)
    for value in (sp.Rational(-3, 2), sp.Rational(2, 3)):
        assert sp.simplify(sp.limit(P.subs(R, value), SIGMA, 0, "+") - derivative.subs(R, value)) == 0


@pytest.mark.parametrize("activation", cluster.ACTIVATIONS)
@pytest.mark.parametrize("bias", [0.0, -0.4])
def test_field_against_monte_carlo(activation, bias):
    exact = cluster.cluster_field(activation, W, MEANS, STRENGTHS, 0.5, bias=bias)
    mean, error = cluster.sampled_field(
        activation, W, MEANS, STRENGTHS, 0.5, bias=bias, samples=40_000, seed=3
    )
    assert (abs(mean - exact) < 4.5 * error).all()
    assert (error < 0.01).all()
    many = cluster.cluster_field(activation, np.stack([W, -W]), MEANS, STRENGTHS, 0.5, bias=bias)
    np.testing.assert_allclose(many[0], exact, rtol=1e-13)


def test_sampling_leaves_the_global_stream_and_repeats():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one = cluster.sampled_field("relu", W, MEANS, STRENGTHS, 0.5, samples=100, seed=1)
    two = cluster.sampled_field("relu", W, MEANS, STRENGTHS, 0.5, samples=100, seed=1)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("activation", "bias", "expected"),
    [
        ("relu", 0.5, [-2.3357]),
        ("tanh", 1.0, [3.5334]),
        ("erf", 1.0, [4.0]),
        ("gelu", 0.0, [-0.6617]),
        ("softplus", 0.0, [-8.0]),
        ("linear", 0.7, []),
        ("relu", 0.0, []),
        ("erf", 0.0, []),
        ("tanh", 0.0, []),
    ],
)
def test_fixed_points(activation, bias, expected):
    found = cluster.fixed_points(activation, 1.0, 0.5, bias=bias)
    np.testing.assert_allclose(found, expected, atol=6e-5)
    for c in found:
        assert abs(cluster.axis_field(activation, c, 1.0, 0.5, bias=bias)) < 1e-12


@pytest.mark.parametrize(("norm", "spread", "bias"), [(1.0, 0.5, 0.8), (2.0, 1.0, 0.3), (0.7, 0.6, -1.1)])
def test_exact_fixed_points(norm, spread, bias):
    """erf: x̄/(β s²) with a bias, none without. Softplus without bias: −2 x̄/s², for every ‖x̄‖."""
    assert cluster.fixed_points("erf", norm, spread, bias=bias) == pytest.approx([1 / (bias * spread**2)])
    assert cluster.fixed_points("erf", norm, spread).size == 0
    assert cluster.fixed_points("softplus", norm, spread, limit=20) == pytest.approx([-2 / spread**2])


@pytest.mark.parametrize(
    ("activation", "bias"), [("erf", 1.0), ("relu", 0.5), ("tanh", 1.0), ("gelu", 0.0), ("softplus", 0.0)]
)
def test_rates_are_the_jacobian(activation, bias):
    """The two eigenvalues agree with central differences of the field in three dimensions."""
    centre = np.array([[0.6, 0.8, 0.0]])
    (c,) = cluster.fixed_points(activation, 1.0, 0.5, bias=bias)
    along, across = cluster.fixed_rates(activation, c, 1.0, 0.5, bias=bias)
    step = 1e-4 * np.eye(3)
    field = lambda w: cluster.cluster_field(activation, w, centre, [1.0], 0.5, bias=bias)  # noqa: E731
    jacobian = ((field(c * centre + step) - field(c * centre - step)) / 2e-4).T
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-8)  # a gradient flow: φ(u) has a potential
    np.testing.assert_allclose(
        np.sort(np.linalg.eigvalsh(jacobian)), np.sort([along, across, across]), atol=1e-7
    )


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: cluster.slope("swish"), "swish"),
        (lambda: cluster.averaged_slope("tanh"), "tanh"),
        (lambda: cluster.averages("relu", 0.0, 0.0), "sigma"),
        (lambda: cluster.averages("relu", np.nan, 1.0), "finite"),
        (lambda: cluster.averages("tanh", 0.0, 41.0), "below 40"),
        (lambda: cluster.cluster_field("relu", [0.0, 0.0], [[1.0, 0.0]], [1.0], 0.5), "sigma"),
        (lambda: cluster.cluster_field("relu", [1.0], [[1.0, 0.0]], [1.0], 0.5), "tokens"),
        (lambda: cluster.cluster_field("relu", [1.0, 0.0], [[1.0, 0.0]], [np.inf], 0.5), "finite"),
        (lambda: cluster.cluster_field("relu", [1.0, 0.0], [[1.0, 0.0]], [1.0], -0.5), "spread"),
        (lambda: cluster.sampled_field("relu", [[1.0]], [[1.0]], [1.0], 0.5), "one w"),
        (lambda: cluster.sampled_field("relu", [1.0], [[1.0]], [1.0], 0.5, samples=1), "samples"),
        (lambda: cluster.fixed_points("relu", 1.0, 0.5, points=2), "points"),
        (lambda: cluster.fixed_points("relu", 1.0, 0.5, limit=0.0), "limit"),
        (lambda: cluster.fixed_points("relu", 0.0, 0.5), "norm"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(ValueError, match=word):
        call()
