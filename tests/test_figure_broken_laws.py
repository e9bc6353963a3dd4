"""The summary figure of what breaks the invariant plots the drifts it is given."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from joma_lib import figures


def test_every_seed_and_the_median_are_drawn():
    before = dict(mpl.rcParams)
    drifts = {"holds": {"plain": [1e-4, 2e-4, 4e-4]}, "broken": {"Adam": [3.0, 5.0], "skip": [1.0]}}
    ax = figures.broken_laws(drifts).axes[0]
    assert dict(mpl.rcParams) == before
    assert [label.get_text() for label in ax.get_yticklabels()] == ["plain", "Adam", "skip"]
    assert ax.get_xscale() == "log"
    seeds, medians = ax.lines[0:6:2], ax.lines[1:6:2]
    for line, values in zip(seeds, ([1e-4, 2e-4, 4e-4], [3, 5], [1]), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), values)
    assert [float(np.ravel(line.get_xdata())[0]) for line in medians] == [2e-4, 4.0, 1.0]


@pytest.mark.parametrize(
    ("bad", "word"), [({}, "empty"), ({"a": {"b": [0.0]}}, "'b'"), ({"a": {"b": []}}, "'b'")]
)
def test_what_a_logarithm_cannot_show_is_refused(bad, word):
    with pytest.raises(ValueError, match=word):
        figures.broken_laws(bad)
