"""`joma train hierarchy`: one setting of Table 1, resumable."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "hierarchy"
HELP = "train the three-layer model of Table 1; the same command goes on where it stopped"
_OPTIONS = {
    "latents": (int, [10, 20]), "children": (int, 2), "classes": (int, 20), "width": (int, 1024), "steps": (int, 10_000),
    "attention": (str, "trained"), "activation": (str, "relu"), "labels": (str, "true"),
}  # fmt: skip
"""Options of the setting, with type and default; `HierarchyConfig` checks them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the setting (fields of `HierarchyConfig`) and of the run."""
    parser.add_argument(
        "--folder", required=True, help="keeps states and finished seeds; one for each setting"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda (default: cpu)")
    parser.add_argument("--out", help="write the run to this file (.nc) too")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    group = parser.add_argument_group("setting")
    for name, (kind, default) in _OPTIONS.items():
        many: dict[str, Any] = {"nargs": "+"} if isinstance(default, list) else {}
        group.add_argument(f"--{name}", type=kind, default=default, help=f"default: {default}", **many)


def run(arguments: argparse.Namespace) -> int:
    """Train, print NCorr by layer at the first and the last step (or JSON), and return the exit code."""
    from joma_lib import runs
    from joma_lib.hierarchy import HierarchyConfig, train_hierarchy

    options = {name: getattr(arguments, name) for name in _OPTIONS}
    options["latents"] = tuple(options["latents"])
    found = train_hierarchy(
        HierarchyConfig(**options),
        seeds=arguments.seeds,
        device=arguments.device,
        folder=arguments.folder,
        progress=not arguments.quiet,
    )
    if arguments.out:
        runs.save_run(found, arguments.out)
    mean = found.ncorr.mean("seed").isel(step=[0, -1]).transpose("layer", "step").values
    rows = [
        {"layer": int(layer), "ncorr_untrained": float(first), "ncorr": float(last)}
        for layer, (first, last) in zip(found.layer.values, mean, strict=True)
    ]
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"layer {row['layer']}: NCorr {row['ncorr']:.3f}, untrained {row['ncorr_untrained']:.3f}")
    return 0
