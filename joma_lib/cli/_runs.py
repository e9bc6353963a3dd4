"""`joma runs`: what recorded runs there are, each opened and checked."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "runs"
HELP = "list recorded runs, and check that each file is what was recorded"
_COLUMNS = ("name", "seeds", "steps", "device", "wall_seconds", "sha256", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--folder", help="look here instead of in the package")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print JSON")
    kind.add_argument("--csv", action="store_true", help="print CSV")


def run(arguments: argparse.Namespace) -> int:
    """Print one row a run; return 1 if a file is damaged or foreign."""
    from joma_lib import runs

    rows = []
    for name in runs.list_runs(arguments.folder):
        row: dict[str, Any] = dict.fromkeys(_COLUMNS, "") | {"name": name}
        try:
            found = runs.load_run(name)
        except ValueError as error:
            rows.append(row | {"state": str(error)})
            continue
        attributes = found.attrs
        steps = int(found.step[-1]) if "step" in found.coords else ""
        rows.append(
            row
            | {
                "seeds": " ".join(str(seed) for seed in found.seed.values) if "seed" in found.coords else "",
                "steps": steps,
                "device": str(attributes.get("device", "")),
                "wall_seconds": round(float(attributes.get("wall_seconds", 0))),
                "sha256": str(attributes.get("sha256", ""))[:12],
                "state": "ok",
            }
        )
    if arguments.json:
        print(json.dumps(rows))
    else:
        writer = csv.DictWriter(
            sys.stdout, _COLUMNS, delimiter="," if arguments.csv else "\t", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    return int(any(row["state"] != "ok" for row in rows))
