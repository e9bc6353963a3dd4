"""Figure 3 draws the run's weights and the exact solution it is given."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

pytest.importorskip("torch")

from joma_lib import figures
from joma_lib.block import BlockConfig, train_block
from joma_lib.dynamics import node_growth


@pytest.fixture(scope="module")
def grown():
    config = BlockConfig(
        tokens=4, nodes=3, width=6, attention="exp", temperature=1.0, loss="linear", init_scale=0.0, learning_rate=0.01, steps=200
    )  # fmt: skip
    random = np.random.default_rng(0)
    x, g = random.dirichlet(np.ones(4), size=5), random.normal(size=(5, 3))
    run = train_block(config, seeds=[0], x=x, targets=g, device="cpu")
    times = np.linspace(0, 2, 50)
    return run, times, node_growth(g.T @ x / 5, times)


def test_lines_are_exact_and_markers_measured(grown):
    before = dict(mpl.rcParams)
    run, times, exact = grown
    growth = figures.figure_3(run, times, exact, components=2).axes[2]
    assert dict(mpl.rcParams) == before
    v = run.v.values[0]
    node = int(np.argmax(np.abs(v[-1]).max(1)))
    token = int(np.argmax(np.abs(v[-1, node])))
    line, marks = growth.lines[0], growth.lines[1]
    np.testing.assert_array_equal(line.get_ydata(), exact[:, node, token])
    assert marks.get_xdata()[-1] == pytest.approx(2.0) and marks.get_ydata()[-1] == v[-1, node, token]
    assert abs(marks.get_ydata()[-1] - line.get_ydata()[-1]) < 0.02 * abs(line.get_ydata()[-1])


def test_other_shapes_are_refused(grown):
    run, times, exact = grown
    with pytest.raises(ValueError, match="exact has shape"):
        figures.figure_3(run, times, exact[:, 0])
    with pytest.raises(ValueError, match="no v"):
        figures.figure_3(run.drop_vars("v"), times, exact)
