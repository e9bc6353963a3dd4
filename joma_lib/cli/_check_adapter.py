"""`joma check-adapter`: are the two callables for a model of your own right?"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import asdict
from pathlib import Path

from joma_lib.cli._table import add_table_options, print_table

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "check-adapter"
HELP = "check the callables attention_maps and matrices of a model of your own; exit code 1 if one is wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file",
        help="a Python file that defines model, input_ids and attention_maps, and if there are such matrices and causal",
    )
    add_table_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print one line a check; return 1 if one fails."""
    from joma_lib.pretrained import check_adapter

    file = Path(arguments.file)
    spec = importlib.util.spec_from_file_location("joma_adapter", file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(
            f"{file} is no Python file here; give the one that defines the model and its callables"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = [name for name in ("model", "input_ids", "attention_maps") if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"{file.name} does not define {', '.join(missing)}; see the chapter on pretrained models"
        )
    checks = check_adapter(
        module.model,
        module.input_ids,
        attention_maps=module.attention_maps,
        matrices=getattr(module, "matrices", None),
        causal=getattr(module, "causal", True),
    )
    if arguments.json or arguments.csv:
        print_table([asdict(check) for check in checks], arguments)
    else:
        print("\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))
