"""`joma measure`: attention entropy and stable rank of a model, or of a series of its checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from joma_lib.cli._table import add_series_options, add_table_options, print_table, read_steps

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "measure"
HELP = "measure attention entropy and stable rank of a model, or of a series of its checkpoints"
_NO_TOKENIZER = "no tokenizer that loads here; name one by --tokenizer, or pass --ids"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_series_options(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", help="a text file to measure on, cut by the model's tokenizer")
    what.add_argument("--ids", help="a JSON file with lists of token ids instead; shorter ones are padded")
    parser.add_argument("--tokenizer", help="folder or repository of the tokenizer (default: the model's)")
    parser.add_argument(
        "--length", type=int, default=128, help="tokens a sequence, with --text (default: 128)"
    )
    parser.add_argument("--sequences", type=int, default=16, help="sequences, with --text (default: 16)")
    parser.add_argument(
        "--queries", type=int, help="measure at most so many queries a sequence (default: all)"
    )
    parser.add_argument("--no-weights", action="store_true", help="entropies only, no stable ranks")
    parser.add_argument("--out", help="write everything to this file (.nc), by head, with its provenance")
    add_table_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print one row a layer (and step), write the file if one is named."""
    from joma_lib import runs
    from joma_lib.pretrained import measure, measure_series

    steps = read_steps(arguments.steps)
    folder = Path(arguments.source)
    remote = not folder.is_dir() and "/" in arguments.source
    single = steps is None and (remote or (folder / "config.json").is_file())
    ids, mask = _sequences(arguments)
    options: dict[str, Any] = {"weights": not arguments.no_weights, "queries": arguments.queries}
    if single:
        from joma_lib._series import load_model

        found = measure(load_model(arguments.source if remote else folder), ids, mask, **options)
    else:
        progress = not arguments.quiet
        found = measure_series(
            arguments.source, ids, mask, steps=steps, folder=arguments.folder, progress=progress, **options
        )
    print_table(_rows(found), arguments)
    if arguments.out:
        runs.save_run(found, arguments.out)
    return 0


def _rows(found: Any) -> list[dict[str, Any]]:
    """One row a layer: means over heads, and each matrix."""
    rows = []
    for step in found.step.values.tolist() if "step" in found.dims else [None]:
        at = found if step is None else found.sel(step=step)
        for layer in found.layer.values.tolist():
            one = at.sel(layer=layer)
            row: dict[str, Any] = {} if step is None else {"step": step}
            row |= {
                "layer": layer,
                "entropy": float(one.attention_entropy.mean()),
                "entropy_normalized": float(one.attention_entropy_normalized.mean()),
            }
            if "stable_rank" in one:
                row |= {
                    f"stable_rank_{name}": float(one.stable_rank.sel(matrix=name))
                    for name in one.matrix.values.tolist()
                }
            if "query_key_stable_rank" in one:
                row["stable_rank_query_key"] = float(one.query_key_stable_rank.mean())
            rows.append(row)
    return rows


def _sequences(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return token ids and mask, as nested lists."""
    if arguments.ids:
        try:
            lists = json.loads(Path(arguments.ids).read_text(encoding="utf-8"))
            longest = max(len(one) for one in lists)
            filled = [[*one, *[0] * (longest - len(one))] for one in lists]
        except (json.JSONDecodeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{arguments.ids} is not a JSON list of lists of token ids; write one such as [[1, 2], [3]]"
            ) from error
        return filled, [[1] * len(one) + [0] * (longest - len(one)) for one in lists]
    from joma_lib._lazy import require

    if arguments.length < 2 or arguments.sequences < 1:
        raise ValueError(
            f"length is {arguments.length} and sequences {arguments.sequences}; give at least 2 and 1"
        )
    text = Path(arguments.text).read_text(encoding="utf-8")
    name = arguments.tokenizer or arguments.source
    try:
        tokenizer = require("transformers", extra="pretrained").AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name} has {_NO_TOKENIZER}") from error
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: arguments.length * arguments.sequences]
    if text.strip() and not ids:  # transformers gives an empty tokenizer for a folder without one
        raise ValueError(f"{name} has {_NO_TOKENIZER}")
    whole = len(ids) // arguments.length
    if not whole:
        raise ValueError(
            f"{arguments.text} has {len(ids)} tokens, fewer than the {arguments.length} of one sequence"
        )
    rows = [ids[at * arguments.length : (at + 1) * arguments.length] for at in range(whole)]
    return rows, [[1] * arguments.length] * whole
