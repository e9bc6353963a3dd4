"""Figure 2: what the invariant predicts for the logits, against what training did."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, LINES, MARKERS, band, new_figure, panel_label, style
from joma_lib.invariants import conserved
from joma_lib.metrics import normalized_correlation

__all__ = ["figure_2", "predicted_changes"]


def figure_2(runs: xr.Dataset | Mapping[str, xr.Dataset], *, mean_attention: str = "class mean") -> Figure:
    """Draw Figure 2 from runs of `joma_lib.block.train_block` (one, or several by name, such as the activation's).

    (a) the token frequencies x of the first seed; (b) for the first run and seed, the change of the logits at the end
    beside the predicted one, each divided by its norm; (c) normalised correlation of the two, (d) relative L2 error
    ‖predicted − true‖ / ‖true‖, over steps: mean over seeds and one standard deviation.

    Parameters
    ----------
    runs : with z, v, x; one query
    mean_attention : what stands for b̄ in the softmax case: "class mean" (mean of x over samples, as in the published
        script) or "current" (the measured b̄(t))

    Raises
    ------
    ValueError : no run, a run without z, v and x or with several queries, or an unknown `mean_attention`.

    Theorem 1; chapter `invariant`.
    """
    named = {"run": runs} if isinstance(runs, xr.Dataset) else dict(runs)
    if not named:
        raise ValueError("runs is empty; give at least one run of train_block")
    with style():
        figure, axes = new_figure(2, 2, size=(8.4, 6.0))
        (frequencies, shape), (correlation, error) = axes
        first = next(iter(named.values()))
        for index, (name, run) in enumerate(named.items()):
            truth, predicted = predicted_changes(run, mean_attention=mean_attention)
            steps = run.step.values[1:]
            band(
                correlation, steps, normalized_correlation(predicted, truth, dim=-1), index=index, label=name
            )
            relative = np.linalg.norm(predicted - truth, axis=-1) / np.linalg.norm(truth, axis=-1)
            band(error, steps, relative, index=index, label=name)
            if index == 0:
                for values, label, mark in ((truth, "trained", 0), (predicted, "predicted", 1)):
                    last = values[0, -1] / np.linalg.norm(values[0, -1])
                    shape.plot(
                        last, color=COLORS[mark], linestyle=LINES[mark], marker=MARKERS[mark], label=label
                    )
        image = frequencies.imshow(
            first.x.values[0].T, aspect="auto", origin="lower", interpolation="nearest"
        )
        figure.colorbar(image, ax=frequencies, label="token frequency $x_l$")
        frequencies.grid(False)
        frequencies.set(xlabel="class", ylabel="contextual token $l$")
        shape.set(
            xlabel="contextual token $l$", ylabel="$\\Delta z_l\\,/\\,\\|\\Delta z\\|$ at the last step"
        )
        correlation.set(xlabel="step", ylabel="normalised correlation")
        error.set(xlabel="step", ylabel="relative $L_2$ error", yscale="log")
        for at, (one, title) in enumerate(
            (
                (frequencies, "data"),
                (shape, f"shape of $\\Delta z$ ({next(iter(named))}, one seed)"),
                (correlation, "what the paper reports"),
                (error, "what that hides: scale and offset"),
            )
        ):
            panel_label(one, f"({'abcd'[at]}) {title}")
        shape.legend()
        correlation.legend()
        error.legend()
    return figure


def predicted_changes(
    run: xr.Dataset, *, mean_attention: str = "class mean"
) -> tuple[np.ndarray, np.ndarray]:
    """Return (z(t) − z(0), what the invariant makes of it), each [seed, step without the first, token].

    If the quantity of `joma_lib.invariants.conserved` kept its value, the second would equal the first.
    """
    if mean_attention not in ("class mean", "current"):
        raise ValueError(f"mean_attention {mean_attention!r} is unknown; use 'class mean' or 'current'")
    missing = {"z", "v", "x", "mean_attention"} - set(run)
    if missing or "query" in run.z.dims:
        lack = f"lacks {', '.join(sorted(missing))}" if missing else "has several queries"
        raise ValueError(f"the run {lack}; give a run of train_block with one query")
    config = json.loads(run.attrs["config"])
    if config["attention"] == "linear":
        raise ValueError("linear attention conserves z² and says nothing of a sign; compare z² itself")
    if mean_attention == "current":
        mean = run.mean_attention.transpose("seed", "step", "token").values
    else:
        mean = np.broadcast_to(run.x.mean("sample").values[:, None], run.z.shape)
    law = conserved(
        config["attention"],
        run.z.transpose("seed", "step", "token").values,
        run.v.transpose("seed", "step", "node", "token").values,
        mean_attention=mean if config["attention"] == "softmax" else None,
        temperature=config["temperature"],
    )
    z = run.z.transpose("seed", "step", "token").values
    truth = z[:, 1:] - z[:, :1]
    return truth, truth - (law[:, 1:] - law[:, :1])
