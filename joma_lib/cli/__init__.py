"""The `joma` command: train and sweep the paper's experiments, measure and audit models, list recorded runs, draw figures.

Each command is a private module here with NAME, HELP, `add_arguments(parser)` and `run(arguments) -> exit code`; what is
heavy loads when a command runs. Exit codes: 0; 1 for a finding; 2 for bad input; 130 when interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from joma_lib.cli import (
    _audit,
    _check_adapter,
    _decoder,
    _figure,
    _hierarchy,
    _measure,
    _runs,
    _sweep,
    _wikitext,
)

__all__ = ["main"]

_COMMANDS = (_sweep, _measure, _audit, _check_adapter, _runs, _figure)
_TRAINERS = (_hierarchy, _wikitext, _decoder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name; None: that of the process) and return the exit code.

    >>> main(["figure", "99"])
    2
    """
    parser = argparse.ArgumentParser(
        prog="joma", description="JoMA, executed: train, measure, record and draw."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train one experiment, resumable").add_subparsers(
        required=True, metavar="EXPERIMENT"
    )
    for group, modules in ((train, _TRAINERS), (commands, _COMMANDS)):
        for module in modules:
            command = group.add_parser(module.NAME, help=module.HELP, description=module.HELP)
            module.add_arguments(command)
            command.set_defaults(handler=module.run)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    try:
        return int(arguments.handler(arguments))
    except KeyboardInterrupt:
        print("joma: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"joma: {error}", file=sys.stderr)
        return 2
