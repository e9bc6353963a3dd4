"""`joma audit`: which steps, or single layers, of a series of checkpoints repeat another step's weights."""

from __future__ import annotations

import argparse

from joma_lib.cli._table import add_series_options, add_table_options, print_table, read_steps

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "audit"
HELP = "find steps or layers of a series of checkpoints that are copies of another step's; exit code 1 if there are"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_series_options(parser)
    parser.add_argument(
        "--download",
        action="store_true",
        help="hub only: fetch the files and compare single tensors, not whole files",
    )
    add_table_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print one row a step; return 1 if weights repeat that should not."""
    from joma_lib.pretrained import audit_series

    audit = audit_series(
        arguments.source,
        read_steps(arguments.steps),
        download=arguments.download,
        folder=arguments.folder,
        progress=not arguments.quiet,
    )
    if arguments.json or arguments.csv:
        print_table(audit.rows(), arguments)
    else:
        print(audit)
    return int(bool(audit.findings))
