"""Figure 7: stable rank and attention entropy of a real model in training, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, LINES, new_figure, panel_label, style

__all__ = ["figure_7", "recorded_training"]

_RANK, _ENTROPY = "stable rank", "attention entropy (nats)"


def figure_7(series: xr.Dataset | Mapping[str, xr.Dataset], *, matrix: str | None = None) -> Figure:
    """Draw Figure 7 from series of checkpoints: one row a model, one curve a layer, against the training step.

    Left the stable rank of the MLP's lower matrix (what the paper shows), in the middle the same divided by its first
    value, right the attention entropy, mean over heads. Bands: one standard deviation over seeds, or, without a dimension `seed`,
    two standard errors over sequences (entropy only).

    Parameters
    ----------
    series : what `joma_lib.pretrained.measure_series` returns, or several by name
    matrix : which of the matrices; None: `lower`, or for gated MLPs `up`

    Raises
    ------
    ValueError : no series, or one without steps or the matrix.

    The axis of steps is linear up to 1 and logarithmic beyond, so that step 0 has a place. Chapter `pretrained`.
    """
    named = {"": series} if isinstance(series, xr.Dataset) else dict(series)
    if not named:
        raise ValueError("series is empty; give what measure_series returns")
    with style():
        figure, rows = new_figure(len(named), 3, size=(9.6, 2.9 * len(named)))
        for (name, run), (rank, change, entropy) in zip(named.items(), rows, strict=True):
            values = _matrix(run, matrix)
            _layers(rank, values)
            _layers(change, values / values.isel(step=0))
            mean, error = run.attention_entropy.mean("head"), _head_error(run)
            _layers(entropy, mean, 2 * error)
            rank.set(ylabel=_RANK)
            change.set(ylabel="stable rank / first value")
            entropy.set(ylabel=_ENTROPY)
            title = f"{name}: " if name else ""
            panel_label(rank, f"{title}MLP, {values.matrix.item()} matrix")
            panel_label(change, f"{title}change")
            panel_label(entropy, f"{title}attention")
            rank.legend()
    return figure


def recorded_training(run: xr.Dataset) -> Figure:
    """Draw what a `joma_lib.recorder.Recorder` saw: entropy, stable rank and drift of the invariant, as recorded.

    Raises
    ------
    ValueError : a run with none of them.

    Chapter `pretrained`.
    """
    parts = [name for name in ("attention_entropy", "stable_rank", "invariant_drift") if name in run]
    if not parts or "step" not in run.dims:
        raise ValueError(
            f"the run holds {sorted(map(str, run.data_vars))}; give what Recorder.dataset returns"
        )
    with style():
        figure, axes = new_figure(1, len(parts))
        for ax, part in zip(axes[0], parts, strict=True):
            if part == "attention_entropy":
                _layers(ax, run.attention_entropy.mean("head"), 2 * _head_error(run))
                ax.set(ylabel=_ENTROPY)
                ax.legend()
            elif part == "stable_rank":
                values = _matrix(run, None)
                _layers(ax, values)
                ax.set(ylabel=f"{_RANK}, {values.matrix.item()} matrix")
            else:
                for index, name in enumerate(("logit_change", "invariant_drift")):
                    label = name.replace("_", " ")
                    ax.plot(
                        run.step,
                        run[name],
                        color=COLORS[index],
                        linestyle=LINES[index],
                        marker="o",
                        label=label,
                    )
                ax.set(xlabel="step", ylabel="largest over tokens")
                ax.legend()
    return figure


def _matrix(run: xr.Dataset, matrix: str | None) -> xr.DataArray:
    there = [] if "stable_rank" not in run or "step" not in run.dims else run.matrix.values.tolist()
    wanted = [matrix] if matrix else ["lower", "up"]
    name = next((one for one in wanted if one in there), None)
    if name is None:
        raise ValueError(
            f"the series has no stable rank of {' or '.join(wanted)} over steps, only {there}; measure it with weights"
        )
    return run.stable_rank.sel(matrix=name)


def _head_error(run: xr.Dataset) -> xr.DataArray:
    """Standard error of the mean over heads, at most: heads of one sequence are not independent."""
    return run.attention_entropy_se.mean("head")


def _layers(ax: Axes, values: xr.DataArray, error: xr.DataArray | None = None) -> None:
    """One curve a layer, from dark (below) to light (above), with line styles too; a band of `error`, or over seeds."""
    if "seed" in values.dims:
        error = values.std("seed", ddof=1) if values.sizes["seed"] > 1 else None
        values = values.mean("seed")
    steps, count = values.step.values, values.sizes["layer"]
    shades = mpl.colormaps["cividis"](np.linspace(0, 0.9, count))
    for index, layer in enumerate(values.layer.values):
        one = values.sel(layer=layer).values
        few = count <= 6 or index in (0, count // 2, count - 1)
        label = f"layer {layer}" if few else None
        ax.plot(steps, one, color=shades[index], linestyle=LINES[index % len(LINES)], label=label)
        if error is not None and bool(error.notnull().all()):
            margin = error.sel(layer=layer).values
            ax.fill_between(steps, one - margin, one + margin, color=shades[index], alpha=0.15, linewidth=0)
    ax.set(xlabel="step")
    if len(steps) > 2 and steps[-1] > 20 * max(1, steps[1]):
        ax.set_xscale("symlog", linthresh=max(1, steps[1]))
