"""Table 1 as a figure, with its controls; what is learned when; what attention does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma_lib._hierarchy_table import measured
from joma_lib.figures._style import COLORS, LINES, MARKERS, band, new_figure, style

_PAPER = ((0.94, 1.00), (0.55, 0.81))
"""The range of the paper's entries for layers 0 and 1."""
_NAMES = {
    "main": "trained",
    "frozen": "attention frozen",
    "linear": "linear activation",
    "shuffled": "labels shuffled",
}


def table_1(found: Mapping[tuple[int, ...], Mapping[str, xr.Dataset]]) -> Figure:
    """Draw NCorr of every setting and layer: untrained, trained, its controls, and what chance alone gives.

    Parameters
    ----------
    found : setting (N_ch, N_0, N_1) to variant ("main", "frozen", "linear", "shuffled") to a run of `train_hierarchy`

    Left the two layers' NCorr as published, beside the range of the paper's entries (grey) and the mean of the null
    distribution (crosses); below, the correlation of the same nodes on combinations that were never trained on.
    """
    if not found or not all(found.values()):
        raise ValueError("there is no run to draw; give at least one setting with at least one variant")
    layers = range(max(run.sizes["layer"] for variants in found.values() for run in variants.values()))
    with style():
        figure, axes = new_figure(2, len(layers), size=(4.2 * len(layers), 5.6), sharex=True, sharey=True)
        for row, measure in enumerate(("ncorr", "heldout")):
            for layer in layers:
                ax = axes[row, layer]
                if row == 0 and layer < len(_PAPER):
                    ax.axhspan(
                        *_PAPER[layer], color="#DDDDDD", zorder=0, label="range of the paper's entries"
                    )
                for at, variants in enumerate(found.values()):
                    _column(ax, at, variants, measure, layer)
                ax.set_title(
                    f"layer {layer}: " + ("NCorr" if row == 0 else "same nodes, unseen combinations")
                )
        for ax in axes[:, 0]:
            ax.set_ylabel("correlation, mean over latents")
        for ax in axes[-1]:
            ax.set_xticks(range(len(found)), [f"{s[0]}; {s[1]}, {s[2]}" for s in found])
            ax.set_xlim(-0.5, len(found) - 0.5)
            ax.set_xlabel("$N_{ch}$; $N_0$, $N_1$")
        axes[0, 0].set_ylim(0, 1.05)
        handles, labels = axes[0, -1].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=3)
    return figure


def _column(ax, at: int, variants: Mapping[str, xr.Dataset], measure: str, layer: int) -> None:  # type: ignore[no-untyped-def]
    first = next(iter(variants.values()))
    points = [("untrained", measured(variants.get("main", first), measure, layer).start)]
    points += [(_NAMES.get(name, name), measured(run, measure, layer).end) for name, run in variants.items()]
    order = ["untrained", *_NAMES.values()]
    for name, values in points:
        index = order.index(name) if name in order else len(order)
        x = at + 0.14 * (index - 2)
        deviation = values.std(ddof=1) if len(values) > 1 else 0.0
        marker = MARKERS[index % len(MARKERS)]
        fill = {"markerfacecolor": "white"} if name == "untrained" else {}
        color = COLORS[index % len(COLORS)]
        ax.errorbar(
            x,
            values.mean(),
            deviation,
            fmt=marker,
            color=color,
            capsize=2,
            linestyle="none",
            label=name,
            **fill,
        )
    if measure == "ncorr":
        null = measured(variants.get("main", first), "null_mean", layer).end
        ax.plot(at + 0.42, null.mean(), "x", color="#555555", label="latents permuted (chance)")


def ncorr_curves(variants: Mapping[str, xr.Dataset], measure: str = "correlation") -> Figure:
    """Draw a measure of each layer against training step for each variant, and the loss; mean and spread over seeds.

    With "correlation" the 95 % quantile of the null distribution of the first variant is drawn too.
    """
    first = next(iter(variants.values()))
    layers = first.layer.values
    with style():
        figure, axes = new_figure(1, len(layers) + 1, size=(3.3 * (len(layers) + 1), 3.0))
        for index, (name, run) in enumerate(variants.items()):
            for ax, layer in zip(axes[0], layers, strict=False):
                values = run[measure].sel(layer=layer)
                values = values.mean("latent") if "latent" in values.dims else values
                band(
                    ax, run.step, values.transpose("seed", "step"), index=index, label=_NAMES.get(name, name)
                )
            band(
                axes[0, -1],
                run.step,
                run.loss.transpose("seed", "step"),
                index=index,
                label=_NAMES.get(name, name),
            )
        for ax, layer in zip(axes[0], layers, strict=False):
            ax.set_title(f"layer {layer}")
            if measure == "correlation":
                high = first.null_high.sel(layer=layer).mean("seed")
                ax.plot(first.step, high, color="#7F7F7F", linestyle=(0, (1, 1)), label="95 % of chance")
            ax.set_ylim(None, 1.03)
        for ax in axes[0]:
            _steps(ax)
        axes[0, 0].set_ylabel(
            {"correlation": "NCorr", "heldout": "correlation, unseen"}.get(measure, measure)
        )
        axes[0, -1].set(title="loss on the true labels", ylabel="nats", yscale="log")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def attention_by_height(variants: Mapping[str, xr.Dataset], layer: int = 0) -> Figure:
    """Draw the attention a token pays to tokens by the height of their lowest common ancestor, over uniform attention."""
    with style():
        figure, axes = new_figure(1, len(variants), size=(3.4 * len(variants), 3.0), sharey=True)
        for ax, (name, run) in zip(axes[0], variants.items(), strict=True):
            heights = sorted(
                int(str(key).removeprefix("lift_")) for key in run if str(key).startswith("lift_")
            )
            for index, height in enumerate(heights):
                values = run[f"lift_{height}"].sel(layer=layer).transpose("seed", "step")
                band(ax, run.step, values, index=index, label=f"H = {height}")
            ax.axhline(1, color="#7F7F7F", linewidth=0.8)
            ax.set_title(_NAMES.get(name, name))
            _steps(ax)
        axes[0, 0].set_ylabel("attention / uniform attention")
        axes[0, -1].legend(title="lowest common ancestor")
    return figure


def gain_by_count(runs: Mapping[str, xr.Dataset], measure: str = "heldout") -> Figure:
    """Draw what training adds to each latent's correlation against the number of classes that use it, layer by layer."""
    layers = next(iter(runs.values())).layer.values
    with style():
        figure, axes = new_figure(1, len(layers), size=(3.8 * len(layers), 3.0), sharey=True)
        for ax, layer in zip(axes[0], layers, strict=True):
            for index, (name, run) in enumerate(runs.items()):
                first, *later = run[measure].sel(layer=layer).transpose("step", ...).values
                last = first
                for frame in later:  # the last step that each seed has reached
                    last = np.where(np.isfinite(frame), frame, last)
                gain = (last - first).ravel()
                count = run["count"].sel(layer=layer).values.ravel()
                fine = np.isfinite(gain) & np.isfinite(count)
                shift = 0.25 * (index - (len(runs) - 1) / 2)
                color = COLORS[(index + 1) % len(COLORS)]
                marker = MARKERS[(index + 1) % len(MARKERS)]
                ax.plot(
                    count[fine] + shift,
                    gain[fine],
                    marker,
                    color=color,
                    alpha=0.6,
                    label=_NAMES.get(name, name),
                )
                means = [(c, gain[fine & (count == c)].mean()) for c in np.unique(count[fine])]
                ax.plot(*zip(*means, strict=True), color=color, linestyle=LINES[(index + 1) % len(LINES)])
            ax.axhline(0, color="#7F7F7F", linewidth=0.8)
            ax.set(title=f"layer {layer}", xlabel="classes that use the latent")
        axes[0, 0].set_ylabel("correlation, end minus start")
        axes[0, -1].legend()
    return figure


def _steps(ax: Axes) -> None:
    """Steps from 0 on, logarithmic from 1."""
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(0, None)
    ax.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1,000"])
    ax.set_xlabel("training step")
