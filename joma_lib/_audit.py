"""Does a series of checkpoints hold what it says? Each tensor's fingerprint at each step, and which of them repeat."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from joma_lib._checkpoints import (
    Checkpoint,
    Source,
    find_checkpoints,
    fingerprint_folder,
    remote_fingerprints,
    weight_files,
)

__all__ = ["Audit", "Repeat", "audit_series", "compare", "fingerprint_step"]

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")


@dataclass(frozen=True)
class Repeat:
    """Weights of `step` that are bit for bit those of the earlier step `same_as`.

    `parts` names what repeats: ("all",), or layers and tensors; `expected` where this is how the suite was published.
    """

    step: int
    same_as: int
    parts: tuple[str, ...]
    expected: bool = False

    def __str__(self) -> str:
        what = "all weights" if self.parts == ("all",) else ", ".join(self.parts)
        note = " (as published: the first steps of Pythia repeat)" if self.expected else ""
        return f"step {self.step}: {what} equal step {self.same_as}{note}"


@dataclass(frozen=True)
class Audit:
    """The result of `audit_series`; its text is a table, `findings` are the repeats that are not as published."""

    steps: tuple[int, ...]
    origins: tuple[str, ...]
    fingerprints: Mapping[int, Mapping[str, str]]
    repeats: tuple[Repeat, ...]

    @property
    def findings(self) -> tuple[Repeat, ...]:
        """The repeats that call for an explanation."""
        return tuple(repeat for repeat in self.repeats if not repeat.expected)

    def rows(self) -> list[dict[str, Any]]:
        """One row a step, for a table."""
        return [
            {
                "step": step,
                "origin": origin,
                "tensors": len(self.fingerprints[step]),
                "repeats": "; ".join(str(r).split(": ", 1)[1] for r in self.repeats if r.step == step),
            }
            for step, origin in zip(self.steps, self.origins, strict=True)
        ]

    def __str__(self) -> str:
        lines = [
            f"{row['step']:>8}  {row['tensors']:>5} tensors  {row['repeats'] or 'new'}" for row in self.rows()
        ]
        return "\n".join([*lines, f"{len(self.findings)} finding(s) in {len(self.steps)} steps"])


def audit_series(
    source: Source,
    steps: Iterable[int] | None = None,
    *,
    download: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Audit:
    """Find steps, or single layers, of a series of checkpoints whose weights equal another step's.

    Every tensor is fingerprinted from the file's bytes, without loading a model; buffers, constant tensors and tied copies
    do not count. Two different steps of a training run have no tensor in common unless it is frozen.

    Parameters
    ----------
    source : a folder of step folders, a list of such, a mapping {step: folder}, or a hub repository
    steps : which steps; needed for a hub repository, whose revisions are `step0`, `step1`, ...
    download : for the hub: fetch the files and compare tensors; False compares whole files by the SHA-256 that the hub
        states, which downloads no weights and finds copied steps and copied shards, but no single layer
    folder : keep fingerprints here, so that the same call goes on where it stopped
    progress : show a bar on stderr

    Raises
    ------
    ValueError : no such series or step, a damaged or missing file, a hub that cannot be reached.

    Chapter `pretrained`. For Pythia the equality of steps 0, 1 and 2 is reported as expected, and is no finding.
    """
    found = find_checkpoints(source, steps)
    prints: dict[int, dict[str, str]] = {}
    for checkpoint in tqdm(found, desc="audit", unit="step", disable=not progress, file=sys.stderr):
        remote = checkpoint.folder is None and not download
        prints[checkpoint.step] = (
            remote_fingerprints(checkpoint) if remote else fingerprint_step(checkpoint.fetch(), folder)
        )
    return compare(found, prints)


def fingerprint_step(path: Path, folder: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return a checkpoint's fingerprints; with `folder` read or kept there, valid while its files stay untouched."""
    if folder is None:
        return fingerprint_folder(path)
    files = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in weight_files(path)]
    key = {"path": str(path.resolve()), "files": files}
    kept = Path(folder) / f"{path.name}.fingerprints.json"
    if kept.is_file():
        try:
            content = json.loads(kept.read_text(encoding="utf-8"))
            if content["key"] == key:
                return dict(content["tensors"])
        except (ValueError, KeyError, TypeError):
            pass  # half-written or foreign: made anew
    tensors = fingerprint_folder(path)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"key": key, "tensors": tensors}), encoding="utf-8")
    os.replace(partial, kept)
    return tensors


def compare(found: list[Checkpoint], prints: Mapping[int, Mapping[str, str]]) -> Audit:
    """Return which steps share weights with an earlier one; a step that is a full copy is no longer compared with."""
    names = {
        one.repository if one.folder is None else f"{one.folder.parent.name}/{one.folder.name}"
        for one in found
    }
    pythia = any("pythia" in name.lower() for name in names)
    repeats: list[Repeat] = []
    originals: list[int] = []
    for checkpoint in found:
        step, own = checkpoint.step, prints[checkpoint.step]
        copied = False
        for other in originals:
            parts = _common(own, prints[other])
            if parts:
                copied = copied or parts == ("all",)
                repeats.append(Repeat(step, other, parts, pythia and copied and {step, other} <= {0, 1, 2}))
        if not copied:
            originals.append(step)
    return Audit(
        tuple(one.step for one in found), tuple(one.origin for one in found), dict(prints), tuple(repeats)
    )


def _common(own: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Return the layers and tensors that are equal in two checkpoints; ("all",) when everything is."""
    same = {name for name, digest in own.items() if other.get(name) == digest}
    if not same:
        return ()
    if len(same) == len(own) == len(other):
        return ("all",)
    layers: dict[int, list[str]] = {}
    for name in own:
        number = _LAYER.search(name)
        if number:
            layers.setdefault(int(number[1]), []).append(name)
    parts = []
    for layer, names in sorted(layers.items()):
        count = len(same.intersection(names))
        if count:
            parts.append(
                f"layer {layer}" + ("" if count == len(names) else f" ({count} of {len(names)} tensors)")
            )
    return (*parts, *sorted(name for name in same if not _LAYER.search(name)))
