"""Attention maps of small decoders in plain NumPy and float64, from nothing but their parameters.

An independent second opinion on `joma_lib.pretrained.measure`, for its tests and the chapter: no torch operation, no code
shared with it. One sequence at a time, no padding; OPT, GPT-NeoX, GPT-2 and Llama with their usual settings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import erf

__all__ = ["numpy_attention"]

Array = np.ndarray


def numpy_attention(model: Any, ids: Any) -> Array:
    """Return the attention maps [layers, heads, queries, keys] of one sequence of token ids.

    Raises
    ------
    ValueError : a model of another family.
    """
    config, family = model.config, model.config.model_type
    if family not in _BLOCKS:
        raise ValueError(f"model_type is {family!r}; only {', '.join(_BLOCKS)} are written out here")
    p = {
        name.split(".", 1)[-1]: value.detach().double().cpu().numpy()
        for name, value in model.state_dict().items()
    }
    ids = np.asarray(ids)
    x, step = _embed(family, p, ids), _BLOCKS[family]
    maps = []
    for at in range(config.num_hidden_layers):
        x, found = step(config, p, at, x)
        maps.append(found)
    return np.stack(maps)


def _embed(family: str, p: dict[str, Array], ids: Array) -> Array:
    if family == "opt":
        return p["decoder.embed_tokens.weight"][ids] + p["decoder.embed_positions.weight"][2 : 2 + len(ids)]
    if family == "gpt2":
        return p["wte.weight"][ids] + p["wpe.weight"][: len(ids)]
    return p["embed_in.weight" if family == "gpt_neox" else "embed_tokens.weight"][ids]


def _linear(p: dict[str, Array], name: str, x: Array) -> Array:
    return x @ p[name + ".weight"].T + p.get(name + ".bias", 0.0)


def _norm(p: dict[str, Array], name: str, x: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * p[name + ".weight"]
        + p[name + ".bias"]
    )


def _attend(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """[positions, heads, width] each -> ([positions, heads · width], map [heads, queries, keys])."""
    n = len(q)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    found = np.exp(scores - scores.max(-1, keepdims=True))
    found /= found.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", found, v).reshape(n, -1), found


def _rotate(x: Array, width: int, base: float) -> Array:
    half = width // 2
    angles = np.arange(len(x))[:, None, None] / base ** (np.arange(half) * 2 / width)
    a, b = x[..., :half], x[..., half:width]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.concatenate([*turned, x[..., width:]], -1)


def _rope_base(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None) or {}
    return float(rope.get("rope_theta", 10_000.0))


def _opt(config: Any, p: dict[str, Array], at: int, x: Array) -> tuple[Array, Array]:
    name, heads = f"decoder.layers.{at}.", config.num_attention_heads
    y = _norm(p, name + "self_attn_layer_norm", x, 1e-5)
    q, k, v = (_linear(p, f"{name}self_attn.{one}_proj", y).reshape(len(x), heads, -1) for one in "qkv")
    out, found = _attend(q, k, v)
    x = x + _linear(p, name + "self_attn.out_proj", out)
    y = _norm(p, name + "final_layer_norm", x, 1e-5)
    return x + _linear(p, name + "fc2", np.maximum(_linear(p, name + "fc1", y), 0)), found


def _gpt_neox(config: Any, p: dict[str, Array], at: int, x: Array) -> tuple[Array, Array]:
    name, heads, eps = f"layers.{at}.", config.num_attention_heads, config.layer_norm_eps
    y = _norm(p, name + "input_layernorm", x, eps)
    fused = _linear(p, name + "attention.query_key_value", y).reshape(len(x), heads, 3, -1)
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 0.25)
    width = int(fused.shape[-1] * share)
    q, k = (_rotate(fused[:, :, one], width, _rope_base(config)) for one in (0, 1))
    out, found = _attend(q, k, fused[:, :, 2])
    out = _linear(p, name + "attention.dense", out)
    y = _norm(p, name + "post_attention_layernorm", x if config.use_parallel_residual else x + out, eps)
    h = _linear(p, name + "mlp.dense_h_to_4h", y)
    h = h * (1 + erf(h / math.sqrt(2))) / 2
    return x + out + _linear(p, name + "mlp.dense_4h_to_h", h), found


def _gpt2(config: Any, p: dict[str, Array], at: int, x: Array) -> tuple[Array, Array]:
    name, heads, eps = f"h.{at}.", config.num_attention_heads, config.layer_norm_epsilon

    def conv(key: str, value: Array) -> Array:
        return value @ p[name + key + ".weight"] + p[name + key + ".bias"]

    fused = conv("attn.c_attn", _norm(p, name + "ln_1", x, eps)).reshape(len(x), 3, heads, -1)
    out, found = _attend(fused[:, 0], fused[:, 1], fused[:, 2])
    x = x + conv("attn.c_proj", out)
    h = conv("mlp.c_fc", _norm(p, name + "ln_2", x, eps))
    h = h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2
    return x + conv("mlp.c_proj", h), found


def _llama(config: Any, p: dict[str, Array], at: int, x: Array) -> tuple[Array, Array]:
    name, heads, groups = f"layers.{at}.", config.num_attention_heads, config.num_key_value_heads

    def norm(key: str, value: Array) -> Array:
        return (
            value
            / np.sqrt((value**2).mean(-1, keepdims=True) + config.rms_norm_eps)
            * p[f"{name}{key}.weight"]
        )

    y = norm("input_layernorm", x)
    q, k, v = (
        _linear(p, f"{name}self_attn.{one}_proj", y).reshape(len(x), -1, config.head_dim) for one in "qkv"
    )
    q, k = (_rotate(one, config.head_dim, _rope_base(config)) for one in (q, k))
    out, found = _attend(q, *(one.repeat(heads // groups, 1) for one in (k, v)))
    x = x + _linear(p, name + "self_attn.o_proj", out)
    y = norm("post_attention_layernorm", x)
    gate = _linear(p, name + "mlp.gate_proj", y)
    return x + _linear(
        p, name + "mlp.down_proj", gate / (1 + np.exp(-gate)) * _linear(p, name + "mlp.up_proj", y)
    ), found


_BLOCKS = {"opt": _opt, "gpt_neox": _gpt_neox, "gpt2": _gpt2, "llama": _llama}
