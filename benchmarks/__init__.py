"""Benchmarks: each compares the library with its plain counterpart, in one run on one machine, and prints ratios.

A module of this folder with a function `rows() -> list[Row]` is a benchmark; `python -m benchmarks [NAME ...]` runs it.
Seconds differ from machine to machine, ratios much less: those are what DESIGN's targets are about. No test asserts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Row", "fastest", "table"]


@dataclass(frozen=True)
class Row:
    """One comparison: `plain` and `ours` in seconds (or any unit of `unit`) for the same amount of work."""

    what: str
    plain: float
    ours: float
    target: float | None = None
    unit: str = "s"
    note: str = ""
    below: bool = False
    """True when the target is an upper bound of ours / plain, else it is a lower bound of plain / ours."""

    @property
    def ratio(self) -> float:
        return self.ours / self.plain if self.below else self.plain / self.ours

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.ratio <= self.target if self.below else self.ratio >= self.target
        return "met" if met else "MISSED"


def fastest(*tasks: Callable[[], object], repeats: int = 3) -> list[float]:
    """Return the least seconds of each task over `repeats` rounds, the tasks taking turns so that load hits all alike.

    >>> len(fastest(lambda: 1, lambda: 2, repeats=1))
    2
    """
    best = [float("inf")] * len(tasks)
    for _ in range(repeats):
        for at, task in enumerate(tasks):
            began = time.perf_counter()
            task()
            best[at] = min(best[at], time.perf_counter() - began)
    return best


def table(rows: Sequence[Row]) -> str:
    """Return the rows as an aligned table.

    >>> print(table([Row("sum", plain=2.0, ours=0.5, target=3)]))
    what  plain   ours    ratio  target  verdict  note
    sum   2.00 s  0.50 s  4.0x   >= 3x   met
    """
    cells = [("what", "plain", "ours", "ratio", "target", "verdict", "note")]
    for row in rows:
        digits = 3 if row.unit == "s" and row.ours < 0.1 else 2
        target = "" if row.target is None else f"{'<=' if row.below else '>='} {row.target:g}x"
        plain, ours = (f"{value:.{digits}f} {row.unit}" for value in (row.plain, row.ours))
        cells.append(
            (
                row.what,
                plain,
                ours,
                f"{row.ratio:.3g}x" if row.ratio < 1 else f"{row.ratio:.1f}x",
                target,
                row.verdict,
                row.note,
            )
        )
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
    return "\n".join(lines)
