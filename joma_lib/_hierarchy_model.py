"""The 3-layer model of Table 1: a plain module, and the same function computed once on distinct sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from joma_lib import _lazy
from joma_lib._hierarchy_data import HierarchyConfig

torch = _lazy.require("torch", extra="torch")
nn: Any = torch.nn
functional: Any = torch.nn.functional
_WIDE = 256


class Layer(nn.Module):
    """Causal single-head attention, residual, LayerNorm, MLP, residual, LayerNorm."""

    def __init__(self, config: HierarchyConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden_nodes
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.norm_attention = nn.LayerNorm(width)
        self.lower = nn.Linear(width, hidden)
        self.upper = nn.Linear(hidden, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.relu = config.activation == "relu"

    def mlp(self, attended: Any) -> tuple[Any, Any]:
        """From the state after attention and residual, (next state, hidden activations), row by row."""
        f = self.norm_attention(attended)
        h = self.lower(f)
        h = functional.relu(h) if self.relu else h
        return self.norm_mlp(f + self.upper(h)), h

    def forward(self, x: Any) -> tuple[Any, Any]:
        b = functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)
        return self.mlp(x + b)


class HierarchyModel(nn.Module):
    """Learned embeddings without positions, the layers, a linear read-out at the last position.

    Initial values are drawn from a generator in a fixed order, as PyTorch's own modules would: embeddings normal,
    weights and biases uniform in +-1/sqrt(inputs).

    >>> model = HierarchyModel(HierarchyConfig(width=16), torch.Generator().manual_seed(0))
    >>> model(torch.zeros(2, 30, dtype=torch.int64)).shape
    torch.Size([2, 20])
    """

    def __init__(self, config: HierarchyConfig, generator: Any) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # modules draw once by themselves; those values are replaced
            self.embedding = nn.Embedding(config.tokens, config.width)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
            self.readout = nn.Linear(config.width, config.classes)
        with torch.no_grad():
            self.embedding.weight.normal_(generator=generator)
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    bound = 1 / math.sqrt(module.in_features)
                    for parameter in module.parameters():
                        parameter.uniform_(-bound, bound, generator=generator)
        if config.attention == "frozen":
            for layer in self.layers:
                layer.query.requires_grad_(False)
                layer.key.requires_grad_(False)

    def forward(self, tokens: Any) -> Any:
        """Class scores [n, C] of sequences [n, length]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x, _ = layer(x)
        return self.readout(x[:, -1])


@dataclass(frozen=True, eq=False)
class Distinct:
    """Index tables of distinct sequences for `scores`: which rows exist, and where attention finds them.

    Rows are the distinct states: the active positions of each sequence one after the other, then one padding state,
    which all padding positions share in every layer (they see nothing but padding, and there are no positions).
    """

    tokens: Any
    """int64 [R], the token of each row; the last row is padding."""
    used: Any
    """int64 [V], the distinct tokens among them; the last is padding."""
    where: Any
    """int64 [R], place of each row's token in `used`."""
    grid: Any
    """int64 [n, A], row of each active position, aligned to the end; 0 where there is none."""
    active: Any
    """bool [n, A], whether there is one."""
    rows: Any
    """int64 [R - 1], place of each row but padding in the flattened grid."""
    last: Any
    """int64 [n], row of the scored position."""
    padding: Any
    """log of the number of padding positions of each sequence, [n, 1, 1]; -inf for none."""

    @classmethod
    def of(cls, sequences: Any, padding: int, dtype: Any) -> Distinct:
        """Build the tables of sequences [n, length] that end with at least one active token each."""
        real = sequences != padding
        counts = real.sum(1)
        if int(counts.min()) < 1:
            raise ValueError("a sequence holds padding alone; every sequence needs at least one active token")
        most = int(counts.max())
        active = real[:, -most:]
        grid = torch.where(active, active.flatten().cumsum(0).reshape(active.shape) - 1, 0)
        tokens = torch.cat([sequences[real], sequences.new_tensor([padding])])
        used, where = tokens.unique(sorted=True, return_inverse=True)  # padding is the last token
        return cls(
            tokens,
            used,
            where,
            grid,
            active,
            active.flatten().nonzero().flatten(),
            grid[:, -1],
            (sequences.shape[1] - counts).to(dtype).log()[:, None, None],
        )


def scores(model: HierarchyModel, distinct: Distinct) -> Any:
    """Class scores [n, C] of the distinct sequences: equal to `model(sequences)`, with far less work.

    The first layer's projections run once a token, padding is one row whose weight in a softmax is its number, and
    the last layer is computed for the scored position alone, its key and value matrices folded into that one row.
    """
    x = model.embedding(distinct.used)
    for index, layer in enumerate(model.layers):
        if index == len(model.layers) - 1:
            x = x[distinct.where] if index == 0 else x
            x = _last(layer, x, distinct)
        else:
            x, _, _ = _middle(layer, x, distinct, expand=index == 0)
    return model.readout(x)


@torch.no_grad()
def inside(model: HierarchyModel, distinct: Distinct) -> tuple[list[Any], list[Any]]:
    """For each layer but the last: hidden activations, max-pooled over all positions, and attention.

    Returns
    -------
    pooled : list of [n, hidden]
    weights : list of [n, A, A + 1]; queries and keys are the last A positions, the last column all padding together
    """
    x = model.embedding(distinct.used)
    pooled, weights = [], []
    for index, layer in enumerate(model.layers[:-1]):
        x, h, weight = _middle(layer, x, distinct, expand=index == 0)
        weights.append(weight)
        at = torch.where(distinct.active[..., None], h[distinct.grid], -math.inf).amax(1)
        has_padding = distinct.padding[:, 0] > -math.inf
        pooled.append(torch.where(has_padding, torch.maximum(at, h[-1]), at))
    return pooled, weights


def _middle(layer: Layer, x: Any, distinct: Distinct, expand: bool) -> tuple[Any, Any, Any]:
    """All rows through a layer: (states, hidden activations, weights); `expand`: x holds one row a token."""
    scale = 1 / math.sqrt(x.shape[-1])
    q, k, v = layer.query(x) * scale, layer.key(x), layer.value(x)
    grid = distinct.where[distinct.grid] if expand else distinct.grid
    most = grid.shape[1]
    queries, keys, values = q[grid], k[grid], v[grid]
    score = queries @ keys.transpose(1, 2)
    later = torch.ones(most, most, dtype=torch.bool, device=x.device).triu(1)
    score = score.masked_fill(later | ~distinct.active[:, None, :], -math.inf)
    to_padding = (queries @ k[-1])[..., None] + distinct.padding
    # an absent query (left of a shorter sequence) may see nothing at all: let it see padding, its row is dropped
    to_padding = torch.where(distinct.active[..., None], to_padding, torch.zeros_like(to_padding))
    weight = torch.cat([score, to_padding], -1).softmax(-1)
    b = weight[..., :-1] @ values + weight[..., -1:] * v[-1]
    b = torch.cat([b.flatten(0, 1)[distinct.rows], v[-1:]])
    return *layer.mlp((x[distinct.where] if expand else x) + b), weight


def _last(layer: Layer, x: Any, distinct: Distinct) -> Any:
    """The scored position of each sequence through the last layer."""
    scale = 1 / math.sqrt(x.shape[-1])
    folded = (layer.query(x[distinct.last]) * scale) @ layer.key.weight
    seen = x[distinct.grid]
    score = (seen @ folded[:, :, None])[..., 0].masked_fill(~distinct.active, -math.inf)
    to_padding = (folded @ x[-1])[:, None] + distinct.padding[:, 0]
    weight = torch.cat([score, to_padding], -1).softmax(-1)
    context = (weight[:, None, :-1] @ seen)[:, 0] + weight[:, -1:] * x[-1]
    return layer.mlp(x[distinct.last] + layer.value(context))[0]


def loss_of(score: Any, weights: Any) -> Any:
    """Cross-entropy of scores [n, C] under weights [n, C] of (sequence, label), which sum to 1; in nats."""
    return -(weights * score.log_softmax(-1)).sum()


@contextmanager
def few_threads(config: HierarchyConfig, device: Any) -> Iterator[None]:
    """Compute on one thread where layers are too small to share, as threads then wait for each other; put it back."""
    threads = torch.get_num_threads()
    if device.type == "cpu" and config.width <= _WIDE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
