"""Attention entropy and stable rank of one model: `joma_lib.pretrained.measure` and the check of an adapter."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

import joma_lib
import joma_lib._lazy
from joma_lib._adapters import find_layers, matrices_of, unwrap
from joma_lib._forward import (
    compute_dtype,
    parameter_dtype,
    require_loaded,
    stream,
    undisturbed,
    visible_pairs,
)
from joma_lib._probe import draw_queries, prepare_probe
from joma_lib.metrics import attention_entropy, stable_rank
from joma_lib.runs import fingerprint, provenance

torch = joma_lib._lazy.require("torch", extra="torch")

__all__ = ["AttentionMaps", "Matrices", "measure", "product_stable_rank"]

AttentionMaps = Callable[[Any, Any, Any], Iterable[Any]]
"""(model, input_ids, attention_mask) -> each layer's map [batch, heads, queries, keys], after the softmax; a generator keeps one at a time."""
Matrices = Callable[[Any], Iterable[Mapping[str, Any]]]
"""model -> each layer's {"lower": [hidden, width], "upper": [width, hidden], "query", "key": [heads, head width, width]}, as [outputs, inputs]."""

_FEED_FORWARD = (("lower", "upper"), ("gate", "up", "upper"))
_DEFINITIONS = {
    "attention_entropy": "mean over real queries, the first of a sequence included, of -sum p ln p in nats; rows renormalised",
    "attention_entropy_normalized": "each row over ln(number of positions it sees), then the mean; rows that see one position left out",
    "attention_entropy_se": "standard error of attention_entropy over sequences, weighted by their numbers of queries; NaN for one sequence",
    "stable_rank": "squared Frobenius norm over squared spectral norm of the MLP's matrices, exact singular values",
    "query_key_stable_rank": "the same of W_Q^T W_K by head, before rotary embedding, biases aside; grouped keys repeated",
    "neuron_norm": "Euclidean norm by hidden neuron: its incoming weights (lower, gate, up), its outgoing ones (upper)",
}


def measure(
    model: Any,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    weights: bool = True,
    layers: Sequence[int] | None = None,
    batch_size: int = 8,
    queries: int | None = None,
    seed: int = 0,
    attention_maps: AttentionMaps | None = None,
    matrices: Matrices | None = None,
    causal: bool = True,
) -> xr.Dataset:
    """Measure a decoder's attention entropy on some sequences, and the stable rank of its matrices.

    One layer's maps exist at a time, in float32 or better whatever the checkpoint's dtype. The model runs in eval mode with
    eager attention; its modes, attention, parameters and the random streams are afterwards as before, also after an error.

    Parameters
    ----------
    model : a decoder of transformers (OPT, GPT-NeoX/Pythia, GPT-2, Llama-like), or with the two callables any `nn.Module`
    input_ids : integers [sequences, positions], a tensor or anything NumPy reads
    attention_mask : [sequences, positions], 1 for real tokens, 0 for padding on either side; None: all are real
    weights : also measure the matrices (this does not depend on the sequences, and may take longer than the entropies)
    layers : indices of the layers to measure, from 0; None: all
    batch_size : sequences at a time; changes memory, not the numbers
    queries : measure at most this many queries a sequence, drawn with `seed`; None: all
    attention_maps : callable (model, input_ids, attention_mask) -> iterable of each layer's map [batch, heads, queries, keys]
    matrices : callable (model) -> iterable of each layer's mapping with `lower` and `upper` (or `gate`, `up`, `upper`) as
        [outputs, inputs], and, if there are such, `query` and `key` as [heads, head width, model width]
    causal : with `attention_maps`: a query sees itself and what is before it; False: all real positions

    Returns
    -------
    Dataset : attention_entropy (layer, head) in nats, attention_entropy_normalized, attention_entropy_se; with `weights`
        stable_rank (layer, matrix), query_key_stable_rank (layer, head), neuron_norm (layer, matrix, neuron). Attributes:
        model, dtype, compute_dtype, definitions, versions, weights_sha256 and a line to cite, among others.

    Raises
    ------
    ValueError : a model of another kind without callables, quantised or absent parameters, a map that did not arrive, is
        no attention or sees the future, activations or matrices that are not finite, ids or a mask that do not fit.
    TypeError : a model that is no `nn.Module`, ids that are no integers.

    The quantities of the paper's Figures 6 to 8; chapter `pretrained`.

    >>> maps = lambda model, ids, mask: [torch.full((1, 1, 2, 2), 0.5).tril() * torch.tensor([[2.0], [1.0]])]
    >>> float(measure(torch.nn.Linear(1, 1), [[0, 1]], weights=False, attention_maps=maps).attention_entropy[0, 0].round(4))
    0.3466
    """
    started = time.perf_counter()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; load it first, as an nn.Module")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; give 1 or more")
    model = unwrap(model)
    require_loaded(model)
    own_maps, own_matrices = attention_maps is not None, matrices is not None
    if weights and own_maps and not own_matrices:
        raise ValueError(
            "attention_maps is given without matrices; pass the callable matrices too, or weights=False"
        )
    known = None if own_maps and (own_matrices or not weights) else find_layers(model)
    ids, mask = prepare_probe(model, input_ids, attention_mask)
    kept = mask if queries is None else draw_queries(mask, queries, seed)
    with undisturbed(model, eager=not own_maps):
        sums = _Sums(type(model).__name__, ids.shape[0])
        for start in range(0, ids.shape[0], batch_size):
            part = slice(start, start + batch_size)
            few, real, wanted = ids[part], mask[part], kept[part]

            def receive(at: int, found: Any, visible: Any, part: Any = part, wanted: Any = wanted) -> None:
                sums.add(at, found, visible, wanted, part)

            if attention_maps is not None:
                _stream_callable(attention_maps, model, few, real, causal, layers, receive)
            else:
                stream(model, known, _chosen(layers, len(known)), few, real, receive)  # type: ignore[arg-type]
        result = sums.dataset()
        if weights:
            source = matrices(model) if matrices is not None else matrices_of(known)  # type: ignore[arg-type]
            result = result.merge(_matrices(source, result.layer.values.tolist(), result.sizes["head"]))
    for name, text in _DEFINITIONS.items():
        if name in result:
            units = {"units": "nats"} if name in ("attention_entropy", "attention_entropy_se") else {}
            result[name].attrs.update(definition=text, **units)
    settings = {
        "queries": queries or "all",
        "query_seed": seed,
        "sequences": ids.shape[0],
        "tokens": int(mask.sum()),
    }
    probe = fingerprint(ids.cpu().numpy(), mask.cpu().numpy())
    elapsed = time.perf_counter() - started
    result.attrs.update(provenance(settings, seeds=[], device=ids.device, wall_seconds=elapsed, data=probe))
    result.attrs.update(_identity(model, weights))
    return result


class _Sums:
    """Sums of entropy by sequence and head, layer by layer."""

    def __init__(self, name: str, sequences: int) -> None:
        self.name, self.sequences = name, sequences
        self.layers: dict[int, dict[str, np.ndarray]] = {}

    def add(self, at: int, found: Any, visible: Any, kept: Any, part: slice) -> None:
        """Add a layer's map [batch, heads, queries, keys] for the kept queries [batch, queries]."""
        rows = kept[:, None].expand(found.shape[:3])
        try:
            entropy = attention_entropy(found, mask=None if bool(kept.all()) else rows)
        except ValueError as error:
            raise ValueError(f"layer {at} of {self.name}: {error}") from None
        full = torch.zeros(found.shape[:3], dtype=torch.float64, device=entropy.device)
        full[rows] = entropy.double().reshape(-1)
        bound = visible[:, None].double().clamp_min(1).log()
        if bool((full > bound + 1e-3).any()):
            raise ValueError(
                f"layer {at} of {self.name} attends to more positions than its queries should see; "
                "it is not causal or ignores the mask, so pass attention_maps (and causal=False where that is meant)"
            )
        several = (visible > 1) & kept
        ratio = torch.where(several[:, None], full / bound.clamp_min(1e-9), 0.0)
        layer = self.layers.setdefault(
            at,
            {key: np.zeros((self.sequences, found.shape[1])) for key in ("sum", "ratio", "rows", "several")},
        )
        layer["sum"][part], layer["ratio"][part] = full.sum(-1).cpu().numpy(), ratio.sum(-1).cpu().numpy()
        layer["rows"][part] = kept.sum(-1, keepdim=True).cpu().numpy()
        layer["several"][part] = several.sum(-1, keepdim=True).cpu().numpy()

    def dataset(self) -> xr.Dataset:
        """Pool over the queries of all sequences; the standard error is that of a ratio of sums over sequences."""
        chosen = sorted(self.layers)
        heads = {self.layers[at]["sum"].shape[1] for at in chosen}
        if len(heads) != 1:
            raise ValueError(
                f"the layers of {self.name} have {sorted(heads)} heads; measure those that agree, by layers="
            )
        total, ratio, rows, several = (
            np.stack([self.layers[at][key] for at in chosen]) for key in ("sum", "ratio", "rows", "several")
        )
        if not several.sum():
            raise ValueError("no query measured sees more than one position; give longer sequences")
        mean = total.sum(1) / rows.sum(1)
        n = self.sequences
        spread = ((total - rows * mean[:, None]) ** 2).sum(1)
        error = np.sqrt(spread * n / (n - 1)) / rows.sum(1) if n > 1 else np.full_like(mean, np.nan)
        values = {
            "attention_entropy": mean,
            "attention_entropy_normalized": ratio.sum(1) / several.sum(1),
            "attention_entropy_se": error,
        }
        return xr.Dataset(
            {name: (("layer", "head"), value) for name, value in values.items()},
            coords={"layer": chosen, "head": np.arange(mean.shape[1])},
        )


def _chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return list(range(count))
    chosen = sorted({int(at) for at in layers})
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        raise ValueError(f"layers is {list(layers)}, the model has {count}; choose from 0 to {count - 1}")
    return chosen


def _stream_callable(
    attention_maps: AttentionMaps,
    model: Any,
    ids: Any,
    mask: Any,
    causal: bool,
    layers: Sequence[int] | None,
    receive: Callable[[int, Any, Any], None],
) -> None:
    pairs = visible_pairs(mask).sum(-1) if causal else mask.sum(-1, keepdim=True).expand(mask.shape)
    at = -1
    for at, found in enumerate(attention_maps(model, ids, mask)):
        if not isinstance(found, torch.Tensor) or found.ndim != 4:
            what = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ValueError(
                f"attention_maps gave {what} for layer {at}; give a tensor [batch, heads, queries, keys]"
            )
        batch, _, rows, keys = found.shape
        if (batch, rows, keys) != (ids.shape[0], ids.shape[1], ids.shape[1]):
            raise ValueError(
                f"attention_maps gave shape {tuple(found.shape)} for layer {at} of input {tuple(ids.shape)}; "
                "give [batch, heads, queries, keys]"
            )
        if layers is None or at in layers:
            receive(at, found, pairs)
    _chosen(layers, at + 1)
    if at < 0:
        raise ValueError("attention_maps gave no map at all; yield one for each layer")


def _matrices(source: Iterable[Mapping[str, Any]], chosen: list[int], heads: int) -> xr.Dataset:
    """Return stable ranks and neuron norms of the chosen layers."""
    ranks: list[dict[str, float]] = []
    norms: list[dict[str, np.ndarray]] = []
    products: list[np.ndarray] = []
    for at, layer in enumerate(source):
        if at not in chosen:
            continue
        names = next((kind for kind in _FEED_FORWARD if all(name in layer for name in kind)), None)
        if names is None:
            raise ValueError(
                f"layer {at} names the matrices {sorted(layer)}; give lower and upper, or gate, up and upper"
            )
        hidden = {layer[name].shape[1 if name == "upper" else 0] for name in names}
        if len(hidden) != 1:
            shapes = {name: tuple(layer[name].shape) for name in names}
            raise ValueError(
                f"the matrices of layer {at} have shapes {shapes}; give each as [outputs, inputs]"
            )
        ranks.append({name: _named(f"{name} of layer {at}", stable_rank, layer[name]) for name in names})
        norms.append({name: _norms(layer[name], 0 if name == "upper" else 1) for name in names})
        if "query" in layer and "key" in layer:
            if layer["query"].shape[0] != heads or layer["key"].shape[0] != heads:
                shapes = {name: tuple(layer[name].shape) for name in ("query", "key")}
                raise ValueError(
                    f"layer {at} has {heads} heads, but {shapes}; give [heads, head width, model width]"
                )
            products.append(
                _named(f"query and key of layer {at}", product_stable_rank, layer["query"], layer["key"])
            )
    if len(ranks) != len(chosen):
        raise ValueError(
            f"matrices gave {len(ranks)} of the {len(chosen)} layers measured; yield one mapping a layer"
        )
    parts = list(ranks[0])
    if any(list(one) != parts for one in ranks):
        raise ValueError(
            f"the layers have different feed-forward parts, such as {parts} and {list(ranks[-1])}; choose layers="
        )
    coords = {"layer": chosen, "matrix": parts}
    found = xr.Dataset(
        {"stable_rank": (("layer", "matrix"), [[one[name] for name in parts] for one in ranks])}, coords
    )
    if len({len(one[name]) for one in norms for name in parts}) == 1:
        found["neuron_norm"] = (
            ("layer", "matrix", "neuron"),
            np.array([[one[name] for name in parts] for one in norms]),
        )
    if products:
        found["query_key_stable_rank"] = ("layer", "head"), np.array(products)
    return found


def _named(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        found = function(*arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}, or measure with weights=False") from None
    return float(found) if found.ndim == 0 else found.cpu().numpy()


def _norms(matrix: Any, dim: int) -> np.ndarray:
    return (
        torch.linalg.vector_norm(
            matrix.detach(), dim=dim, dtype=torch.promote_types(matrix.dtype, torch.float32)
        )
        .cpu()
        .numpy()
    )


def product_stable_rank(query: Any, key: Any) -> Any:
    """Return the stable rank of queryᵀ key for each head, of [heads, head width, width], in float64.

    The product is never formed: with QR factors queryᵀ = A R and keyᵀ = B S its singular values are those of R Sᵀ.
    """
    kind = torch.float32 if query.device.type == "mps" else torch.float64
    r, s = (torch.linalg.qr(one.to(kind).mT, mode="r").R for one in (query, key))
    return stable_rank(r @ s.mT)


def _identity(model: Any, weights: bool) -> dict[str, str]:
    """Return the attributes that say what was measured, and how to cite it."""
    config = getattr(model, "config", None)
    origin = str(getattr(config, "name_or_path", "") or "")
    name = type(model).__name__ + (
        f" {os.path.basename(os.path.normpath(origin)) if os.path.exists(origin) else origin}"
        if origin
        else ""
    )
    digest = _weights_hash(model) if weights else "not computed (weights=False)"
    versions = [f"joma_lib {joma_lib.__version__}", f"torch {torch.__version__}"]
    if config is not None and hasattr(model, "base_model_prefix"):
        versions.append(
            f"transformers {joma_lib._lazy.require('transformers', extra='pretrained').__version__}"
        )
    dtype = parameter_dtype(model)
    cite = (
        f"Attention entropy (nats, mean over real queries) and stable rank of {name} ({dtype}, computed in {compute_dtype(model)}"
        f"{f'; weights SHA-256 {digest[:16]}' if weights else ''}), measured with {', '.join(versions)}; "
        "quantities as in Tian et al. (2024), arXiv:2310.00535."
    )
    return {
        "model": name, "dtype": dtype, "compute_dtype": compute_dtype(model), "definitions": json.dumps(_DEFINITIONS),
        "weights_sha256": digest, "citation": cite,
    }  # fmt: skip


def _weights_hash(model: Any) -> str:
    """Return the SHA-256 of all parameters, by name; tied ones once."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}{parameter.dtype}{list(parameter.shape)}".encode())
        digest.update(memoryview(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
