"""Tables of commands: text for people, JSON or CSV for programs; and the way in which steps are named."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["add_series_options", "add_table_options", "print_table", "read_steps"]


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add --json and --csv."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print JSON")
    kind.add_argument("--csv", action="store_true", help="print CSV")


def add_series_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a series of checkpoints."""
    parser.add_argument(
        "source", help="a folder of checkpoints (step0, step1, ...), or a hub repository (owner/name)"
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        help="steps, or the word pythia for the 154 of that suite (default: all in the folder)",
    )
    parser.add_argument("--folder", help="keep results here: the same command goes on where it stopped")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def read_steps(words: Sequence[str] | None) -> list[int] | None:
    """Return the steps that the words name.

    >>> steps = read_steps(["pythia"])
    >>> len(steps), steps[:5], steps[-1]
    (154, [0, 1, 2, 4, 8], 143000)
    """
    if words is None:
        return None
    steps: list[int] = []
    for word in words:
        if word == "pythia":
            steps += [0, *(2**k for k in range(10)), *range(1000, 143_001, 1000)]
        elif word.isdigit():
            steps.append(int(word))
        else:
            raise ValueError(f"step {word!r} is no number; give numbers, or the word pythia")
    return steps


def print_table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print rows of equal keys to stdout: JSON, CSV, or columns for reading."""
    if arguments.json:
        print(json.dumps(rows))
    elif arguments.csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        texts = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for line in texts:
            print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
