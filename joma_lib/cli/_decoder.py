"""`joma train decoder`: tiny OPT or GPT-NeoX checkpoints, laid out as the public suites are, and measured."""

from __future__ import annotations

import argparse

from joma_lib.cli._table import add_table_options, print_table

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "decoder"
HELP = "train a tiny OPT or GPT-NeoX and keep checkpoints as the public suites do; finished seeds are not repeated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--folder", required=True, help="keeps seed0/step0, seed0/step1, ...; one for each family"
    )
    parser.add_argument("--family", default="gpt_neox", help="gpt_neox or opt (default: gpt_neox)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument("--steps", type=int, default=1000, help="default: 1000")
    parser.add_argument("--out", help="write what was measured to this file (.nc)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_table_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, measure, print one row a seed and step (means over layers and heads), and return the exit code."""
    from joma_lib import runs
    from joma_lib.tiny_decoder import train_suite

    found = train_suite(
        arguments.family,
        arguments.folder,
        seeds=arguments.seeds,
        steps=arguments.steps,
        progress=not arguments.quiet,
    )
    words = [
        "joma train decoder",
        f"--family {arguments.family}",
        "--folder RUNS",
        "--seeds",
        *map(str, arguments.seeds),
    ]
    found.attrs["command"] = " ".join([*words, f"--steps {arguments.steps}"])
    if arguments.out:
        runs.save_run(found, arguments.out)
    rank = found.stable_rank.sel(matrix="lower").mean("layer")
    entropy = found.attention_entropy.mean(("layer", "head"))
    rows = [
        {
            "seed": seed,
            "step": step,
            "train_loss": float(found.train_loss.sel(seed=seed, step=step)),
            "entropy": float(entropy.sel(seed=seed, step=step)),
            "stable_rank_lower": float(rank.sel(seed=seed, step=step)),
        }
        for seed in found.seed.values.tolist()
        for step in found.step.values.tolist()
    ]
    print_table(rows, arguments)
    return 0
