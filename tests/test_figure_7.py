"""Figure 7: the plotted data, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from joma_lib import figures


def made(names=("lower", "upper"), layers=3):
    steps = [0, 1, 2, 4, 512, 1000]
    rng = np.random.default_rng(0)
    entropy = rng.uniform(0.5, 2, (6, layers, 2))
    return xr.Dataset(
        {
            "stable_rank": (("step", "layer", "matrix"), rng.uniform(2, 9, (6, layers, len(names)))),
            "attention_entropy": (("step", "layer", "head"), entropy),
            "attention_entropy_se": (("step", "layer", "head"), entropy * 0.1),
        },
        {"step": steps, "layer": np.arange(layers), "matrix": list(names)},
    )


def test_one_row_a_model_one_curve_a_layer():
    run = made()
    figure = figures.figure_7({"a": run, "b": made(("gate", "up", "upper"))})
    assert len(figure.axes) == 6
    rank, change, entropy = figure.axes[:3]
    for layer in range(3):
        values = run.stable_rank.sel(matrix="lower", layer=layer)
        np.testing.assert_array_equal(rank.lines[layer].get_ydata(), values)
        np.testing.assert_allclose(change.lines[layer].get_ydata(), values / values[0])
        np.testing.assert_allclose(
            entropy.lines[layer].get_ydata(), run.attention_entropy.sel(layer=layer).mean("head")
        )
    assert rank.get_xscale() == "symlog" and rank.get_xlim()[0] <= 0  # step 0 has a place
    assert len({str(line.get_linestyle()) + str(line.get_color()) for line in rank.lines}) == 3
    assert "up matrix" in figure.axes[3].get_title(loc="left")
    assert "upper matrix" in figures.figure_7(run, matrix="upper").axes[0].get_title(loc="left")


def test_seeds_become_a_mean_and_a_band():
    runs = xr.concat([made(), made() * 1.5], "seed")
    rank = figures.figure_7(runs).axes[0]
    expected = made().stable_rank.sel(matrix="lower", layer=1) * 1.25
    np.testing.assert_allclose(rank.lines[1].get_ydata(), expected)
    assert len(rank.collections) == 3 and len(figures.figure_7(made()).axes[0].collections) == 0


def test_what_a_recorder_saw():
    run = made().assign(invariant_drift=("step", np.zeros(6)), logit_change=("step", np.arange(6.0)))
    assert len(figures.recorded_training(run).axes) == 3
    (axes,) = figures.recorded_training(run[["invariant_drift", "logit_change"]]).axes
    assert [line.get_label() for line in axes.lines] == ["logit change", "invariant drift"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: figures.figure_7({}), "empty"),
        (lambda: figures.figure_7(made(), matrix="gate"), "no stable rank of gate"),
        (lambda: figures.figure_7(made().drop_vars("stable_rank")), "measure it with weights"),
        (lambda: figures.figure_7(made().isel(step=0)), "over steps"),
        (lambda: figures.recorded_training(xr.Dataset()), "Recorder.dataset"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()
