"""Figures 6 and 8: attention entropy of a language model in training, by layer and by learning rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, LINES, MARKERS, new_figure, panel_label, style

__all__ = ["figure_6", "figure_8"]

_NEEDED = {
    "entropy_one_sequence",
    "entropy",
    "entropy_se",
    "validation_loss",
    "train_loss",
    "stable_rank_lower",
}


def figure_6(run: xr.Dataset, *, published: Mapping[int, float] | None = None) -> Figure:
    """Draw Figure 6 from one setting of `joma_lib.language.train_language`.

    (a) entropy of the one sequence of the published curves, by layer: each seed, and the mean over those that reached
    a step; (b) entropy over the whole validation set, with two standard errors; (c) the loss, in training and over the
    validation set; (d) stable rank of the MLP's lower matrix.

    Parameters
    ----------
    run : as `train_language` returns it; steps that a seed has not reached are NaN
    published : values of the paper's curve of the first layer, by step, marked in (a)

    Raises
    ------
    ValueError : a run without the variables above.

    Chapter `wikitext`.
    """
    run = _checked(run, "run")
    with style():
        figure, axes = new_figure(2, 2, size=(8.4, 5.8))
        (one, whole), (loss, rank) = axes
        for layer in range(run.sizes["layer"]):
            part = run.isel(layer=layer)
            name = f"layer {layer + 1}"
            _seeds(one, part.entropy_one_sequence, layer, name)
            _seeds(rank, part.stable_rank_lower, layer, name)
            for index, seed in enumerate(part.seed.values):
                single = part.sel(seed=seed)
                single = single.isel(step=np.flatnonzero(single.entropy.notnull()))
                whole.errorbar(
                    single.step.values,
                    single.entropy.values,
                    yerr=2 * single.entropy_se.values,
                    color=COLORS[layer % len(COLORS)],
                    linestyle=LINES[index % len(LINES)],
                    marker=MARKERS[index % len(MARKERS)],
                    capsize=2,
                    label=f"{name}, seed {seed}" if run.sizes["layer"] > 1 else f"seed {seed}",
                )
        _seeds(loss, run.train_loss, 0, "training, with dropout")
        held_out = run.validation_loss.dropna("step", how="all")
        _seeds(loss, held_out, 1, "validation", marker="s")
        if published:
            one.plot(
                list(published),
                list(published.values()),
                color="#D55E00",
                linestyle="none",
                marker="D",
                label="paper, mean of 3 seeds",
                zorder=5,
            )
        one.set(ylabel="attention entropy (nats)")
        whole.set(ylabel="attention entropy (nats)")
        low, high = (f(one.get_ylim()[i], whole.get_ylim()[i]) for i, f in enumerate((min, max)))
        for each in (one, whole):
            each.set_ylim(low, high)
        loss.set(ylabel="cross-entropy (nats a token)")
        rank.set(ylabel="stable rank")
        for each, title in zip(
            axes.ravel(),
            ("(a) one sequence", "(b) whole validation set", "(c) loss", "(d) MLP's lower matrix"),
            strict=True,
        ):
            each.set(xlabel="step", xlim=(0, None))
            panel_label(each, title)
            each.legend()
    return figure


def figure_8(
    runs: Mapping[float, xr.Dataset], *, published: Mapping[float, Mapping[int, float]] | None = None
) -> Figure:
    """Draw Figure 8 from runs of `joma_lib.language.train_language`, by learning rate.

    (a) entropy of the published sequence, mean over layers, and (b) loss in training, against the step; thin lines are
    seeds, where there are several.

    Parameters
    ----------
    runs : a run for each learning rate
    published : values of the paper's curves by learning rate and step, marked in (a)

    Raises
    ------
    ValueError : no run, or one without the variables.

    Chapter `wikitext`.
    """
    if not runs:
        raise ValueError("runs is empty; give a run for each learning rate, such as {1e-4: run}")
    with style():
        figure, axes = new_figure(1, 2, size=(8.4, 3.2))
        entropy, loss = axes[0]
        for index, (lr, run) in enumerate(sorted(runs.items())):
            run = _checked(run, f"runs[{lr}]")
            name = f"learning rate {lr:g}"
            _seeds(entropy, run.entropy_one_sequence.mean("layer"), index, name)
            _seeds(loss, run.train_loss, index, name)
            if published and lr in published:
                entropy.plot(
                    list(published[lr]),
                    list(published[lr].values()),
                    color=COLORS[index % len(COLORS)],
                    linestyle="none",
                    marker="D",
                    markerfacecolor="white",
                    label=f"paper, {lr:g}",
                    zorder=5,
                )
        entropy.set(xlabel="step", ylabel="attention entropy (nats)", xlim=(0, None))
        entropy.set_ylim(bottom=-0.05)
        loss.set(xlabel="step", ylabel="training loss (nats a token)", xlim=(0, None))
        panel_label(entropy, "(a) one sequence")
        panel_label(loss, "(b) loss, with dropout")
        entropy.legend()
    return figure


def _seeds(axes: Axes, values: xr.DataArray, index: int, label: str, marker: str = "") -> None:
    """Draw the mean over the seeds that reached a step, and each seed thinly."""
    values = values.transpose("seed", "step")
    present = values.notnull().any("seed")
    values = values.isel(step=np.flatnonzero(present.values))
    color, line = COLORS[index % len(COLORS)], LINES[index % len(LINES)]
    if values.sizes["seed"] > 1:
        for one in values:
            axes.plot(one.step, one, color=color, linewidth=0.6, alpha=0.6, linestyle="-")
    axes.plot(
        values.step, values.mean("seed"), color=color, linestyle=line, marker=marker or None, label=label
    )


def _checked(run: xr.Dataset, name: str) -> xr.Dataset:
    missing = sorted(_NEEDED - set(map(str, run.data_vars)))
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}; give what train_language returns")
    return run
