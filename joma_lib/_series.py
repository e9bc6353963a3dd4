"""`measure` over a series of checkpoints, one in memory at a time, resumable."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

import joma_lib
from joma_lib._audit import compare, fingerprint_step
from joma_lib._checkpoints import Source, find_checkpoints, quiet_transformers
from joma_lib._lazy import require
from joma_lib._measure import measure
from joma_lib.runs import fingerprint, load_run, save_run

__all__ = ["concat_steps", "load_model", "measure_series"]


def measure_series(
    source: Source,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    steps: Iterable[int] | None = None,
    folder: str | os.PathLike[str] | None = None,
    load: Callable[[Path], Any] | None = None,
    progress: bool = False,
    **options: Any,
) -> xr.Dataset:
    """Measure each checkpoint of a training run on the same sequences.

    Every checkpoint is fingerprinted before it is measured, so that copies among the steps (public suites hold some) are
    named in a warning and in the attribute `audit`.

    Parameters
    ----------
    source, steps : as for `audit_series`
    input_ids, attention_mask : as for `measure`
    folder : keep each step's result here: the same call goes on where it stopped, and loads no model twice
    load : folder -> model; default: `AutoModelForCausalLM`, in the checkpoint's own dtype
    progress : show a bar on stderr
    options : passed to `measure`

    Returns
    -------
    Dataset : the variables of `measure` with a dimension `step` in front (neuron norms aside), and `weights_sha256` (step)

    Raises
    ------
    ValueError : as `measure` and `audit_series`; a folder that holds results of other sequences or options.

    The paper's Figure 7; chapter `pretrained`.
    """
    found = find_checkpoints(source, steps)
    load = load or load_model
    settings = {key: getattr(value, "__qualname__", value) for key, value in sorted(options.items())}
    probe = fingerprint(np.asarray(input_ids), np.asarray(1 if attention_mask is None else attention_mask))
    kept = None if folder is None else Path(folder)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    results, prints = [], {}
    for checkpoint in tqdm(found, desc="measure", unit="step", disable=not progress, file=sys.stderr):
        path = checkpoint.fetch()
        prints[checkpoint.step] = fingerprint_step(path, kept)
        digest = sha256(json.dumps(prints[checkpoint.step], sort_keys=True).encode()).hexdigest()
        key = json.dumps([joma_lib.__version__, digest, probe, settings], default=str)
        file = None if kept is None else kept / f"step-{checkpoint.step}.nc"
        result = None if file is None or not file.is_file() else load_run(file)
        if result is not None and result.attrs.get("key") != key:
            raise ValueError(
                f"{file.name if file else ''} was made from other weights, sequences or options; give another folder"
            )
        if result is None:
            model = load(path)
            result = measure(model, input_ids, attention_mask, **options).drop_vars(
                "neuron_norm", errors="ignore"
            )
            del model
            gc.collect()
            result.attrs["key"] = key
            if file is not None:
                save_run(result, file)
        result = result.assign_coords(step=checkpoint.step).assign(weights_sha256=digest)
        results.append(result)
    series = concat_steps(results)
    audit = compare(found, prints)
    series.attrs.update(
        series=json.dumps([one.origin for one in found]),
        audit=json.dumps([str(repeat) for repeat in audit.repeats]),
    )
    if audit.findings:
        warnings.warn("; ".join(map(str, audit.findings)), UserWarning, stacklevel=2)
    return series


def concat_steps(results: list[xr.Dataset]) -> xr.Dataset:
    """Join measurements, each with a scalar coordinate `step`, along it; attributes that differ fall away."""
    series = xr.concat(
        results, "step", join="exact", combine_attrs="drop_conflicts", data_vars="all", coords="minimal"
    )
    series.attrs["wall_seconds"] = sum(float(one.attrs.get("wall_seconds", 0)) for one in results)
    first = results[0].attrs
    if "citation" in first:
        name = first["model"].split()[0]
        text = first["citation"].replace(first["model"], f"{len(results)} checkpoints of {name}")
        series.attrs.update(model=name, citation=re.sub("; weights SHA-256 [0-9a-f]+", "", text))
    return series


def load_model(source: Path | str) -> Any:
    """Return the decoder of a local checkpoint folder (or of a hub repository), in the dtype of its files."""
    transformers = require("transformers", extra="pretrained")
    local = isinstance(source, Path)
    try:
        with quiet_transformers():
            return transformers.AutoModelForCausalLM.from_pretrained(
                source, dtype="auto", local_files_only=local
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0][:160].rstrip(".")
        name = source.name if isinstance(source, Path) else source
        raise ValueError(f"{name} cannot be loaded by transformers ({reason}); pass load=") from error
