"""The figures of the hierarchy's chapters show the data they are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import matplotlib as mpl

from joma_lib import _hierarchy_table as table
from joma_lib import figures
from joma_lib.hierarchy import HierarchyConfig, reached_hierarchy, train_hierarchy
from joma_lib.latent_tree import LatentTree

SMALL = HierarchyConfig(
    latents=(6, 8),
    classes=7,
    tokens=30,
    length=12,
    width=16,
    hidden=20,
    steps=10,
    lr=1e-3,
    fresh=8,
    permutations=10,
)


@pytest.fixture(scope="module")
def variants():
    frozen = replace(SMALL, attention="frozen")
    return {"main": train_hierarchy(SMALL, seeds=[0, 1]), "frozen": train_hierarchy(frozen, seeds=[0, 1])}


def test_rows_and_cells(variants):
    rows = table.table_rows({(2, 6, 8): variants})
    assert [row[:3] for row in rows] == [
        ((2, 6, 8), v, layer) for v in ("main", "frozen") for layer in (0, 1)
    ]
    cell = rows[1][3]
    np.testing.assert_array_equal(cell.start, variants["main"].ncorr.sel(layer=1, step=0))
    np.testing.assert_array_equal(cell.end, variants["main"].ncorr.sel(layer=1, step=10))
    np.testing.assert_allclose(cell.gain, cell.end - cell.start)
    heldout = table.measured(variants["main"], "heldout", 0)
    np.testing.assert_allclose(heldout.end, variants["main"].heldout.sel(layer=0, step=10).mean("latent"))
    assert str(cell).count("±") == 2 and "->" in str(cell)
    cut = variants["main"].copy(deep=True)
    cut["ncorr"][1, -2:] = np.nan  # a seed that was not finished counts with its last value
    np.testing.assert_array_equal(table.measured(cut, "ncorr", 0).end[1], cut.ncorr.sel(layer=0)[1, -3])
    assert table.run_name((3, 20, 30), "linear", 10000) == "hierarchy-3-20-30-linear-10000"


def test_recorded_runs_hold_what_the_table_needs():
    recorded = table.recorded_hierarchies()
    assert {setting: set(found) for setting, found in recorded.items()} == {
        setting: set(table.VARIANTS) for setting in table.SETTINGS
    }
    for setting, found in recorded.items():
        for run in found.values():
            config = HierarchyConfig(**__import__("json").loads(run.attrs["config"]))
            assert (config.children, *config.latents) == setting and config.width == 1024
            assert run.sizes["seed"] == 3 and run.step[0] == 0 and run.step[-1] == 2000
            assert np.isfinite(run.ncorr.isel(step=0)).all()


def test_figures_show_the_data(variants):
    before = dict(mpl.rcParams)
    figure = figures.table_1({(2, 6, 8): variants})
    points = {
        tuple(np.round(line.get_xydata()[0], 6))
        for line in figure.axes[1].lines
        if len(line.get_xydata()) == 1
    }
    expected = [variants["main"].ncorr.sel(layer=1, step=step).mean().item() for step in (0, 10)]
    assert {round(y, 6) for _, y in points} >= {round(y, 6) for y in expected}
    curves = figures.ncorr_curves(variants)
    line = curves.axes[0].lines[0]
    np.testing.assert_allclose(
        line.get_ydata(), variants["main"].correlation.sel(layer=0).mean(["latent", "seed"])
    )
    lift = figures.attention_by_height(variants)
    np.testing.assert_allclose(
        lift.axes[0].lines[0].get_ydata(), variants["main"].lift_1.sel(layer=0).mean("seed")
    )
    gain = figures.gain_by_count(variants)
    assert len(gain.axes) == 2
    assert dict(mpl.rcParams) == before
    with pytest.raises(ValueError, match="no run to draw"):
        figures.table_1({})


def test_tree_figure_shows_the_exact_values():
    tree = LatentTree(4, 2, 0.8, ([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    figure = figures.co_occurrence_tree(tree, (0, 2), rhos=(0.8, 0.3))
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_ydata(), [tree.co_occurrence(height) for height in (1, 2, 3, 4)])
    assert "H = 2" in figure.axes[0].get_title(loc="left") + figure.axes[0].get_title()


def test_reached_counts_only_what_is_there(tmp_path):
    train_hierarchy(SMALL, seeds=[1], folder=tmp_path)
    assert reached_hierarchy(SMALL, tmp_path, seeds=[0, 1, 2]).seed.values.tolist() == [1]
