"""Recorded runs of Table 1 and the rows of the table: every number beside its untrained start and its null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from joma_lib import runs

VARIANTS = ("main", "frozen", "linear", "shuffled")
SETTINGS = ((2, 10, 20), (2, 20, 30), (3, 10, 20), (3, 20, 30))
"""(N_ch, N_0, N_1) of the paper's table with C = 20."""


def run_name(setting: tuple[int, ...], variant: str = "main", steps: int | None = None) -> str:
    """Return the name of a recorded run: hierarchy-N_ch-N_0-N_1-variant, with the steps where they are not 2,000.

    >>> run_name((2, 10, 20))
    'hierarchy-2-10-20-main'
    """
    name = "-".join(["hierarchy", *map(str, setting), variant])
    return name if steps is None else f"{name}-{steps}"


def recorded_hierarchies() -> dict[tuple[int, ...], dict[str, xr.Dataset]]:
    """Return the recorded runs that come with the package: setting (N_ch, N_0, N_1) to variant to run.

    >>> set(recorded_hierarchies()) <= set(SETTINGS)
    True
    """
    known = set(runs.list_runs())
    found = {
        setting: {
            variant: runs.load_run(run_name(setting, variant))
            for variant in VARIANTS
            if run_name(setting, variant) in known
        }
        for setting in SETTINGS
    }
    return {setting: variants for setting, variants in found.items() if variants}


@dataclass(frozen=True)
class Cell:
    """A measure over seeds: values at step 0 and at the last step that each seed reached, [seeds]."""

    start: np.ndarray
    end: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """What training added, seed by seed."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{_spread(self.start)} -> {_spread(self.end)}"


def measured(run: xr.Dataset, measure: str, layer: int) -> Cell:
    """Return a measure of one layer, averaged over latents where it has one value each.

    Parameters
    ----------
    measure : "ncorr" (as published), "correlation" (the same without unused latents), "null_mean", "null_high",
        "heldout", "crossfit", "attention_entropy", "attention_shift", ...; loss and accuracy have no layer
    """
    values = run[measure]
    if "layer" in values.dims:
        values = values.sel(layer=layer)
    if "latent" in values.dims:
        values = values.mean("latent")
    values = values.transpose("seed", "step")
    last = [row[np.isfinite(row)][-1] if np.isfinite(row).any() else np.nan for row in values.values]
    return Cell(values.isel(step=0).values, np.array(last))


def table_rows(
    found: Mapping[tuple[int, ...], Mapping[str, xr.Dataset]], measure: str = "ncorr"
) -> list[tuple[tuple[int, ...], str, int, Cell]]:
    """Return the rows of the table for a measure: (setting, variant, layer, cell)."""
    return [
        (setting, variant, int(layer), measured(run, measure, int(layer)))
        for setting, variants in found.items()
        for variant, run in variants.items()
        for layer in run.layer.values
    ]


def _spread(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return "--"
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")
