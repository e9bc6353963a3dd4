"""Figures 6 and 8: a small language model trained on WikiText from scratch, and measured on the way.

Two entropies are recorded: that of the one sequence that the published curves show, with the published formula, and that of
the whole validation set with its standard error. A run can be killed at any moment and goes on to the same numbers.
Chapters: wikitext, assumptions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xarray as xr

from joma_lib import runs
from joma_lib._language_config import LanguageConfig
from joma_lib._language_data import Corpus, load_wikitext, make_corpus, synthetic_corpus, tokenize
from joma_lib._language_model import LanguageModel, linear_cross_entropy
from joma_lib._language_run import LanguageRun, as_dataset, checked_seed, published_entropy, read_state

__all__ = [
    "Corpus",
    "LanguageConfig",
    "LanguageModel",
    "LanguageRun",
    "linear_cross_entropy",
    "load_wikitext",
    "make_corpus",
    "published_entropy",
    "reached_language",
    "synthetic_corpus",
    "tokenize",
    "train_language",
]


def train_language(
    corpus: Corpus,
    config: LanguageConfig,
    *,
    seeds: Iterable[int] = (1,),
    device: Any = "cpu",
    folder: str | os.PathLike[str] | None = None,
    every: int = 200,
    progress: bool = False,
) -> xr.Dataset:
    """Train the language model of Figures 6 and 8 from scratch, and measure it on the way.

    Parameters
    ----------
    corpus : from `load_wikitext`, `make_corpus` or `synthetic_corpus`
    config : the setting
    seeds : each draws its own first weights (as the published script does from that seed) and dropout
    device : where to train
    folder : keeps finished seeds (`seed-S.nc`) and, every `every` steps, the state of the one in training (`seed-S.pt`):
        called again, the run goes on from there to the same numbers, bit for bit on one machine
    progress : show rate and time left on stderr

    Returns
    -------
    xarray.Dataset over seed and step, and layer, head, query as they apply. At every record: entropy_one_sequence (nats, the
    published measure), stable_rank_lower and _upper (the MLP's matrices), stable_rank_query_key (of W_Qᵀ W_K), train_loss
    (nats a token, mean since the last record). Where the validation set is measured, NaN elsewhere: entropy and entropy_se
    (mean over sequences of the mean over queries, and its standard error), entropy_by_query, validation_loss.

    Raises
    ------
    ValueError : a split too short for the batch, a state of another setting, a loss that is not finite.

    >>> corpus = synthetic_corpus(tokens=1000, words=40, topics=2)
    >>> config = LanguageConfig(width=8, hidden=8, steps=2, batch=4, context=5)
    >>> train_language(corpus, config, seeds=[1, 2]).entropy_one_sequence.dims
    ('seed', 'step', 'layer')
    """
    seeds = [checked_seed(seed) for seed in seeds]
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds are {seeds}; give at least one, each once")
    folder = None if folder is None else Path(folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return _join([_train(corpus, config, seed, device, folder, every, progress) for seed in seeds])


def reached_language(folder: str | os.PathLike[str], *, seeds: Iterable[int]) -> xr.Dataset:
    """Return what a folder of `train_language` holds so far, without training; steps not reached are NaN.

    Raises
    ------
    ValueError : the folder holds nothing of these seeds.
    """
    found = []
    for seed in seeds:
        done, path = Path(folder) / f"seed-{seed}.nc", Path(folder) / f"seed-{seed}.pt"
        if done.is_file():
            found.append(runs.load_run(done))
        elif path.is_file():
            found.append(as_dataset(read_state(path)))
    if not found:
        raise ValueError(f"{os.fspath(folder)} holds no seed of this setting; train it first")
    return _join(found)


def _train(
    corpus: Corpus,
    config: LanguageConfig,
    seed: int,
    device: Any,
    folder: Path | None,
    every: int,
    show: bool,
) -> xr.Dataset:
    run = LanguageRun(corpus, config, seed, device=device)
    state = None if folder is None else folder / f"seed-{seed}.pt"
    if folder is not None and (folder / f"seed-{seed}.nc").is_file():
        done = runs.load_run(folder / f"seed-{seed}.nc")
        expected = run.dataset().attrs
        if any(done.attrs[key] != expected[key] for key in ("config", "data_fingerprint")):
            raise ValueError(f"seed-{seed}.nc is of another setting or text; give each a folder of its own")
        return done
    if state is not None and state.is_file():
        run.load(state)
    from tqdm import tqdm

    with tqdm(
        total=config.steps, initial=run.step, desc=f"seed {seed}", unit="step", disable=not show
    ) as bar:
        run.advance(0)
        while run.step < config.steps:
            piece = min(10, every - run.step % every, config.steps - run.step)
            run.advance(piece)
            bar.update(piece)
            if state is not None and run.step < config.steps and run.step % every == 0:
                run.save(state)
    if folder is not None and state is not None:
        runs.save_run(run.dataset(), folder / f"seed-{seed}.nc")
        state.unlink(missing_ok=True)
    return run.dataset()


def _join(found: list[xr.Dataset]) -> xr.Dataset:
    joined = xr.concat(found, "seed", data_vars="all", join="outer", combine_attrs="override")
    joined.attrs = {key: value for key, value in found[0].attrs.items() if key != "sha256"}
    joined.attrs["seeds"] = json.dumps(joined.seed.values.tolist())
    joined.attrs["wall_seconds"] = float(sum(run.attrs["wall_seconds"] for run in found))
    joined.attrs["steps_reached"] = json.dumps([int(run.step.max()) for run in found])
    return joined
