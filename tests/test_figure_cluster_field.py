"""The field figure marks fixed points, leaves Matplotlib's settings alone, and refuses what does not fit."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from joma_lib import figures


def test_panels_and_fixed_points():
    before = dict(mpl.rcParams)
    grid = np.linspace(-1, 1, 8)
    field = np.stack(np.meshgrid(-grid, -grid), axis=-1)  # towards the origin
    plain = {"grid": grid, "field": field, "means": [[0.5, 0.5]]}
    figure = figures.cluster_field_map({"a": plain, "b": {**plain, "attracting": [[0.0, 0.0]]}})
    assert dict(mpl.rcParams) == before
    assert [len(ax.lines) for ax in figure.axes] == [0, 1]
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xydata(), [[0, 0]])


@pytest.mark.parametrize(
    ("bad", "word"),
    [({}, "empty"), ({"a": {"grid": [0.0, 1.0], "field": np.zeros((2, 3, 2)), "means": []}}, "'a'")],
)
def test_bad_input(bad, word):
    with pytest.raises(ValueError, match=word):
        figures.cluster_field_map(bad)
