"""Draws of Figure 4's flow: against exact solutions, and what may not depend on normaliser or scale."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import entr, softmax

from joma_lib.dynamics import matrix_flow, salient_flow, salient_time
from joma_lib.salience import bounce, draw_targets, eventual_rebound, salient_runs


@pytest.fixture(scope="module")
def published():
    return salient_runs(draw_targets(40))


def test_draws_are_sorted_seeded_and_leave_the_global_stream_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    mu = draw_targets(5, 4, low=2.0, high=3.0, seed=7)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert mu.shape == (5, 4) and (np.diff(mu, axis=1) > 0).all() and mu.min() >= 2 and mu.max() < 3
    np.testing.assert_array_equal(mu, draw_targets(5, 4, low=2.0, high=3.0, seed=7))
    assert not np.array_equal(mu, draw_targets(5, 4, low=2.0, high=3.0, seed=8))


def test_start_is_uniform_and_most_draws_bounce(published):
    np.testing.assert_allclose(published.entropy.isel(step=0), np.log(10), rtol=1e-12)
    what = bounce(published)
    assert float((what.rebound > 0.05).mean()) > 0.9
    assert 0.8 < float(what.lowest.mean()) < 1.3
    np.testing.assert_allclose(what.fall, np.log(10) - what.lowest)
    np.testing.assert_allclose(published.attention.sum("component"), 1)


def test_euler_follows_the_ordinary_differential_equation(published):
    at = slice(0, None, 50)
    for draw in range(3):
        one = published.isel(draw=draw, step=at)
        exact = matrix_flow(one.mu.values, 0.05, one.time.values, attention="softmax", tau=3.0)
        np.testing.assert_allclose(one.v, exact, atol=0.01)
        finer = salient_runs(one.mu.values[None], steps=10_000, step_size=0.01, every=1000).v.values[0]
        rough = one.v.values
        ratio = np.abs(rough - exact).max() / np.abs(finer - exact).max()
        assert 1.8 < ratio < 2.2, ratio  # first order in the step


def test_every_component_of_a_draw_tells_the_same_time():
    mu = draw_targets(1, seed=3)[0]
    v = matrix_flow(mu, 0.0, [5.0, 20.0, 50.0], attention="softmax", tau=2.0)
    remaining = 1 - v / mu
    for row in remaining:
        keep = row > 1e-6  # nearer to μ, rounding of 1 − v/μ rules
        clock = salient_time(mu[keep], 0.0, row[keep])
        np.testing.assert_allclose(clock, clock[0], rtol=1e-4)


def test_eventual_rebound_against_exact_orbits():
    mu = draw_targets(3, low=1.2, high=3.8, seed=2)
    times = np.geomspace(0.02, 40, 6000)
    for tau in (1.0, 3.0, 8.0):
        scaled = mu * np.sqrt(2 / tau)
        for row, got in zip(scaled, eventual_rebound(mu, tau), strict=True):
            u = salient_flow(row, 0.0, times)
            entropy = entr(softmax(u**2 / 2, axis=-1)).sum(-1)
            assert got == pytest.approx(entropy[-1] - entropy.min(), abs=2e-3)


def test_only_the_ratio_of_targets_and_root_tau_matters():
    mu = draw_targets(4, seed=5)
    np.testing.assert_allclose(eventual_rebound(mu, 3.0), eventual_rebound(2 * mu, 12.0), atol=1e-9)
    assert eventual_rebound(mu, [1.0, 3.0]).shape == (2, 4)
    a = salient_runs(mu, tau=3.0, v0=0.05, steps=500).entropy
    b = salient_runs(2 * mu, tau=12.0, v0=0.1, steps=500).entropy
    np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("options", [{"activation": "linear"}, {"attention": "none"}])
def test_no_bounce_without_both_halves(options):
    what = bounce(salient_runs(draw_targets(20, seed=1), **options))
    assert float(what.rebound.max()) < 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_targets(0), "at least 1"),
        (lambda: draw_targets(low=2, high=1), "exchange"),
        (lambda: salient_runs([1.0, 2.0]), "dimension"),
        (lambda: salient_runs([[1.0, 4.0]], attention="shared", step_size=0.5), "smaller"),
        (lambda: bounce(draw_targets(2)), "entropy"),
        (lambda: eventual_rebound([1.0, 2.0], 0.0), "positive"),
        (lambda: eventual_rebound([-1.0, 2.0], 3.0), "positive"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
