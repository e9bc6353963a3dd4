"""The reduced flows: closed forms against solvers and quadrature, conserved quantities, orders, clear errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp
from scipy.special import erf

from joma_lib import dynamics
from joma_lib.dynamics import SYMBOLS

RNG = np.random.default_rng(20)
DELTA = np.array([0.3, -1.0, 0.95, 0.0, 0.3])


def solve(rate, v0, times, **options):
    times = np.asarray(times, dtype=float)
    options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13} | options
    return solve_ivp(rate, (0, times[-1]), np.asarray(v0, dtype=float), t_eval=times, **options).y.T


# Theorem 2


def test_growth_is_the_solution_up_to_the_blow_up():
    end = dynamics.blow_up_time(DELTA)
    assert end == pytest.approx(math.sqrt(math.pi / 2), rel=1e-15)
    times = end * np.array([0.0, 0.3, 0.9, 0.99, 0.9999])
    exact = dynamics.linear_growth(DELTA, times)
    assert np.abs(exact - solve(lambda t, v: DELTA * np.exp(v * v / 2), 0 * DELTA, times)).max() < 1e-8
    assert exact.shape == (5, 5) and not exact[0].any()


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=4).filter(lambda d: max(map(abs, d)) > 0.01),
    st.floats(0, 1 - 1e-12),
)
def test_the_erf_ratio_is_common_and_the_winner_known(delta, part):
    time = part * dynamics.blow_up_time(delta)
    v = dynamics.linear_growth(delta, [time])[0]
    assert np.allclose(erf(v / math.sqrt(2)), math.sqrt(2 / math.pi) * np.array(delta) * time, atol=1e-12)


def test_growth_keeps_its_digits_next_to_the_blow_up():
    left = 2.0**-40
    end = dynamics.blow_up_time([1.0])
    v = dynamics.linear_growth([1.0], [end * (1 - left)])[0, 0]
    assert math.erfc(v / math.sqrt(2)) == pytest.approx(left, rel=1e-3)  # t* itself is rounded to 2⁻⁵³
    assert math.isfinite(dynamics.linear_growth([1.0], [np.nextafter(end, 0)])[0, 0])


def test_losers_stop_at_their_limit():
    limits = dynamics.growth_limits(DELTA)
    last = dynamics.linear_growth(DELTA, [dynamics.blow_up_time(DELTA) * (1 - 1e-12)])[0]
    assert np.isneginf(limits[1]) and limits[3] == 0
    assert np.allclose(np.delete(limits, 1), np.delete(last, 1), atol=1e-9)
    assert limits[2] == pytest.approx(1.9599639845400545, abs=1e-12)  # the 97.5 % point of a normal variable


@pytest.mark.parametrize("scale", [0.0, 0.4])
def test_nodes_that_share_logits(scale):
    rng = np.random.default_rng(1)
    delta, v0 = rng.normal(size=(3, 4)), scale * rng.normal(size=(3, 4))
    times = np.array([0.0, 0.01, 0.03])
    exact = dynamics.node_growth(delta, times, v0=v0)

    def rate(_, flat):
        v = flat.reshape(3, 4)
        return (delta * np.exp(0.5 * (v * v).sum(axis=0))).ravel()

    assert np.abs(exact.reshape(3, -1) - solve(rate, v0.ravel(), times)).max() < 1e-9
    if scale == 0:
        assert dynamics.blow_up_time(delta) == pytest.approx(
            math.sqrt(math.pi / 2) / np.linalg.norm(delta, axis=0).max()
        )


def test_one_node_from_zero_is_theorem_2():
    times = [0.1, 0.7, 1.2]
    assert np.allclose(
        dynamics.node_growth(DELTA[None], times)[:, 0], dynamics.linear_growth(DELTA, times), atol=1e-13
    )


def test_a_start_far_on_the_other_side():
    times = np.array([1e-4, 0.5, 1.0])
    exact = dynamics.node_growth([[1.0]], times, v0=-6.0)[:, 0]
    assert np.abs(exact - solve(lambda t, v: np.exp(v * v / 2), [-6.0], times, first_step=1e-10)).max() < 1e-8


def test_under_cross_entropy_it_starts_as_theorem_2_and_a_solver_without_jacobian_agrees():
    rng = np.random.default_rng(3)
    x, targets = rng.dirichlet(np.ones(3), size=5), np.eye(4)[[0, 1, 2, 3, 0]]
    delta = (targets - 0.25).T @ x / 5
    early = 1e-3 * dynamics.blow_up_time(delta)
    v, g = dynamics.cross_entropy_growth(x, targets, [0.0, early])
    assert not v[0].any() and np.allclose(g[0], targets - 0.25)
    np.testing.assert_allclose(v[1], dynamics.node_growth(delta, [early])[0], atol=3e-6)

    def rate(_, state):
        v, c = state[:12].reshape(4, 3), state[12:]
        b = x * np.exp(0.5 * (v * v).sum(0))
        weights = np.exp(b @ v.T + c)
        g = targets - weights / weights.sum(1, keepdims=True)
        return np.concatenate([(g.T @ b / 5).ravel(), g.mean(0)])

    times = dynamics.blow_up_time(delta) * np.array([0.5, 1.0, 2.0])
    exact = solve(rate, np.zeros(16), times, rtol=1e-9)[:, :12].reshape(3, 4, 3)
    v, _ = dynamics.cross_entropy_growth(x, targets, times)
    assert np.abs(exact[-1]).max() > 1
    np.testing.assert_allclose(v, exact, atol=1e-3)


@pytest.mark.parametrize(
    "x, targets, times, words",
    [
        ([[1.0]], [[1.0], [1.0]], [1.0], "1 samples and targets 2"),
        ([1.0], [[1.0]], [1.0], "x has shape"),
        ([[1.0]], [[np.nan]], [1.0], "every entry must be finite"),
        ([[1.0]], [[1.0]], [1.0, 0.5], "times must increase"),
    ],
)
def test_cross_entropy_growth_refuses(x, targets, times, words):
    with pytest.raises(ValueError, match=words):
        dynamics.cross_entropy_growth(x, targets, times)


def test_linear_attention_is_a_linear_flow():
    delta, v0, z0 = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3)), RNG.normal(size=3)
    times = np.linspace(0, 2, 5)
    v, z = dynamics.linear_attention_growth(delta, times, z0=z0, v0=v0)
    conserved = z**2 - (v**2).sum(axis=1)
    assert np.abs(conserved - conserved[0]).max() < 1e-9 * (z**2).max()

    def rate(_, flat):
        w, y = flat[:6].reshape(2, 3), flat[6:]
        return np.concatenate([(delta * y).ravel(), (delta * w).sum(axis=0)])

    solved = solve(rate, np.concatenate([v0.ravel(), z0]), times)
    assert np.abs(solved - np.concatenate([v.reshape(5, -1), z], axis=1)).max() < 1e-8


def test_normalised_attention_has_a_slower_clock_and_no_blow_up():
    times = np.array([0.0, 0.5, 3.0, 8.0])
    exact = dynamics.normalized_growth(DELTA, times)

    def rate(_, v):
        e = np.exp(v * v / 2)
        return DELTA * e / e.sum()

    assert np.abs(exact - solve(rate, 0 * DELTA, times)).max() < 1e-9
    fast = np.array([0.1, 0.8, 1.2])
    slow = dynamics.softmax_clock(DELTA, fast)
    assert np.allclose(
        dynamics.normalized_growth(DELTA, slow), dynamics.linear_growth(DELTA, fast), atol=1e-11
    )
    late = dynamics.normalized_growth(DELTA, [1000.0, 1001.0])
    assert np.isfinite(late).all() and late[1, 1] - late[0, 1] == pytest.approx(-1.0, abs=1e-6)


# Theorem 4


@pytest.mark.parametrize(
    "mu, v0",
    [([1.0, 2.0, 4.0], 0.05), ([6.0, 1.0, -3.0], [-6.0, 0.9999, 5.0]), ([0.0, 0.0, 2.0], [-4.0, 0.0, 2.0])],
)
def test_salient_flow_is_the_solution(mu, v0):
    times = np.array([0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0, 5.0, 20.0])
    start = np.broadcast_to(v0, 3)
    solved = solve(lambda t, v: (np.array(mu) - v) * np.exp(v * v / 2), start, times, method="Radau")
    assert np.abs(dynamics.salient_flow(mu, v0, times) - solved).max() < 1e-8


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(-6, 6), st.floats(-6, 6), st.floats(1e-3, 0.999))
def test_time_and_flow_are_inverse(mu, v0, part):
    if abs(mu) < 0.01 or abs(mu - v0) < 0.01:
        return
    left = part * abs(1 - v0 / mu)
    time = dynamics.salient_time([mu], [v0], left)
    v = dynamics.salient_flow([mu], [v0], time)[0, 0]
    slope = abs(mu - v) * math.exp(v * v / 2)  # how much a rounding of the time moves v
    assert abs(abs(1 - v / mu) - left) * abs(mu) < 1e-9 + 1e-13 * slope * max(1.0, time[0])


def test_flow_is_finite_where_the_exponential_is_not():
    v = dynamics.salient_flow([50.0, 3.0, 1e3], [0.0, -60.0, -1e3], [0.0, 0.1, 1.0, 3.0])
    assert np.isfinite(v).all()
    assert v[-1, 0] == 50.0 and v[0, 1] == -60.0
    assert abs(v[1, 1]) < 60  # a start far out falls back at once


def test_quadrature_is_the_integral_of_theorem_4():
    mu, v0, left = 1.7, 0.3, 0.01
    start = 1 - v0 / mu
    rest = math.exp(-mu * mu / 2)
    offset = quad(lambda x: (math.exp(-(mu**2) * (1 - x) ** 2 / 2) - rest) / x, left, start, epsabs=1e-13)[0]
    assert dynamics.salient_offset([mu], v0, left)[0] == pytest.approx(offset, abs=1e-11)
    assert dynamics.salient_time([mu], v0, left)[0] == pytest.approx(
        rest * math.log(start / left) + offset, abs=1e-11
    )
    whole = quad(lambda x: (math.exp(-(mu**2) * (1 - x) ** 2 / 2) - rest) / x, 0, start, epsabs=1e-13)[0]
    assert dynamics.salient_offset([mu], v0)[0] == pytest.approx(whole, abs=1e-11)


def test_log_distance_goes_on_where_the_distance_underflows():
    mu, times = np.array([1.0, 2.0]), np.array([1.0, 50.0, 1e4])
    logs = dynamics.log_distance(mu, 0.05, times)
    early = dynamics.salient_flow(mu, 0.05, times)[0]
    assert np.allclose(logs[0], -np.log(1 - early / mu), atol=1e-10)
    offset = dynamics.salient_offset(mu, 0.05)
    predicted = np.exp(mu**2 / 2) * (times[:, None] - offset) - np.log(1 - 0.05 / mu)
    assert np.allclose(logs[1:], predicted[1:], rtol=1e-12)


def test_theorem_4_limit_is_reached_at_order_one_over_t():
    mu, times = np.array([2.0, 1.0]), np.array([1e3, 2e3, 4e3])
    logs = dynamics.log_distance(mu, 0.05, times)
    errors = np.abs(logs[:, 0] / logs[:, 1] / math.exp(1.5) - 1)
    assert np.allclose(errors[:-1] / errors[1:], 2, rtol=2e-2)


# Matrix flows and the published iteration


@pytest.mark.parametrize("attention", dynamics.ATTENTIONS)
def test_matrix_flow_solves_its_printed_right_hand_side(attention):
    mu, v0 = RNG.normal(size=(2, 3)), 0.1 * RNG.normal(size=(2, 3))
    formula = dynamics.right_hand_side("nonlinear", attention)
    weight = dynamics.attention_weight(attention)
    times = np.array([0.0, 1.0])
    before, _, after = dynamics.matrix_flow(mu, v0, [1 - 1e-4, 1.0, 1 + 1e-4], attention=attention)
    v = dynamics.matrix_flow(mu, v0, times, attention=attention)[1]
    s = v**2 if attention == "own" else np.repeat((v**2).sum(axis=0, keepdims=True), 2, axis=0)
    normalizer = sum(float(weight.subs({SYMBOLS["s"]: x, SYMBOLS["tau"]: 2})) for x in (v**2).sum(axis=0))
    for k, m in np.ndindex(2, 3):
        values = {"v": v[k, m], "mu": mu[k, m], "s": s[k, m], "tau": 2, "A": normalizer}
        expected = float(formula.subs({SYMBOLS[name]: value for name, value in values.items()}))
        assert (after - before)[k, m] / 2e-4 == pytest.approx(expected, abs=1e-6)


def test_matrix_flow_meets_the_closed_forms():
    mu, times = np.array([1.0, 2.5, 4.0]), np.linspace(0, 3, 7)
    own = dynamics.matrix_flow(mu, 0.05, times, attention="own")
    assert np.abs(own - dynamics.salient_flow(mu, 0.05, times)).max() < 1e-7
    rescaled = np.sqrt(1.5) * dynamics.salient_flow(mu / np.sqrt(1.5), 0.05 / np.sqrt(1.5), times)
    assert np.abs(dynamics.matrix_flow(mu, 0.05, times, tau=3.0) - rescaled).max() < 1e-7
    grown = dynamics.matrix_flow(DELTA, 0.0, [0.5, 1.2], activation="linear")
    assert np.abs(grown - dynamics.linear_growth(DELTA, [0.5, 1.2])).max() < 1e-7
    slow = dynamics.matrix_flow(DELTA, 0.0, [0.5, 6.0], activation="linear", attention="softmax")
    assert np.abs(slow - dynamics.normalized_growth(DELTA, [0.5, 6.0])).max() < 1e-7
    none = dynamics.matrix_flow(mu, 0.0, times, attention="none")
    assert np.abs(none - mu * (1 - np.exp(-times[:, None]))).max() < 1e-9


def test_nodes_share_or_do_not():
    mu = np.array([[1.0, 0.5], [1.0, -0.5]])
    shared, own = (dynamics.matrix_flow(mu, 0.1, [1.0], attention=kind)[0] for kind in ("shared", "own"))
    assert np.abs(shared - own).max() > 0.03  # a sum over nodes in the exponent is seen
    diagonal = np.diag([2.0, 1.0])
    both = [
        dynamics.matrix_flow(diagonal, 0.05 * np.eye(2), [1.0], attention=kind) for kind in ("shared", "own")
    ]
    assert np.abs(both[0] - both[1]).max() < 1e-8


def test_euler_converges_at_first_order_to_the_flow():
    mu = np.array([1.0, 2.0, 3.0])
    exact = dynamics.matrix_flow(mu, 0.05, [2.0], attention="softmax", tau=3.0)[0]
    errors = [
        np.abs(dynamics.euler_flow(mu, 0.05, n, step_size=2 / n, every=n)[-1] - exact).max()
        for n in (200, 400, 800)
    ]
    assert np.allclose(np.array(errors[:-1]) / errors[1:], 2, rtol=0.03)


def test_euler_is_the_published_iteration_for_a_batch():
    mu = np.sort(RNG.uniform(1, 4, size=(4, 1, 10)), axis=-1)
    batch = dynamics.euler_flow(mu, 0.05, 300, every=100)
    v = np.full(10, 0.05)
    for _ in range(300):
        b = np.exp(v**2 / 3) / np.exp(v**2 / 3).sum()
        v = v + 0.02 * (mu[2, 0] - v) * b
    assert batch.shape == (4, 4, 1, 10)
    assert np.allclose(batch[-1, 2, 0], v, atol=1e-13)


def test_tau_is_twice_the_squared_temperature():
    s, temperature = sympy.symbols("s T", positive=True)
    logits = s / (2 * temperature)  # T z = v²/2
    ours = dynamics.attention_weight("shared").subs({SYMBOLS["s"]: s, SYMBOLS["tau"]: 2 * temperature**2})
    assert sympy.simplify(ours - sympy.exp(logits / temperature)) == 0


def test_normalised_linear_flow_far_out_does_not_overflow():
    v = dynamics.euler_flow([1.0, 4.0], 0.05, 2000, activation="linear", step_size=0.1)[-1]
    assert np.isfinite(v).all() and v[1] > 100


# One clear error each


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: dynamics.linear_growth([1.0], [1.0, 0.5]), "increase"),
        (lambda: dynamics.linear_growth([1.0], [0.5, 0.5]), "increase"),
        (lambda: dynamics.linear_growth([1.0], [-0.5, 0.5]), "start at -0.5"),
        (lambda: dynamics.linear_growth([1.0], 0.5), "dimension"),
        (lambda: dynamics.linear_growth([1.0], [np.nan]), "finite"),
        (lambda: dynamics.linear_growth([1.0], [dynamics.blow_up_time([1.0])]), "blows up at 1.25331"),
        (lambda: dynamics.linear_growth([1.0], [2.0]), "blows up"),
        (lambda: dynamics.linear_growth([0.0, 0.0], [0.1]), "zero in every component"),
        (lambda: dynamics.linear_growth([[1.0]], [0.1]), "dimension"),
        (lambda: dynamics.linear_growth([], [0.1]), "at least one"),
        (lambda: dynamics.linear_growth([np.inf], [0.1]), "finite"),
        (lambda: dynamics.linear_growth(["a"], [0.1]), "real numbers"),
        (lambda: dynamics.blow_up_time([0.0]), "zero in every component"),
        (lambda: dynamics.node_growth([[1.0]], [0.2], v0=5.0), "blows up"),
        (lambda: dynamics.node_growth([[1.0, 2.0]], [0.1], v0=[1.0]), "same shape"),
        (lambda: dynamics.normalized_growth([0.0], [0.1]), "zero in every component"),
        (lambda: dynamics.salient_flow([1.0, 2.0], [0.1], [1.0]), "same shape"),
        (lambda: dynamics.salient_flow([1.0], [np.nan], [1.0]), "finite"),
        (lambda: dynamics.salient_flow([1.0], [0.1], [1.0, 0.2]), "increase"),
        (lambda: dynamics.salient_time([1.0], 0.0, 2.0), "remaining"),
        (lambda: dynamics.salient_time([0.0], 0.5, 0.1), "zero component"),
        (lambda: dynamics.log_distance([1.0], 1.0, [1.0]), "never moves"),
        (lambda: dynamics.matrix_flow([1.0], 0.0, [1.0], attention="hard"), "unknown"),
        (lambda: dynamics.matrix_flow([1.0], 0.0, [1.0], activation="relu"), "unknown"),
        (lambda: dynamics.matrix_flow([1.0], 0.0, [1.0], tau=0.0), "tau"),
        (lambda: dynamics.matrix_flow([1.0], 0.0, [1.3], activation="linear"), "blows up at about 1.2533"),
        (lambda: dynamics.euler_flow([1.0], 0.0, 0), "positive"),
        (lambda: dynamics.euler_flow([1.0, 9.0], 0.0, 500, attention="own", step_size=0.9), "too large"),
    ],
)
def test_one_clear_error(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_inputs_are_left_as_they_are():
    delta, times = np.array([1.0, 0.5]), np.array([0.0, 0.5])
    dynamics.linear_growth(delta, times)
    dynamics.salient_flow(delta, delta / 2, times)
    assert (delta == [1.0, 0.5]).all() and (times == [0.0, 0.5]).all()
