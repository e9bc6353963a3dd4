"""A step of Table 1's training: distinct sequences weighted by counts, against plain steps on padded batches."""

from __future__ import annotations

import torch

from benchmarks import Row, fastest
from joma_lib.hierarchy import HierarchyConfig, HierarchyRun

STEPS = 3


def rows() -> list[Row]:
    result = []
    for children, target in ((2, 10.0), (3, 6.0)):
        for latents in ((10, 20), (20, 30)):
            config = HierarchyConfig(latents=latents, children=children, record=(0,))
            run, other = HierarchyRun(config, 0), HierarchyRun(config, 0)
            optimizer = torch.optim.Adam(
                other.model.parameters(), config.lr, weight_decay=config.weight_decay
            )

            def plain(config=config, other=other, optimizer=optimizer) -> None:  # type: ignore[no-untyped-def]
                labels = torch.randint(config.classes, (config.batch,), generator=other.counts)
                optimizer.zero_grad()
                score = other.model(other.data.sequences[labels])
                torch.nn.functional.cross_entropy(score, labels).backward()
                optimizer.step()

            def ours(run: HierarchyRun = run) -> None:
                run.advance(STEPS)

            run.advance(1)
            plain()
            differ = _difference(run, other)
            seconds = fastest(plain, ours, repeats=3)
            result.append(
                Row(
                    f"step, N_ch = {children}, latents {latents}",
                    seconds[0],
                    seconds[1] / STEPS,
                    target=target,
                    note=f"{len(run.probe.seen.tokens)} states for {config.batch * config.length}; "
                    f"gradients differ by {differ:.0e}",
                )
            )
    return result


def _difference(run: HierarchyRun, other: HierarchyRun) -> float:
    """Largest relative difference of the gradients of the first step over the parameters."""
    pairs = zip(run.model.parameters(), other.model.parameters(), strict=True)
    return max(float((a.grad - b.grad).norm() / b.grad.norm()) for a, b in pairs)
