"""`joma train wikitext`: one setting of Figures 6 and 8, resumable; the worker of `joma sweep` too."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import xarray as xr

from joma_lib._language_config import LanguageConfig

__all__ = ["HELP", "NAME", "add_arguments", "run", "train"]

NAME = "wikitext"
HELP = "train the language model of Figures 6 and 8; the same command goes on where it stopped"

_WORDS = {"activation": ["relu", "linear", "gelu"], "precision": ["float32", "bfloat16"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; those of the setting are the fields of `LanguageConfig`."""
    parser.add_argument(
        "--folder", required=True, help="keeps states and finished seeds; one for each setting"
    )
    parser.add_argument("--source", help="folder or zip with the data set (without it: from the hub)")
    parser.add_argument("--data", default="wikitext-2", choices=["wikitext-2", "wikitext-103"])
    parser.add_argument("--cache", help="folder in which to keep the token ids")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda (default: cpu)")
    parser.add_argument(
        "--save-every", type=int, default=200, help="steps between saved states (default: 200)"
    )
    parser.add_argument("--out", help="write what was measured to this file too")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    group = parser.add_argument_group("setting")
    for field in fields(LanguageConfig):
        option, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        else:
            kind: Any = type(default)
            group.add_argument(
                option,
                type=kind,
                default=default,
                choices=_WORDS.get(field.name),
                help=f"default: {default}",
            )


def run(arguments: argparse.Namespace) -> int:
    """Train, print one line a seed (or JSON), and return the exit code."""
    found = train(vars(arguments), progress=not arguments.quiet)
    rows = []
    for seed in found.seed.values:
        one = found.sel(seed=seed)
        entropy = one.entropy_one_sequence.isel(layer=0).dropna("step")
        loss = one.validation_loss.dropna("step")
        rows.append(
            {
                "seed": int(seed),
                "steps": int(entropy.step[-1]),
                "first": float(entropy[0]),
                "lowest": float(entropy.min()),
                "last": float(entropy[-1]),
                "validation_loss": float(loss[-1]),
            }
        )
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(
            f"seed {row['seed']}, {row['steps']} steps: entropy of layer 1 from {row['first']:.3f}, lowest "
            f"{row['lowest']:.3f}, to {row['last']:.3f} nats; validation loss {row['validation_loss']:.3f}"
        )
    return 0


def train(settings: Mapping[str, Any], *, progress: bool = False) -> xr.Dataset:
    """Train the setting named by options (as `add_arguments` names them, `folder` among them) and return its run."""
    from joma_lib import runs
    from joma_lib.language import load_wikitext, train_language

    config = LanguageConfig(
        **{f.name: settings[f.name] for f in fields(LanguageConfig) if f.name in settings}
    )
    corpus = load_wikitext(
        settings.get("data", "wikitext-2"), settings.get("source"), cache=settings.get("cache")
    )
    seeds = list(settings.get("seeds", [1]))
    found = train_language(
        corpus,
        config,
        seeds=seeds,
        device=settings.get("device", "cpu"),
        folder=Path(settings["folder"]),
        every=settings.get("save_every", 200),
        progress=progress,
    )
    found.attrs["command"] = _command(config, settings.get("data", "wikitext-2"), seeds)
    if settings.get("out"):
        runs.save_run(found, settings["out"])
    return found


def _command(config: Any, data: str, seeds: list[int]) -> str:
    """The command that makes the run, without the folders of this machine."""
    words = ["joma", "train", "wikitext", "--data", data, "--folder", "RUNS"]
    words += ["--seeds", *map(str, seeds)]
    for field in fields(config):
        value, option = getattr(config, field.name), field.name.replace("_", "-")
        if value == field.default:
            continue
        words += (
            [f"--{'' if value else 'no-'}{option}"]
            if isinstance(value, bool)
            else [f"--{option}", str(value)]
        )
    return shlex.join(words)
