"""The stable-rank figure draws means over draws, and refuses what does not fit."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from joma_lib import figures


def test_means_are_drawn():
    before = dict(mpl.rcParams)
    times, ranks = np.array([1.0, 10.0]), np.array([[2.0, 4.0], [4.0, 8.0]])
    figure = figures.stable_rank_paths(
        {"a": {"x": (times, ranks), "y": (times, ranks + 1)}, "b": {"z": (times, ranks)}}
    )
    assert dict(mpl.rcParams) == before
    assert len(figure.axes) == 2
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_ydata(), [4, 7])
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(("bad", "word"), [({}, "empty"), ({"a": {"x": ([1.0], [[1.0, 2.0]])}}, "'x'")])
def test_bad_input(bad, word):
    with pytest.raises(ValueError, match=word):
        figures.stable_rank_paths(bad)
