"""The experiment of Figures 2 and 3: 20 seeds of ours against a plain autograd loop for one seed."""

from __future__ import annotations

import torch

from benchmarks import Row, fastest
from joma_lib.block import BlockConfig, smooth_classes, train_block

SEEDS = 20


class PlainBlock(torch.nn.Module):
    """The block as one would write it: embeddings, attention, residual, lower MLP."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        dtype = getattr(torch, config.dtype)
        basis = torch.linalg.qr(torch.randn(config.width, config.width, dtype=dtype)).Q
        self.register_buffer("tokens", basis[: config.tokens])
        self.register_buffer("query", basis[config.tokens])
        self.z = torch.nn.Parameter(torch.randn(config.tokens, dtype=dtype) / 100)
        self.w = torch.nn.Linear(config.width, config.nodes, bias=False, dtype=dtype)
        torch.nn.init.normal_(self.w.weight, std=0.01)
        self.temperature = config.temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = x * torch.exp(self.z / self.temperature)
        attention = weights / weights.sum(-1, keepdim=True)
        return self.w(attention @ self.tokens + self.query)


def plain_loop(config: BlockConfig) -> float:
    """Train one seed with autograd and torch.optim.SGD, nothing recorded, and return the last loss."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, targets, _ = smooth_classes(config, seed=0)
        inputs, labels = torch.tensor(x, dtype=getattr(torch, config.dtype)), torch.tensor(targets)
        model = PlainBlock(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        for _ in range(config.steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        return float(loss.detach())


def rows() -> list[Row]:
    result = []
    for dtype in ("float32", "float64"):
        config = BlockConfig(dtype=dtype)
        plain_loop(BlockConfig(dtype=dtype, steps=20))
        train_block(BlockConfig(dtype=dtype, steps=20), seeds=range(SEEDS), device="cpu")
        losses = {}

        def plain(config: BlockConfig = config, losses: dict[str, float] = losses) -> None:
            losses["plain"] = plain_loop(config)

        def ours(config: BlockConfig = config, losses: dict[str, float] = losses) -> None:
            run = train_block(config, seeds=range(SEEDS), device="cpu")
            losses["ours"] = float(run.loss.isel(step=-1).mean())

        one, twenty = fastest(plain, ours)
        if abs(losses["plain"] - losses["ours"]) > 0.1:
            raise AssertionError(f"the two do not train alike: losses {losses}")
        note = (
            f"per seed; {SEEDS} seeds with 101 recorded steps take {twenty:.2f} s, one plain seed {one:.2f} s"
        )
        result.append(Row(f"Figure 2, 2,000 steps, {dtype}", one, twenty / SEEDS, target=20, note=note))
    return result
