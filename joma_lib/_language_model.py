"""The language model of Figures 6 and 8, and a cross-entropy that never holds float32 logits of a whole batch.

Post-norm encoder layers with a causal mask. Weights are drawn in the order of the published script (PyTorch's encoder layer,
copied to each depth; then the embedding; then the decoder), so that the same seed gives the same start. Chapter: wikitext.
"""

from __future__ import annotations

import math
from typing import Any

from joma_lib import _lazy
from joma_lib._language_config import LanguageConfig

torch = _lazy.require("torch", extra="torch")
nn: Any = torch.nn
autograd: Any = torch.autograd

__all__ = ["LanguageModel", "linear_cross_entropy"]

_LOGITS_AT_ONCE = (
    1 << 23
)  # entries of the largest float32 block of logits: 32 MiB, a third of the published batch


class LanguageModel(nn.Module):
    """Encoder layers, embedding and decoder; tokens [length, columns] in, hidden states out.

    >>> model = LanguageModel(LanguageConfig(width=8, hidden=8), types=20, seed=1)
    >>> hidden, maps = model(torch.zeros(5, 2, dtype=torch.long))
    >>> hidden.shape, maps[0].shape
    (torch.Size([5, 2, 8]), torch.Size([2, 1, 5, 5]))
    """

    def __init__(self, config: LanguageConfig, types: int, seed: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 2)
            layer = nn.TransformerEncoderLayer(d, config.heads, config.hidden, config.dropout)
            self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
            self.embedding = nn.Embedding(types, d)
            self.decoder = nn.Linear(d, types)
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
            nn.init.zeros_(self.decoder.bias)
            nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        angle = torch.arange(config.context)[:, None] * torch.exp(
            torch.arange(0, d, 2) * (-math.log(10_000.0) / d)
        )
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(config.context, 1, d)
        self.register_buffer("table", table if config.positions else torch.zeros_like(table))

    def forward(self, tokens: Any, draws: Any = None) -> tuple[Any, list[Any]]:
        """Return (hidden states [length, columns, width], attention maps [columns, heads, queries, keys] by layer).

        With a generator `draws`, dropout acts as in training (the maps are those before it); without, as in evaluation.
        """
        length = len(tokens)
        x = self.embedding(tokens) * math.sqrt(self.config.width) + self.table[:length]
        x = self._drop(x, draws)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        maps = []
        for layer in self.encoder.layers:
            mixed, weights = self._attend(layer.self_attn, x, hidden, draws)
            maps.append(weights)
            x = layer.norm1(x + self._drop(mixed, draws))
            inner = layer.linear1(x)
            if self.config.activation != "linear":
                inner = getattr(nn.functional, self.config.activation)(inner)
            x = layer.norm2(x + self._drop(layer.linear2(self._drop(inner, draws)), draws))
        return x, maps

    def _attend(self, attention: Any, x: Any, hidden: Any, draws: Any) -> tuple[Any, Any]:
        length, columns, d = x.shape
        heads = self.config.heads
        packed = nn.functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        # [length, columns, 3 d] -> three of [columns, heads, length, d / heads]
        query, key, value = packed.view(length, columns, 3, heads, d // heads).permute(2, 1, 3, 0, 4)
        logits = (query / math.sqrt(d // heads)) @ key.transpose(-1, -2)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = (self._drop(weights, draws) @ value).permute(2, 0, 1, 3).reshape(length, columns, d)
        return attention.out_proj(mixed), weights

    def _drop(self, x: Any, draws: Any) -> Any:
        p = self.config.dropout
        if draws is None or p == 0:
            return x
        return x * torch.empty_like(x).bernoulli_(1 - p, generator=draws).div_(1 - p)


class _LinearCrossEntropy(autograd.Function):
    """Sum of −ln softmax(hidden Wᵀ + bias)[target], with the gradient formed block by block on the way.

    The bias rides along as one more column of W, against a column of ones: its gradient comes with that of W.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, targets: Any, dtype: Any, space: Any) -> Any:
        needed = any(ctx.needs_input_grad)
        types, d = weight.shape
        columns = -(-(d + 1) // 32) * 32
        wide = _buffer(space, "wide", (types, columns), dtype, weight.device)
        wide[:, :d], wide[:, d] = weight, bias
        states = hidden.new_zeros(len(hidden), columns, dtype=dtype)
        states[:, :d], states[:, d] = hidden, 1
        rows = min(len(hidden), max(1, _LOGITS_AT_ONCE * 4 // dtype.itemsize // types))
        logits = _buffer(space, "logits", (rows, types), dtype, weight.device)
        grad = _buffer(space, "grad", (types, columns), dtype, weight.device) if needed else None
        losses, grads_h = [], []
        for i, (h, target) in enumerate(zip(states.split(rows), targets.split(rows), strict=True)):
            p = logits[: len(h)]
            torch.mm(h, wide.T, out=p)
            own = p.gather(1, target[:, None]).double()
            top = p.amax(1, keepdim=True).double()
            torch.softmax(p, 1, out=p)  # from here on the block holds probabilities
            losses.append((top - p.amax(1, keepdim=True).double().log() - own).sum())
            if grad is None:
                continue
            p.scatter_add_(1, target[:, None], p.new_full((len(p), 1), -1.0))
            grads_h.append((p @ wide)[:, :d].to(hidden.dtype))
            torch.addmm(grad, p.T, h, beta=1 if i else 0, out=grad)
        if grad is not None:
            whole = grad.to(weight.dtype)
            ctx.save_for_backward(torch.cat(grads_h), whole[:, :d].clone(), whole[:, d].clone())
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # The blocks are gone, so this scales what they left, in place: one backward pass a forward pass.
        scale = grads[0].float()
        return (*(kept.mul_(scale) for kept in ctx.saved_tensors), None, None, None)


def _buffer(space: dict[str, Any], name: str, shape: tuple[int, int], dtype: Any, device: Any) -> Any:
    """A tensor of zeros the first time, and the same one, as it was left, from then on."""
    found = space.get(name)
    if found is None or found.shape != shape or found.dtype != dtype or found.device != device:
        found = space[name] = torch.zeros(shape, dtype=dtype, device=device)
    return found


def linear_cross_entropy(
    hidden: Any,
    decoder: Any,
    targets: Any,
    precision: str = "float32",
    space: dict[str, Any] | None = None,
) -> Any:
    """Return the sum of the cross-entropies (nats, float64) of `decoder(hidden)` [rows, types] at `targets` [rows].

    In the precision "bfloat16" logits and the three products with the decoder's weights are in it, and
    the value is good to some 0.002 a row, without bias. A dictionary `space`, the same in each call, keeps the memory of
    the blocks from step to step, which is faster than asking for it anew.

    >>> layer, rows = nn.Linear(4, 9), torch.ones(3, 4)
    >>> plain = nn.functional.cross_entropy(layer(rows), torch.tensor([1, 2, 3]), reduction="sum")
    >>> abs(float(linear_cross_entropy(rows, layer, torch.tensor([1, 2, 3])) - plain)) < 1e-5
    True
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else hidden.dtype
    space = {} if space is None else space
    return _LinearCrossEntropy.apply(hidden, decoder.weight, decoder.bias, targets, dtype, space)
