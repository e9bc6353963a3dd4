"""Tiny decoders trained in a minute, with checkpoints laid out as the public suites lay out theirs.

They stand in for OPT and Pythia where there is no network: the same architectures and the same files, a toy task. Each
sequence is a phrase of tokens drawn with Zipf's frequencies, said twice; the second time it can be predicted by looking back. Chapter: pretrained.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from joma_lib._checkpoints import quiet_transformers
from joma_lib._lazy import require
from joma_lib._series import measure_series
from joma_lib.runs import fingerprint, provenance

torch = require("torch", extra="torch")

__all__ = ["FAMILIES", "new_decoder", "phrases", "saved_steps", "train_decoder", "train_suite"]

FAMILIES = ("gpt_neox", "opt")
_VOCABULARY, _PHRASE, _BATCH, _RATE = 64, 16, 32, 1e-3
_DONE = "trained.json"


def saved_steps(steps: int) -> list[int]:
    """Return the steps at which checkpoints are kept: 0, powers of two, then every 250, and the last.

    >>> saved_steps(600)
    [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 600]
    """
    powers = [2**k for k in range(9)]
    return sorted({0, steps, *(s for s in (*powers, *range(500, steps, 250)) if s < steps)})


def phrases(count: int, generator: Any) -> Any:
    """Return token ids [count, 32]: sixteen tokens of Zipf's distribution, then the same again."""
    frequencies = 1 / torch.arange(1, _VOCABULARY, dtype=torch.float64)
    once = 1 + torch.multinomial(
        frequencies.expand(count, -1), _PHRASE, replacement=True, generator=generator
    )
    return torch.cat([once, once], 1)


def new_decoder(family: str, seed: int = 0, *, layers: int = 4, width: int = 64) -> Any:
    """Return an untrained decoder of a family; the global random stream is left as it was.

    Raises
    ------
    ValueError : a family other than gpt_neox and opt.
    """
    transformers = require("transformers", extra="pretrained")
    common = {
        "vocab_size": _VOCABULARY, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4,
        "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if family == "gpt_neox":
        config = transformers.GPTNeoXConfig(intermediate_size=4 * width, **common)
    elif family == "opt":
        config = transformers.OPTConfig(ffn_dim=4 * width, word_embed_proj_dim=width, dropout=0.0, **common)
    else:
        raise ValueError(f"family is {family!r}; use one of {', '.join(FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config)


def train_decoder(
    family: str,
    folder: str | Path,
    *,
    seed: int = 0,
    steps: int = 1000,
    keep: Iterable[int] | None = None,
    progress: bool = False,
) -> list[float]:
    """Train a tiny decoder with Adam, keep its checkpoints in `folder/step0`, `folder/step1`, ..., and return its losses.

    Parameters
    ----------
    family : gpt_neox or opt
    folder : is made where it lacks; a training that is complete there is not repeated
    seed : of the initial weights and of the data
    keep : steps to keep; default: `saved_steps(steps)`
    progress : show a bar on stderr

    Returns
    -------
    the loss (nats a predicted token) at each step, before its update; the last is that of the trained model

    Raises
    ------
    ValueError : an unknown family, no steps, or a folder that holds another training.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; give 1 or more")
    folder, wanted = Path(folder), sorted(set(saved_steps(steps) if keep is None else keep))
    settings = {"family": family, "seed": seed, "steps": steps, "keep": wanted}
    done = folder / _DONE
    if done.is_file():
        content = json.loads(done.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            raise ValueError(
                f"{folder.name} holds another training ({content['settings']}); give another folder"
            )
        return list(content["losses"])
    started = time.perf_counter()
    model = new_decoder(family, seed).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in tqdm(range(steps + 1), desc=f"{family}, seed {seed}", disable=not progress, file=sys.stderr):
        if step in wanted:
            with quiet_transformers():
                model.save_pretrained(folder / f"step{step}")
        ids = phrases(_BATCH, generator)
        loss = model(input_ids=ids, labels=ids).loss
        losses.append(float(loss.detach()))
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    content = {
        "settings": settings,
        "losses": np.round(losses, 6).tolist(),
        "wall_seconds": time.perf_counter() - started,
    }
    done.write_text(json.dumps(content), encoding="utf-8")
    return losses


def train_suite(
    family: str, folder: str | Path, *, seeds: Iterable[int] = (0,), steps: int = 1000, progress: bool = False
) -> xr.Dataset:
    """Train a tiny decoder from each seed in `folder/seed0`, ..., and measure its checkpoints on 16 fresh phrases.

    Returns what `measure_series` does with a dimension `seed` in front, and `train_loss` (seed, step); ready for `save_run`.
    """
    probe = phrases(16, torch.Generator().manual_seed(1_000_000))
    seeds, results, elapsed = list(seeds), [], 0.0
    for seed in seeds:
        home = Path(folder) / f"seed{seed}"
        losses = train_decoder(family, home, seed=seed, steps=steps, progress=progress)
        found = measure_series(home, probe, folder=home / "measured", progress=progress)
        elapsed += (
            found.attrs["wall_seconds"]
            + json.loads((home / _DONE).read_text(encoding="utf-8"))["wall_seconds"]
        )
        results.append(found.assign(train_loss=("step", [losses[step] for step in found.step.values])))
    suite = xr.concat(results, pd.Index(seeds, name="seed"), combine_attrs="drop_conflicts")
    config = {"family": family, "steps": steps, "batch": _BATCH, "learning_rate": _RATE, "optimizer": "Adam"}
    suite.attrs.update(provenance(config, seeds=seeds, wall_seconds=elapsed, data=fingerprint(probe.numpy())))
    suite.attrs["scale"] = "tiny: 4 layers, width 64, 64 tokens, a toy task"
    return suite
