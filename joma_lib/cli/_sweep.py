"""`joma sweep FILE`: a grid of settings of the language model, in local processes or through Slurm.

The file is TOML: options of `joma train wikitext` at the top, lists of their values in the table `grid`:

    source = "wikitext-2"
    seeds = [1, 2, 3]
    [grid]
    lr = [1e-4, 1e-3]
    layers = [1, 3]

Each combination and seed is a job with a folder of its own. What is finished is not done again, what was stopped goes on,
and a job that fails is named at the end without keeping the others from theirs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from joma_lib.cli import _wikitext

__all__ = ["HELP", "NAME", "add_arguments", "jobs_of", "run"]

NAME = "sweep"
HELP = "train a grid of settings from a TOML file; the same command goes on where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("file", help="TOML: options of `joma train wikitext`, and lists of values in [grid]")
    parser.add_argument("--folder", required=True, help="each job gets a folder in it")
    parser.add_argument("--jobs", type=int, default=1, help="local processes at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each job (default: 1)")
    parser.add_argument("--slurm", metavar="PARTITION", help="submit the jobs to Slurm instead")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run all jobs, print one line for each, and return 1 if one failed."""
    jobs = jobs_of(arguments.file, arguments.folder)
    if arguments.jobs < 1 or arguments.threads < 1:
        raise ValueError(
            f"jobs and threads are {arguments.jobs}, {arguments.threads}; give at least 1 of each"
        )
    rows = []
    with _executor(arguments) as executor:
        waiting: dict[Any, str] = {
            executor.submit(_job, settings, arguments.threads): name for name, settings in jobs.items()
        }
        done = as_completed(waiting) if all(isinstance(w, Future) for w in waiting) else iter(waiting)
        for future in done:
            try:
                outcome = {"job": waiting[future], "failed": "", **future.result()}
            except Exception as error:
                outcome = {"job": waiting[future], "failed": str(error).split("\n")[0]}
            rows.append(outcome)
            if not arguments.json:
                print(
                    outcome["job"],
                    outcome["failed"] or f"lowest entropy {outcome['lowest']:.3f} nats",
                    flush=True,
                )
    failed = [row["job"] for row in rows if row["failed"]]
    if arguments.json:
        print(json.dumps(sorted(rows, key=lambda row: row["job"])))
    elif failed:
        print(f"{len(failed)} of {len(rows)} jobs failed: {', '.join(sorted(failed))}", file=sys.stderr)
    return 1 if failed else 0


def jobs_of(file: str, folder: str) -> dict[str, dict[str, Any]]:
    """Return the options of each job by its name, which is also its folder's.

    Raises
    ------
    ValueError : the file is missing or no TOML, names an unknown option, or a value of the grid is no list.
    """
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}); name a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is no TOML: {error}") from error
    grid = content.pop("grid", {})
    parser = argparse.ArgumentParser()
    _wikitext.add_arguments(parser)
    known = {action.dest for action in parser._actions} - {"help", "folder", "out", "quiet", "json"}
    for name, value in (*content.items(), *grid.items()):
        if name not in known:
            raise ValueError(
                f"{file} names {name!r}, no option of `joma train wikitext`; correct or remove it"
            )
        if name in grid and not (isinstance(value, list) and value):
            raise ValueError(f"{name} in [grid] is {value!r}; give a list of values")
    seeds = grid.pop("seeds", content.pop("seeds", [1]))
    jobs = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        setting = "-".join(f"{name}={value}" for name, value in chosen.items()) or "default"
        for seed in seeds:
            options = {**content, **chosen, "seeds": [seed], "folder": str(Path(folder) / setting)}
            jobs[f"{setting}-seed={seed}"] = options
    return jobs


def _job(settings: Mapping[str, Any], threads: int) -> dict[str, float]:
    """Train one job in a process of its own, which may die without harm to others; return what the sweep prints."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(settings),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"ended by signal or code {done.returncode}")
    return json.loads(done.stdout)


def _executor(arguments: argparse.Namespace) -> Any:
    if not arguments.slurm:
        return ThreadPoolExecutor(arguments.jobs)
    from joma_lib import _lazy

    submitit = _lazy.require("submitit", extra="sweep")
    executor = submitit.AutoExecutor(folder=str(Path(arguments.folder) / "slurm"))
    executor.update_parameters(
        slurm_partition=arguments.slurm, timeout_min=24 * 60, cpus_per_task=arguments.threads
    )
    return nullcontext(executor)


if __name__ == "__main__":
    entropy = _wikitext.train(json.load(sys.stdin)).entropy_one_sequence.isel(layer=0)
    print(
        json.dumps({"lowest": float(entropy.min()), "last": float(entropy.isel(seed=0).dropna("step")[-1])})
    )
