"""Figure 4 and the map of the bounce: the data they plot, what they refuse, and Matplotlib left as found."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

from joma_lib import figures
from joma_lib.salience import draw_targets, salient_runs


@pytest.fixture(scope="module")
def runs():
    mu = draw_targets(6, 5, seed=4)
    return {
        "nonlinear": salient_runs(mu, steps=600),
        "linear": salient_runs(mu, steps=600, activation="linear"),
    }


def test_figure_4_plots_the_data(runs):
    before = dict(mpl.rcParams)
    figure = figures.figure_4(runs, draw=2, steps=[0, 300, 600])
    assert dict(mpl.rcParams) == before
    weights, reached, entropy, back = figure.axes
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["(a)", "(b)", "(c)", "(d)"]
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_legend() for axes in figure.axes)
    first = runs["nonlinear"]
    lines = {line.get_label(): line.get_ydata() for line in weights.lines}
    for step in (0, 300, 600):
        np.testing.assert_array_equal(lines[f"step {step}"], first.v.sel(step=step).isel(draw=2))
    np.testing.assert_array_equal(lines["target $\\mu$"], first.mu.isel(draw=2))
    fractions = (first.v / first.mu).mean("draw")
    np.testing.assert_allclose(reached.lines[0].get_ydata(), fractions.isel(component=-1))
    np.testing.assert_allclose(reached.lines[2].get_ydata(), fractions.isel(component=0))
    for line, run in zip(entropy.lines, runs.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), run.entropy.mean("draw"))
        np.testing.assert_array_equal(line.get_xdata(), run.step)
    assert len(entropy.collections) == 2  # the bands
    upper = entropy.collections[0].get_paths()[0].vertices[:, 1].max()
    assert upper == pytest.approx(
        float((first.entropy.mean("draw") + first.entropy.std("draw", ddof=1)).max())
    )
    for line, run in zip(back.lines[:2], runs.values(), strict=True):
        rebound = run.entropy.isel(step=-1) - run.entropy.min("step")
        np.testing.assert_allclose(line.get_ydata(), np.sort(rebound))
        assert line.get_xdata()[-1] == 1


def test_figure_4_takes_one_run_and_finds_ranks_by_itself(runs):
    shuffled = runs["nonlinear"].isel(component=[3, 0, 4, 2, 1])
    reached = figures.figure_4(shuffled).axes[1]
    expected = (runs["nonlinear"].v / runs["nonlinear"].mu).mean("draw").isel(component=-1)
    np.testing.assert_allclose(reached.lines[0].get_ydata(), expected)


def test_lines_differ_without_colour(runs):
    figure = figures.figure_4(runs)
    for axes in figure.axes[1:]:
        styles = [line.get_linestyle() for line in axes.lines]
        assert len(set(map(str, styles))) == len(styles)


def field(low=0.0, high=1.0):
    values = np.linspace(low, high, 12).reshape(3, 4)
    return xr.DataArray(
        values, dims=("spread", "tau"), coords={"spread": [1.0, 2.0, 3.0], "tau": [1.0, 2.0, 4.0, 8.0]}
    )


def test_bounce_map_plots_its_maps_on_one_scale():
    before = dict(mpl.rcParams)
    figure = figures.bounce_map({"here": field(), "there": field(high=2.0).T})
    assert dict(mpl.rcParams) == before
    here, there = figure.axes[:2]
    meshes = [axes.collections[0] for axes in (here, there)]
    np.testing.assert_allclose(np.ravel(meshes[0].get_array()), field().values.ravel())
    np.testing.assert_allclose(np.ravel(meshes[1].get_array()), field(high=2.0).values.ravel())
    assert {mesh.get_clim() for mesh in meshes} == {(0.0, 2.0)}
    assert here.get_xscale() == "log" and here.get_title(loc="left") == "here"
    star = here.lines[0]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (3.0, 3.0)
    assert len(figures.bounce_map({"flat": field(0, 0)}, mark=None).axes[0].lines) == 0


def test_refusals(runs):
    for call, message in (
        (lambda: figures.figure_4({}), "empty"),
        (lambda: figures.figure_4(runs["linear"].drop_vars("mu")), "lacks mu"),
        (lambda: figures.figure_4(runs, draw=6), "draws 0 to 5"),
        (lambda: figures.figure_4(runs, steps=[5]), "not recorded"),
        (lambda: figures.bounce_map({}), "empty"),
        (lambda: figures.bounce_map({"x": field().rename(tau="T")}), "spread and tau"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
