"""`joma figure N`: draw a figure of the paper, from recorded runs or from runs of a few seconds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "figure"
HELP = "draw a figure of the paper to a file: 2 and 4 are computed in seconds, 6 and 8 come from recorded runs, 7 from one of your own (--run)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("number", help=f"one of {', '.join(_FIGURES)}")
    parser.add_argument("--out", help="file to write, .png, .pdf or .svg (default: figure-N.png)")
    parser.add_argument(
        "--run", help="a recorded run (name or file) instead of the one that comes with the package"
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw, write the file, print its name."""
    if arguments.number not in _FIGURES:
        raise ValueError(f"figure {arguments.number!r} is unknown; use one of {', '.join(_FIGURES)}")
    figure = _FIGURES[arguments.number](arguments.run)
    target = Path(arguments.out or f"figure-{arguments.number}.png")
    figure.savefig(target, dpi=150)
    print(target)
    return 0


def _figure_2(name: str | None) -> Any:
    from joma_lib import figures, runs
    from joma_lib.block import BlockConfig, train_block

    if name:
        return figures.figure_2(runs.load_run(name))
    activations = ("linear", "relu", "gelu")
    return figures.figure_2(
        {one: train_block(BlockConfig(activation=one), seeds=range(10)) for one in activations}
    )


def _figure_4(name: str | None) -> Any:
    from joma_lib import figures, runs
    from joma_lib.salience import draw_targets, salient_runs

    return figures.figure_4(runs.load_run(name) if name else salient_runs(draw_targets(100, 10)))


def _figure_6(name: str | None) -> Any:
    from joma_lib import figures, runs

    return figures.figure_6(runs.load_run(name or "wikitext-lr1e-4"))


def _figure_7(name: str | None) -> Any:
    from joma_lib import figures, runs

    if not name:
        raise ValueError(
            "figure 7 needs checkpoints of OPT or Pythia, which no recorded run that comes with the package holds; make one "
            "with joma measure EleutherAI/pythia-70m --steps pythia --text FILE --out RUN.nc, then pass --run RUN.nc"
        )
    return figures.figure_7(runs.load_run(name))


def _figure_8(name: str | None) -> Any:
    from joma_lib import figures, runs

    if name:
        raise ValueError("figure 8 compares learning rates, so that one --run is not enough; leave it out")
    return figures.figure_8(
        {rate: runs.load_run(f"wikitext-lr{text}") for rate, text in ((1e-4, "1e-4"), (1e-2, "1e-2"))}
    )


_FIGURES: dict[str, Callable[[str | None], Any]] = {
    "2": _figure_2, "4": _figure_4, "6": _figure_6, "7": _figure_7, "8": _figure_8,
}  # fmt: skip
