"""Figures 6 and 8: the data they plot, seeds that stopped early, what they refuse, Matplotlib left as found."""

from __future__ import annotations

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch")

from joma_lib import figures
from joma_lib.language import LanguageConfig, synthetic_corpus, train_language

CONFIG = LanguageConfig(
    layers=2, width=8, hidden=8, steps=12, batch=4, context=5, record_every=2, validate_every=4
)


@pytest.fixture(scope="module")
def runs():
    corpus = synthetic_corpus(tokens=1000, words=40, topics=2)
    one = train_language(corpus, CONFIG, seeds=[1, 2])
    short = train_language(corpus, replace(CONFIG, steps=8, lr=1e-2), seeds=[1, 3])
    one = xr.concat([one, short.sel(seed=[3])], "seed", join="outer", combine_attrs="override")
    return {1e-4: one, 1e-2: short}


def test_figure_6_plots_the_data(runs):
    before = dict(mpl.rcParams)
    run = runs[1e-4]
    figure = figures.figure_6(run, published={0: 2.5, 4: 1.5})
    assert dict(mpl.rcParams) == before
    one, whole, loss, rank = figure.axes
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["(a)", "(b)", "(c)", "(d)"]
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_legend() for axes in figure.axes)
    named = {line.get_label(): line for line in one.lines}
    for layer in (0, 1):
        line = named[f"layer {layer + 1}"]
        np.testing.assert_array_equal(line.get_xdata(), run.step)
        expected = run.entropy_one_sequence.isel(layer=layer).mean("seed")
        np.testing.assert_allclose(line.get_ydata(), expected)
    assert named["paper, mean of 3 seeds"].get_ydata().tolist() == [2.5, 1.5]
    (first, *_), *_ = whole.containers
    np.testing.assert_allclose(first.get_ydata(), run.entropy.isel(layer=0, seed=0).dropna("step"))
    assert whole.get_ylim() == one.get_ylim()
    measured = {line.get_label(): line for line in loss.lines}["validation"]
    np.testing.assert_allclose(
        measured.get_ydata(), run.validation_loss.dropna("step", how="all").mean("seed")
    )
    lower = {line.get_label(): line for line in rank.lines}["layer 2"]
    np.testing.assert_allclose(lower.get_ydata(), run.stable_rank_lower.isel(layer=1).mean("seed"))


def test_figure_8_plots_the_data(runs):
    figure = figures.figure_8(runs, published={1e-2: {4: 0.0}})
    entropy, loss = figure.axes
    named = {line.get_label(): line for line in entropy.lines}
    for lr, run in runs.items():
        expected = run.entropy_one_sequence.mean(["layer", "seed"])
        np.testing.assert_allclose(named[f"learning rate {lr:g}"].get_ydata(), expected)
    assert named["paper, 0.01"].get_xdata().tolist() == [4]
    losses = {line.get_label(): line for line in loss.lines}["learning rate 0.0001"]
    np.testing.assert_allclose(losses.get_ydata(), runs[1e-4].train_loss.mean("seed")[1:])


def test_what_is_missing_is_named(runs):
    with pytest.raises(ValueError, match="run lacks entropy, entropy_se"):
        figures.figure_6(runs[1e-4].drop_vars(["entropy", "entropy_se"]))
    with pytest.raises(ValueError, match="runs is empty"):
        figures.figure_8({})
