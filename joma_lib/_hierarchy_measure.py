"""What Table 1 measures, NCorr, and what it needs beside it: a null distribution and unseen sequences."""

from __future__ import annotations

from typing import Any

from joma_lib import _lazy
from joma_lib._hierarchy_data import Hierarchy
from joma_lib._hierarchy_model import Distinct, HierarchyModel, inside

torch = _lazy.require("torch", extra="torch")

_TINY = 1e-9


def correlations(nodes: Any, latents: Any) -> Any:
    """Return the correlation over samples of every latent with every node, float64 [N, K].

    Parameters
    ----------
    nodes : [n, K] activations
    latents : bool or float [n, N]

    A latent that does not vary over the samples gives NaN; a node that does not vary gives 0: it tells nothing.

    >>> correlations(torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]), torch.tensor([[0], [0], [1]])).round(decimals=3)
    tensor([[0.8660, 0.0000]], dtype=torch.float64)
    """
    a, b = _unit(nodes.double()), _unit(latents.double())
    out = b.T @ a
    out[(b == 0).all(0)] = torch.nan
    return out


def best_nodes(nodes: Any, latents: Any) -> tuple[Any, Any]:
    """Return for each latent the best correlation over the nodes [N] (NaN for a constant latent), and that node [N]."""
    found = correlations(nodes, latents)
    value, node = found.nan_to_num(-2.0).max(1)
    return torch.where(found[:, 0].isnan(), torch.nan, value), node


def ncorr(nodes: Any, latents: Any, *, used_only: bool = True) -> float:
    """Return NCorr: for each latent the best correlation over hidden nodes, averaged over latents.

    `used_only` leaves out latents that do not vary over the samples; without it they count 0.

    >>> round(ncorr(torch.eye(3), torch.eye(3)), 6)
    1.0
    """
    value = best_nodes(nodes, latents)[0]
    return float(value.nanmean() if used_only else value.nan_to_num(0.0).mean())


def null_ncorr(nodes: Any, latents: Any, draws: int, generator: Any) -> Any:
    """Return NCorr with the samples of the latents permuted, [draws]: how high best-of-many is by chance."""
    latents = latents[:, latents.any(0) & ~latents.all(0)]
    a, b = _unit(nodes.double()), _unit(latents.double())
    out = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        order = torch.randperm(len(b), generator=generator)
        out[draw] = (b[order].T @ a).amax(1).mean()
    return out


def cross_fitted(nodes: Any, latents: Any) -> Any:
    """Return for each latent [N] the correlation of a node chosen on one half of the samples, on the other half.

    Both ways, averaged. Not inflated by the choice among many nodes.
    """
    halves = (slice(0, None, 2), slice(1, None, 2))
    return (
        sum(_elsewhere(nodes[a], latents[a], nodes[b], latents[b]) for a, b in (halves, halves[::-1])) / 2
        if len(nodes) > 1
        else torch.full(latents.shape[1:], torch.nan, dtype=torch.float64)
    )


class Probe:
    """Measures one model on one hierarchy, step after step; remembers the attention it saw first."""

    def __init__(self, data: Hierarchy, dtype: Any, device: Any, seed: int) -> None:
        self.data = data
        self.seed = seed
        padding = data.config.tokens - 1
        self.seen = Distinct.of(data.sequences.to(device), padding, dtype)
        self.fresh = Distinct.of(data.fresh.to(device), padding, dtype) if len(data.fresh) else None
        most = self.seen.grid.shape[1]
        heights = data.heights(data.sequences, data.on)[:, -most:, -most:]
        self.pairs = torch.where(torch.ones(most, most, dtype=torch.bool).tril(-1), heights, 0)
        self.visible = (data.config.length - most + 1 + torch.arange(most))[None, :, None].double()
        self.first: list[Any] = []

    def measure(self, model: HierarchyModel) -> dict[str, Any]:
        """Return the measured arrays of this moment, float64; layers first, latents padded with NaN."""
        pooled, weights = inside(model, self.seen)
        weights = [weight.double().cpu() for weight in weights]
        if not self.first:
            self.first = weights
        unseen = inside(model, self.fresh)[0] if self.fresh is not None else [None] * len(pooled)
        rows = [
            self._layer(level, nodes.cpu(), None if new is None else new.cpu(), weight)
            for level, (nodes, new, weight) in enumerate(zip(pooled, unseen, weights, strict=True))
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _layer(self, level: int, nodes: Any, new: Any, weight: Any) -> dict[str, Any]:
        config, on = self.data.config, self.data.on[level]
        generator = torch.Generator().manual_seed(self.seed)
        value, _ = best_nodes(nodes, on)
        null = null_ncorr(nodes, on, config.permutations, generator)
        nothing = torch.full((on.shape[1],), torch.nan, dtype=torch.float64)
        fresh_on = self.data.fresh_on[level]
        heldout = nothing if new is None else _elsewhere(nodes, on, new, fresh_on)
        crossfit = nothing if new is None else cross_fitted(new, fresh_on)
        most = max(config.latents)
        out = {
            "correlation": _wide(value, most),
            "heldout": _wide(heldout, most),
            "crossfit": _wide(crossfit, most),
            "ncorr": value.nan_to_num(0.0).mean(),
            "null_mean": null.mean() if len(null) else nothing[0],
            "null_high": null.quantile(0.95) if len(null) else nothing[0],
        }
        active = self.seen.active.cpu()
        padding = self.seen.padding.double().cpu().exp()
        spread = weight[..., -1:].clamp_min(1e-300) / padding.clamp_min(1)
        entropy = torch.special.entr(weight[..., :-1]).sum(-1) - weight[..., -1] * spread.log()[..., 0]
        out["attention_entropy"] = entropy[active].mean()
        out["attention_shift"] = (weight - self.first[level]).abs().sum(-1)[active].mean() / 2
        lift = weight[..., :-1] * self.visible
        for height in range(1, len(config.latents) + 2):
            at = self.pairs == height
            out[f"lift_{height}"] = lift[at].mean() if at.any() else nothing[0]
        return out


def _unit(values: Any) -> Any:
    """Columns centred and of length 1; 0 where a column does not vary."""
    centred = values - values.mean(0)
    length = centred.norm(dim=0)
    fine = length > _TINY * values.norm(dim=0).clamp_min(_TINY)
    return torch.where(fine, centred / torch.where(fine, length, 1.0), 0.0)


def _elsewhere(nodes: Any, latents: Any, new_nodes: Any, new_latents: Any) -> Any:
    """Correlation on new samples of the node that is best on the old ones; NaN where either is undefined."""
    value, node = best_nodes(nodes, latents)
    found = correlations(new_nodes, new_latents)[torch.arange(len(node)), node]
    return torch.where(value.isnan(), torch.nan, found)


def _wide(values: Any, most: int) -> Any:
    return torch.cat([values, torch.full((most - len(values),), torch.nan, dtype=torch.float64)])
