"""Tiny random decoders, made on the spot, whose maps and matrices are far from uniform."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 40
KINDS = ("opt", "gpt_neox", "gpt2", "llama")


def tiny(kind: str, *, seed: int = 0, layers: int = 2, scale: float = 15.0) -> Any:
    """A decoder of one family with random weights, biases and norms; attention is peaked enough to tell maps apart."""
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "attn_implementation": "sdpa"}
    if kind == "opt":
        config: Any = transformers.OPTConfig(
            hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=layers,
            num_attention_heads=4, max_position_embeddings=64, **common,
        )  # fmt: skip
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=32, n_layer=layers, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0, **common
        )
    else:
        more: dict[str, Any] = {"num_key_value_heads": 2} if kind == "llama" else {}
        make = transformers.LlamaConfig if kind == "llama" else transformers.GPTNeoXConfig
        config = make(
            hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
            max_position_embeddings=64, **more, **common,
        )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            parameter.data = parameter.data * (scale if parameter.ndim > 1 else 1) + 0.05 * noise
    return model


def tokens(sequences: int = 3, length: int = 9, seed: int = 1) -> torch.Tensor:
    """Random token ids [sequences, length]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (sequences, length), generator=generator)
