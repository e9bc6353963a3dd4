"""Where a decoder keeps its attention and its weights: one table for the families that differ, in one layout.

Matrices come as [outputs, inputs], queries and keys as [heads, head width, model width], whatever the family stores:
OPT and Llama-like models keep separate projections, GPT-NeoX one matrix interleaved by head, GPT-2 one transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import joma_lib._lazy

torch = joma_lib._lazy.require("torch", extra="torch")

__all__ = ["Layer", "find_layers", "matrices_of", "unwrap"]

_KNOWN = "OPT, GPT-NeoX/Pythia, GPT-2 and Llama-like decoders"
_CALLABLES = "pass the callables attention_maps and matrices instead"


@dataclass(frozen=True)
class Layer:
    """One layer of a known decoder: the module that returns the attention map, and what reads the matrices."""

    attention: Any
    feed_forward: Callable[[], dict[str, Any]]
    query_key: Callable[[], tuple[Any, Any]]


def unwrap(model: Any) -> Any:
    """Return the module inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def find_layers(model: Any) -> list[Layer]:
    """Return the layers of a Hugging Face decoder, in order.

    Raises
    ------
    ValueError : the model is of another kind, or one of its layers is laid out in a way that is not known.
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or not hasattr(model, "base_model_prefix"):
        raise ValueError(f"{name} is no Hugging Face decoder; {_CALLABLES}")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} is an encoder-decoder; only decoders are measured ({_KNOWN}), or {_CALLABLES}"
        )
    blocks = _blocks(model)
    if blocks is None or len(blocks) == 0:
        raise ValueError(f"{name} is none of {_KNOWN}; {_CALLABLES}")
    expected = getattr(config, "num_hidden_layers", len(blocks))
    if len(blocks) != expected:
        raise ValueError(
            f"{name} has {len(blocks)} layers, its config says {expected}; load a matching config"
        )
    return [_layer(block, at, config, name) for at, block in enumerate(blocks)]


def _blocks(model: Any) -> Any:
    """Return the list of layers below the base model, or None for an unknown kind."""
    base = getattr(model, "base_model", model)
    for path in ("decoder.layers", "layers", "h"):
        found: Any = base
        for part in path.split("."):
            found = getattr(found, part, None)
        if isinstance(found, torch.nn.ModuleList):
            return found
    return None


def _layer(block: Any, at: int, config: Any, name: str) -> Layer:
    heads = config.num_attention_heads
    attention = next(
        (getattr(block, key) for key in ("self_attn", "attention", "attn") if hasattr(block, key)), None
    )
    mlp = getattr(block, "mlp", None)

    def weight(owner: Any, key: str) -> Any:
        return _weight(getattr(owner, key), f"{key} of layer {at}")

    def separate() -> tuple[Any, Any]:
        for key in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
            if getattr(attention, key, None) is not None:
                raise ValueError(
                    f"{name} normalises queries or keys ({key}), so its logits are no product of two matrices; "
                    "measure it with weights=False"
                )
        query, key = weight(attention, "q_proj"), weight(attention, "k_proj")
        width = query.shape[0] // heads
        key = key.reshape(-1, width, key.shape[1])
        if heads % key.shape[0]:
            raise ValueError(
                f"layer {at} of {name} has {heads} heads on {key.shape[0]} keys; measure with weights=False"
            )
        return query.reshape(heads, width, -1), key.repeat_interleave(heads // key.shape[0], 0)

    def interleaved() -> tuple[Any, Any]:
        fused = weight(attention, "query_key_value")
        query, key, _ = fused.reshape(heads, -1, fused.shape[1]).chunk(3, 1)
        return query, key

    def transposed() -> tuple[Any, Any]:
        fused = weight(attention, "c_attn")
        query, key, _ = fused.chunk(3, 0)
        return query.reshape(heads, -1, query.shape[1]), key.reshape(heads, -1, key.shape[1])

    if hasattr(attention, "q_proj") and hasattr(attention, "k_proj"):
        query_key = separate
    elif hasattr(attention, "query_key_value") and getattr(config, "model_type", "") == "gpt_neox":
        query_key = interleaved
    elif hasattr(attention, "c_attn") and getattr(config, "model_type", "") == "gpt2":
        query_key = transposed
    else:
        raise ValueError(
            f"the attention of layer {at} of {name} is laid out as none of {_KNOWN}; {_CALLABLES}"
        )

    def feed_forward() -> dict[str, Any]:
        for owner, lower, upper in (
            (block, "fc1", "fc2"),
            (mlp, "fc1", "fc2"),
            (mlp, "dense_h_to_4h", "dense_4h_to_h"),
            (mlp, "c_fc", "c_proj"),
        ):
            if hasattr(owner, lower) and hasattr(owner, upper):
                return {"lower": weight(owner, lower), "upper": weight(owner, upper)}
        if all(hasattr(mlp, key) for key in ("gate_proj", "up_proj", "down_proj")):
            names = {"gate": "gate_proj", "up": "up_proj", "upper": "down_proj"}
            return {short: weight(mlp, key) for short, key in names.items()}
        raise ValueError(
            f"the feed-forward part of layer {at} of {name} ({type(mlp).__name__}) is not known (a mixture of experts?); "
            "measure it with weights=False"
        )

    return Layer(attention, feed_forward, query_key)


def _weight(module: Any, where: str) -> Any:
    """Return a projection's weight as [outputs, inputs]; refuse adapters and quantised weights around it."""
    kind, weight = type(module).__name__, getattr(module, "weight", None)
    plain = isinstance(module, torch.nn.Linear) or kind == "Conv1D"
    if not plain or not isinstance(weight, torch.Tensor) or hasattr(module, "base_layer"):
        raise ValueError(
            f"{where} is a {kind}, no plain linear map; merge its adapter, or measure with weights=False"
        )
    if not weight.is_floating_point():
        raise ValueError(f"{where} is quantised ({weight.dtype}); load the model in float32")
    weight = weight.detach()
    return weight.T if kind == "Conv1D" else weight


def matrices_of(layers: list[Layer]) -> Iterator[dict[str, Any]]:
    """Yield each layer's matrices in the form that the callable `matrices` of `measure` has."""
    for layer in layers:
        query, key = layer.query_key()
        yield {**layer.feed_forward(), "query": query, "key": key}
