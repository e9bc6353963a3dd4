"""Figure 4: salient components first, then the others; attention sparse, then dense. And where the bounce happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from joma_lib.figures._style import COLORS, LINES, MARKERS, band, new_figure, panel_label, style

__all__ = ["bounce_map", "figure_4"]

_NEEDED = {"v", "mu", "entropy"}


def figure_4(
    runs: xr.Dataset | Mapping[str, xr.Dataset],
    *,
    draw: int = 0,
    steps: Sequence[int] | None = None,
    level: float = 0.05,
) -> Figure:
    """Draw Figure 4 from runs of `joma_lib.salience.salient_runs` (one, or several by name).

    (a) the weights of one draw of the first run at some steps, beside their targets μ; (b) for the first run v/μ of the
    components with the largest, a middle and the smallest target; (c) entropy of the attention, all runs: means over
    draws and one standard deviation; (d) by how much entropy comes back from its lowest value, draws in rising order.

    Parameters
    ----------
    runs : with v (draw, step, component), mu (draw, component), entropy (draw, step), as `salient_runs` returns
    draw : the draw of panel (a)
    steps : recorded steps of panel (a); without it the start and about 3, 10, 20 and 100 % of the run
    level : a rebound above it (nats) counts as a bounce, marked in (d)

    Raises
    ------
    ValueError : no run, a run without the variables above, or a draw or step that it does not hold.

    Chapter `sparse_then_dense`.
    """
    named = _checked(runs)
    name, first = next(iter(named.items()))
    if not 0 <= draw < first.sizes["draw"]:
        raise ValueError(f"draw is {draw}, but the run holds draws 0 to {first.sizes['draw'] - 1}")
    recorded = first.step.values
    if steps is None:
        chosen = recorded[np.unique((np.array([0, 0.03, 0.1, 0.2, 1]) * (len(recorded) - 1)).astype(int))]
    else:
        chosen = np.asarray(steps)
        if not np.isin(chosen, recorded).all():
            missing = chosen[~np.isin(chosen, recorded)]
            raise ValueError(
                f"step {missing[0]} was not recorded; choose among the run's {len(recorded)} steps"
            )
    with style():
        figure, axes = new_figure(2, 2, size=(8.4, 6.2))
        (weights, reached), (entropy, back) = axes
        one = first.isel(draw=draw).transpose("step", "component", ...)
        rank = np.arange(1, one.sizes["component"] + 1)
        for index, step in enumerate(chosen):
            weights.plot(
                rank,
                one.v.sel(step=step).values,
                color=COLORS[(index + 1) % len(COLORS)],
                linestyle=LINES[(index + 1) % len(LINES)],
                marker=MARKERS[(index + 1) % len(MARKERS)],
                label=f"step {step}",
            )
        weights.plot(rank, one.mu.values, color="0.6", linewidth=4, zorder=0, label="target $\\mu$")
        weights.set(xlabel="component, by growing $\\mu$", ylabel="weight $v$")
        weights.set_ylim(top=1.5 * max(float(one.mu.max()), float(one.v.max())))
        order = np.argsort(first.mu.transpose("draw", "component").values, axis=1)
        fraction = (first.v / first.mu).transpose("draw", "step", "component").values
        for index, (place, label) in enumerate(
            ((-1, "largest $\\mu$"), (order.shape[1] // 2, "middle $\\mu$"), (0, "smallest $\\mu$"))
        ):
            curve = np.take_along_axis(fraction, order[:, place][:, None, None], axis=2)[..., 0]
            band(reached, recorded, curve, index=index, label=label)
        reached.set(xlabel="step", ylabel="$v/\\mu$")
        for index, (label, run) in enumerate(named.items()):
            values = run.entropy.transpose("draw", "step").values
            band(entropy, run.step.values, values, index=index, label=label)
            rebound = np.sort(values[:, -1] - values.min(axis=1))
            share = np.arange(1, len(rebound) + 1) / len(rebound)
            back.plot(
                share,
                rebound,
                color=COLORS[index % len(COLORS)],
                linestyle=LINES[index % len(LINES)],
                label=label,
            )
        back.axhline(level, color="0.4", linewidth=1, linestyle=":")
        entropy.set(xlabel="step", ylabel="attention entropy (nats)", ylim=(0, None))
        back.set(xlabel="share of draws", ylabel="rebound of the entropy (nats)")
        for at, (panel, title) in enumerate(
            (
                (weights, f"weights of one draw ({name})"),
                (reached, f"how far they have come ({name})"),
                (entropy, "entropy: sparse, then dense"),
                (back, f"rebound in each draw (dotted: {level:g})"),
            )
        ):
            panel_label(panel, f"({'abcd'[at]}) {title}")
            panel.legend(ncols=2 if panel is weights else 1, loc="upper left" if panel is weights else "best")
    return figure


def _checked(runs: xr.Dataset | Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    named = {"run": runs} if isinstance(runs, xr.Dataset) else dict(runs)
    if not named:
        raise ValueError("runs is empty; give at least one Dataset of salient_runs")
    for name, run in named.items():
        lack = _NEEDED - set(run)
        if lack:
            raise ValueError(f"run {name!r} lacks {', '.join(sorted(lack))}; give a Dataset of salient_runs")
    return named


def bounce_map(
    maps: Mapping[str, xr.DataArray],
    *,
    level: float = 0.05,
    mark: tuple[float, float] | None = (3.0, 3.0),
    label: str = "rebound of the entropy (nats)",
) -> Figure:
    """Draw where entropy bounces: one map a panel, over the divisor τ (log scale; above it T = √(τ/2)) and the spread of μ.

    Parameters
    ----------
    maps : title: values with dimensions spread and tau, coordinates of the same names; at least 2 of each
    level : a contour here divides bounce from no bounce
    mark : (tau, spread) of a star, the published setting; None for none
    label : of the colour bar

    Raises
    ------
    ValueError : no map, other dimensions, a map too small for a contour.

    Chapter `sparse_then_dense`.
    """
    if not maps:
        raise ValueError("maps is empty; give at least one DataArray with dimensions spread and tau")
    for name, values in maps.items():
        if set(values.dims) != {"spread", "tau"} or min(values.shape) < 2:
            raise ValueError(
                f"map {name!r} has dimensions {dict(values.sizes)}; it needs spread and tau, at least 2 of each"
            )
    top = max(float(values.max()) for values in maps.values())
    with style():
        figure, axes = new_figure(1, len(maps), size=(4.4 * len(maps), 3.7), sharey=True)
        for axis, (name, values) in zip(axes[0], maps.items(), strict=True):
            field = values.transpose("spread", "tau")
            tau, spread = field.tau.values, field.spread.values
            image = axis.pcolormesh(tau, spread, field.values, shading="nearest", vmin=0, vmax=max(top, 1e-9))
            if float(field.min()) < level < float(field.max()):
                axis.contour(tau, spread, field.values, levels=[level], colors="white", linestyles="--")
            if mark is not None:
                axis.plot(*mark, marker="*", markersize=13, color="white", markeredgecolor="black")
            axis.set(xscale="log", xlabel="divisor $\\tau$ of $v^2$")
            axis.set_xticks(ticks := [t for t in (0.5, 1, 2, 3, 5, 8, 16) if tau.min() <= t <= tau.max()])
            axis.set_xticklabels([f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            above = axis.secondary_xaxis("top", functions=(lambda t: np.sqrt(t / 2), lambda T: 2 * T * T))
            above.set_xlabel("temperature $T = \\sqrt{\\tau/2}$")
            above.set_xticks([T for T in (0.5, 0.7, 1, 1.4, 2, 2.8) if tau.min() <= 2 * T * T <= tau.max()])
            above.xaxis.set_major_formatter("{x:g}")
            above.minorticks_off()
            axis.grid(False)
            axis.set_title(name, loc="left")
        axes[0, 0].set_ylabel("spread of $\\mu$ (largest less smallest possible)")
        figure.colorbar(image, ax=list(axes[0]), label=label)
    return figure
