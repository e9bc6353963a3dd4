"""A training step of Figure 6's model at the full vocabulary: against plain PyTorch, and against the float32 matrix rate."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks import Row, fastest
from joma_lib.language import Corpus, LanguageConfig, LanguageRun

TYPES = 28_782
STEPS = 3


def _corpus() -> Corpus:
    """Random tokens: the time of a step does not depend on the text."""
    ids = np.random.default_rng(0).integers(TYPES, size=40_000).astype(np.int32)
    return Corpus("random", tuple(f"w{i}" for i in range(TYPES)), ids, ids[:2000], ids[:0])


class Plain:
    """The published loop as one would write it: standard layers, whole logits, cross-entropy, Adam."""

    def __init__(self, config: LanguageConfig, tokens: torch.Tensor) -> None:
        layer = torch.nn.TransformerEncoderLayer(config.width, config.heads, config.hidden, config.dropout)
        self.encoder = torch.nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.embedding = torch.nn.Embedding(TYPES, config.width)
        self.decoder = torch.nn.Linear(config.width, TYPES)
        self.all = torch.nn.ModuleList([self.encoder, self.embedding, self.decoder])
        self.mask = torch.nn.Transformer.generate_square_subsequent_mask(config.context)
        self.optimizer = torch.optim.Adam(self.all.parameters(), config.lr)
        self.tokens, self.config, self.step = tokens, config, 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            row = self.step * self.config.context
            tokens, targets = (self.tokens[row + shift :][: self.config.context] for shift in (0, 1))
            self.optimizer.zero_grad()
            x = self.encoder(self.embedding(tokens) * self.config.width**0.5, self.mask)
            score = self.decoder(x).view(-1, TYPES)
            torch.nn.functional.cross_entropy(score, targets.reshape(-1)).backward()
            torch.nn.utils.clip_grad_norm_(self.all.parameters(), self.config.clip)
            self.optimizer.step()
            self.step += 1


def rows() -> list[Row]:
    corpus = _corpus()
    runs = {}
    for precision in ("float32", "bfloat16"):
        config = LanguageConfig(precision=precision, record_every=10_000, validate_every=10_000)
        runs[precision] = LanguageRun(corpus, config, 1)
        runs[precision].steps = [0]  # nothing is measured
    with torch.random.fork_rng():
        plain = Plain(config, runs["float32"].train)
    states, weights = torch.randn(700, 200), torch.randn(TYPES, 200)
    logits = states @ weights.T

    def products() -> None:
        for _ in range(STEPS):
            torch.mm(states, weights.T, out=logits)
            logits @ weights
            logits.T @ states

    for run in (plain, *runs.values()):
        run.advance(1)
    one, ours, low, rate = fastest(
        lambda: plain.advance(STEPS),
        lambda: runs["float32"].advance(STEPS),
        lambda: runs["bfloat16"].advance(STEPS),
        products,
    )
    share = f"the decoder's three products alone take {rate / ours:.0%} of our step"
    return [
        Row("language model step, float32", one / STEPS, ours / STEPS, target=1.5, note=share),
        Row(
            "language model step, bfloat16",
            one / STEPS,
            low / STEPS,
            target=2.5,
            note="where the processor has it",
        ),
    ]
