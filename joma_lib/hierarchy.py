"""Table 1: hierarchical data, the 3-layer model, and a trainer that computes each distinct sequence once.

The data of Table 1 hold only C distinct sequences. `train_hierarchy` weights them by the counts of a batch, which are
drawn, so that a run is as stochastic as plain training on padded batches, whose gradients it reproduces to rounding.
Measured on the way: NCorr as published, its null distribution, and the same on sequences that were never trained on.
Chapter: neurons_and_latents.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from joma_lib import _lazy, runs
from joma_lib._hierarchy_data import Hierarchy, HierarchyConfig, make_hierarchy
from joma_lib._hierarchy_measure import Probe, best_nodes, correlations, cross_fitted, ncorr, null_ncorr
from joma_lib._hierarchy_model import Distinct, HierarchyModel, few_threads, inside, loss_of, scores

torch = _lazy.require("torch", extra="torch")

__all__ = [
    "Distinct",
    "Hierarchy",
    "HierarchyConfig",
    "HierarchyModel",
    "HierarchyRun",
    "best_nodes",
    "correlations",
    "cross_fitted",
    "first_time",
    "inside",
    "loss_of",
    "make_hierarchy",
    "ncorr",
    "null_ncorr",
    "reached_hierarchy",
    "scores",
    "train_hierarchy",
]


class HierarchyRun:
    """One seed of one setting in the middle of its training: data, model, optimiser, what was measured.

    The seed gives three streams (data, first weights, batch counts), the same for every variant of a setting.

    >>> config = HierarchyConfig(latents=(4, 5), classes=4, tokens=20, width=8, steps=3, fresh=5, permutations=5)
    >>> run = HierarchyRun(config, seed=0)
    >>> run.advance(3).step
    3
    """

    def __init__(self, config: HierarchyConfig, seed: int, *, device: Any = "cpu", dtype: Any = None) -> None:
        self.config, self.seed, self.device = config, _seed(seed), torch.device(device)
        dtype = torch.float32 if dtype is None else dtype
        streams = np.random.SeedSequence(self.seed).generate_state(4, np.uint64)
        draws = [torch.Generator().manual_seed(int(stream >> np.uint64(1))) for stream in streams[:3]]
        self.data = make_hierarchy(config, draws[0])
        self.model = HierarchyModel(config, draws[1]).to(self.device, dtype)
        self.counts = draws[2]
        self.probe = Probe(self.data, dtype, self.device, int(streams[3] >> np.uint64(1)))
        free = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(free, config.lr, weight_decay=config.weight_decay, fused=True)
        self.step = 0
        self.seconds = 0.0
        self.measured: dict[str, Any] = {}
        self.steps: list[int] = []

    def limit(self) -> Any:
        """Weights [C, C] of (sequence, label) in the limit of large batches."""
        classes = self.config.classes
        if self.config.labels == "shuffled":
            return torch.full((classes, classes), 1 / classes**2, dtype=torch.float64)
        return torch.eye(classes, dtype=torch.float64) / classes

    def draw(self) -> Any:
        """Weights [C, C] of (sequence, label) of one batch: counts divided by the batch's size."""
        if self.config.batch is None:
            return self.limit()
        classes, batch = self.config.classes, self.config.batch
        sequence = torch.randint(classes, (batch,), generator=self.counts)
        label = sequence
        if self.config.labels == "shuffled":
            label = torch.randint(classes, (batch,), generator=self.counts)
        counts = torch.bincount(sequence * classes + label, minlength=classes**2)
        return counts.reshape(classes, classes) / batch

    def measure(self) -> None:
        """Measure the model as it is, unless this step has been measured."""
        if self.steps and self.steps[-1] == self.step:
            return
        row = self.probe.measure(self.model)
        with torch.no_grad():
            score = scores(self.model, self.probe.seen).double().cpu()
        row["loss"] = loss_of(score, self.limit())
        row["accuracy"] = (score.argmax(1) == torch.arange(len(score))).double().mean()
        if not row["loss"].isfinite():
            raise ValueError(
                f"the loss of seed {self.seed} is not finite at step {self.step}; lower lr = {self.config.lr}"
            )
        self.steps.append(self.step)
        for name, value in row.items():
            value = value.double()[None]
            self.measured[name] = torch.cat([self.measured[name], value]) if name in self.measured else value

    def advance(self, steps: int) -> HierarchyRun:
        """Train `steps` more steps, measuring at the recorded ones."""
        started = time.perf_counter()
        with few_threads(self.config, self.device):
            self._advance(steps)
        self.seconds += time.perf_counter() - started
        return self

    def _advance(self, steps: int) -> None:
        recorded = set(self.config.recorded)
        dtype = self.model.readout.weight.dtype
        if self.step in recorded:
            self.measure()
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            weights = self.draw().to(self.device, dtype)
            loss_of(scores(self.model, self.probe.seen), weights).backward()
            self.optimizer.step()
            self.step += 1
            if self.step in recorded:
                self.measure()

    def dataset(self) -> xr.Dataset:
        """What was measured so far, with a dimension `seed` of length 1 (see `train_hierarchy`)."""
        dims = {name: ("step", "layer", "latent")[: value.ndim] for name, value in self.measured.items()}
        out = xr.Dataset({name: (dims[name], value.numpy()) for name, value in self.measured.items()})
        most = max(self.config.latents)
        count = np.full((len(self.config.latents), most), np.nan)
        for level, on in enumerate(self.data.on):
            count[level, : on.shape[1]] = on.sum(0).numpy()
        out["count"] = (("layer", "latent"), count)
        out["twins"] = ((), len(self.data.twins))
        out = out.assign_coords(
            step=self.steps, layer=np.arange(len(self.config.latents)), latent=np.arange(most)
        )
        out = out.expand_dims(seed=[self.seed])
        out["loss"].attrs["units"] = "nats"
        out["attention_entropy"].attrs["units"] = "nats"
        data = self.data.sequences, *self.data.combinations
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        out.attrs = runs.provenance(
            self.config, seeds=[self.seed], device=device, wall_seconds=self.seconds, data=data
        )
        return out

    def save(self, path: Path) -> None:
        """Write all that is needed to go on, in one step."""
        part = path.with_name(f".{path.name}.part")
        state = {
            "config": _text(self.config),
            "seed": self.seed,
            "step": self.step,
            "seconds": self.seconds,
            "steps": self.steps,
            "measured": self.measured,
            "first": self.probe.first,
            "counts": self.counts.get_state(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> HierarchyRun:
        """Go on from a file of `save`; ValueError for a damaged file or one of another setting."""
        state = _read(path)
        if state["config"] != _text(self.config) or state["seed"] != self.seed:
            raise ValueError(
                f"{path.name} belongs to another setting or seed; give each setting a folder of its own"
            )
        self.step, self.seconds, self.steps = state["step"], state["seconds"], state["steps"]
        self.measured, self.probe.first = state["measured"], state["first"]
        self.counts.set_state(state["counts"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return self


def train_hierarchy(
    config: HierarchyConfig,
    *,
    seeds: Iterable[int] = (0,),
    device: Any = "cpu",
    dtype: Any = None,
    folder: str | os.PathLike[str] | None = None,
    every: int = 500,
    progress: bool = False,
) -> xr.Dataset:
    """Train the model of Table 1 on its hierarchy, and measure it on the way.

    Parameters
    ----------
    config : the setting and the variant
    seeds : each seed draws its own hierarchy, first weights and batches
    device, dtype : where and in what to train (None: float32); everything is drawn on the CPU
    folder : keeps finished seeds (`seed-S.nc`) and, every `every` steps, the state of the one in training
        (`seed-S.pt`): called again, the run goes on from there to the same numbers
    progress : show a progress bar on stderr

    Returns
    -------
    xarray.Dataset, dimensions seed, step, layer (one a level of latents), latent:
        loss (nats) and accuracy on the true labels, over (seed, step); over (seed, step, layer): ncorr (as published:
        latents that no class uses count 0), null_mean and null_high (mean and 95 % quantile of NCorr with the latents
        permuted, used latents only), attention_entropy (nats, over active queries), attention_shift (total variation
        from step 0), lift_H (attention to a token whose lowest common ancestor is H up, over uniform); over (seed, step,
        layer, latent): correlation (of the best node on the classes' sequences; NaN for an unused latent), heldout (that
        node's on unseen combinations), crossfit (best node of one half of the unseen, on the other half); count: classes
        that use a latent.

    >>> config = HierarchyConfig(latents=(4, 5), classes=4, tokens=20, width=8, steps=2, fresh=5, permutations=5)
    >>> train_hierarchy(config, seeds=[0, 1]).correlation.dims
    ('seed', 'step', 'layer', 'latent')
    """
    if folder is not None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in _seeds(seeds):
        done = _finished(config, folder, seed)
        found.append(
            done if done is not None else _train(config, seed, device, dtype, folder, every, progress)
        )
    return _join(config, found)


def reached_hierarchy(
    config: HierarchyConfig, folder: str | os.PathLike[str], *, seeds: Iterable[int]
) -> xr.Dataset:
    """Return what a folder of `train_hierarchy` holds so far, without training; steps not reached are NaN.

    Raises
    ------
    ValueError : the folder holds nothing of these seeds.
    """
    found = []
    for seed in _seeds(seeds):
        done, path = _finished(config, Path(folder), seed), Path(folder) / f"seed-{seed}.pt"
        if done is None and path.is_file():
            done = HierarchyRun(config, seed).load(path).dataset()
        if done is not None:
            found.append(done)
    if not found:
        raise ValueError(f"{os.fspath(folder)} holds no seed of this setting; train it first")
    return _join(config, found)


def first_time(run: xr.Dataset, variable: str = "heldout", threshold: float = 0.8) -> xr.DataArray:
    """Return the first recorded step at which `variable` of a latent reaches a threshold; NaN: never (or unused).

    >>> demo = xr.Dataset({"heldout": (("step", "latent"), [[0.1, 0.9], [0.85, 0.2]])}, coords={"step": [0, 10]})
    >>> first_time(demo).values.tolist()
    [10.0, 0.0]
    """
    above = run[variable] >= threshold
    step = run.step.where(above)
    return step.min("step")


def _train(
    config: HierarchyConfig,
    seed: int,
    device: Any,
    dtype: Any,
    folder: Path | None,
    every: int,
    progress: bool,
) -> xr.Dataset:
    run = HierarchyRun(config, seed, device=device, dtype=dtype)
    state = None if folder is None else folder / f"seed-{seed}.pt"
    if state is not None and state.is_file():
        run.load(state)
    for steps in _pieces(config.steps, run.step, every, f"seed {seed}" if progress else ""):
        run.advance(steps)
        if state is not None and run.step < config.steps and run.step % every == 0:
            run.save(state)
    if config.steps == 0:
        run.advance(0)
    if folder is not None and state is not None:
        runs.save_run(run.dataset(), folder / f"seed-{seed}.nc")
        state.unlink(missing_ok=True)
    return run.dataset()


def _pieces(total: int, start: int, every: int, name: str) -> Iterator[int]:
    """Numbers of steps that end at multiples of `every`; with a name, shorter ones under a progress bar."""
    from tqdm import tqdm

    with tqdm(total=total, initial=start, desc=name, unit="step", disable=not name) as bar:
        while start < total:
            piece = min(20 if name else every, every - start % every, total - start)
            yield piece
            start += piece
            bar.update(piece)


def _finished(config: HierarchyConfig, folder: Path | None, seed: int) -> xr.Dataset | None:
    path = None if folder is None else folder / f"seed-{seed}.nc"
    if path is None or not path.is_file():
        return None
    run = runs.load_run(path)
    if run.attrs["config"] != _text(config):
        raise ValueError(f"{path.name} belongs to another setting; give each setting a folder of its own")
    return run


def _join(config: HierarchyConfig, found: list[xr.Dataset]) -> xr.Dataset:
    joined = xr.concat(found, "seed", data_vars="all", join="outer", combine_attrs="override")
    joined.attrs = {key: value for key, value in found[0].attrs.items() if key != "sha256"}
    joined.attrs["seeds"] = json.dumps(joined.seed.values.tolist())
    joined.attrs["wall_seconds"] = float(sum(run.attrs["wall_seconds"] for run in found))
    joined.attrs["data_fingerprint"] = runs.fingerprint([run.attrs["data_fingerprint"] for run in found])
    joined.attrs["steps_reached"] = json.dumps([int(run.step.max()) for run in found])
    return joined


def _read(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(
            f"{path.name} is damaged or no state of a run; delete it to start that seed again"
        ) from error


def _text(config: HierarchyConfig) -> str:
    return json.dumps(asdict(config), sort_keys=True)


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}; give an int")
    if seed < 0:
        raise ValueError(f"seed is {seed}; give 0 or more")
    return int(seed)


def _seeds(seeds: Iterable[int]) -> list[int]:
    out = [_seed(seed) for seed in seeds]
    if not out or len(set(out)) != len(out):
        raise ValueError(f"seeds are {out}; give at least one, each once")
    return out
