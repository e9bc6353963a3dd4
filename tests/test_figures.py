"""Figures: the data they plot, and that they leave Matplotlib as they found it."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import numpy as np
import pytest

pytest.importorskip("torch")

from joma_lib import figures
from joma_lib.block import BlockConfig, train_block
from joma_lib.figures._figure_2 import predicted_changes
from joma_lib.figures._style import COLORS, LINES, MARKERS


@pytest.fixture(scope="module")
def runs():
    options = {"tokens": 6, "nodes": 5, "width": 8, "steps": 200, "learning_rate": 0.2}
    return {
        name: train_block(BlockConfig(**options, activation=name), seeds=[0, 1, 2], device="cpu")
        for name in ("linear", "relu")
    }


def test_style_is_undone_and_tells_lines_apart_without_colour():
    before = dict(mpl.rcParams)
    with figures.style():
        assert mpl.rcParams["figure.facecolor"] == "white"
    assert dict(mpl.rcParams) == before
    assert len({str(line) for line in LINES}) == len(COLORS) == len(MARKERS) == 8
    grey = [np.dot(mpl.colors.to_rgb(color), (0.299, 0.587, 0.114)) for color in COLORS[:4]]
    assert min(abs(a - b) for a, b in itertools.pairwise(grey)) > 0.08


def test_every_public_figure_is_there():
    for name in figures.__all__:
        assert callable(getattr(figures, name)), name
    with pytest.raises(AttributeError, match="figure_99"):
        _ = figures.figure_99


def test_figure_2_plots_correlation_and_error(runs):
    before = dict(mpl.rcParams)
    figure = figures.figure_2(runs)
    assert dict(mpl.rcParams) == before
    titles = [axes.get_title(loc="left")[:3] for axes in figure.axes[:4]]
    assert titles == ["(a)", "(b)", "(c)", "(d)"]
    for index, (name, run) in enumerate(runs.items()):
        z, v, x = run.z.values, run.v.values, run.x.values.mean(1)
        dz = z[:, 1:] - z[:, :1]
        squares = (v**2).sum(2)[:, 1:] - (v**2).sum(2)[:, :1]  # [seed, step, token]
        predicted = squares - x[:, None] * squares.sum(-1, keepdims=True)  # ½ / T = 1 at T = ½
        expected = np.array(
            [
                [np.corrcoef(a, b)[0, 1] for a, b in zip(*pair, strict=True)]
                for pair in zip(dz, predicted, strict=True)
            ]
        )
        error = np.linalg.norm(predicted - dz, axis=-1) / np.linalg.norm(dz, axis=-1)
        correlation, relative = figure.axes[2].lines[index], figure.axes[3].lines[index]
        assert correlation.get_label() == name
        np.testing.assert_allclose(correlation.get_ydata(), expected.mean(0), atol=1e-12)
        np.testing.assert_allclose(relative.get_ydata(), error.mean(0), rtol=1e-9)
        np.testing.assert_allclose(predicted_changes(run)[1], predicted, atol=1e-12)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), runs["linear"].x.values[0].T)


def test_exp_attention_is_predicted_almost_exactly():
    run = train_block(BlockConfig(attention="exp", steps=200, learning_rate=0.01), seeds=[0, 1], device="cpu")
    truth, predicted = predicted_changes(run)
    error = np.linalg.norm(predicted - truth, axis=-1) / np.linalg.norm(truth, axis=-1)
    assert error.max() < 0.01
    figures.figure_2(run)


def test_figure_2_refuses_what_it_cannot_plot(runs):
    several = train_block(BlockConfig(tokens=6, nodes=5, width=8, steps=2, queries=2), device="cpu")
    linear = train_block(BlockConfig(tokens=6, nodes=5, width=8, steps=2, attention="linear"), device="cpu")
    for bad, word in (
        ({}, "empty"),
        (several, "queries"),
        (runs["linear"].drop_vars("v"), "lacks v"),
        (linear, "sign"),
    ):
        with pytest.raises(ValueError, match=word):
            figures.figure_2(bad)
    with pytest.raises(ValueError, match="mean_attention"):
        figures.figure_2(runs, mean_attention="median")
