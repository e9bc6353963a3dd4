"""Watch your own training: attention entropy, stable rank and the drift of the invariant, every so many steps.

`Recorder` for a loop of your own, `JomaCallback` for `transformers.Trainer` and for Lightning. Chapter: pretrained.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from joma_lib._measure import measure
from joma_lib._series import concat_steps
from joma_lib.invariants import conserved

__all__ = ["JomaCallback", "Recorder"]


class Recorder:
    """Measure a model on a fixed probe batch while it trains.

    The first measurement is taken at once (step `start`), then one whenever the count of steps is a multiple of `every`.
    Each runs in eval mode without gradients and leaves the model and the random streams as they were.

    Parameters
    ----------
    model : as for `joma_lib.pretrained.measure`
    probe : input_ids [sequences, positions], a pair (input_ids, attention_mask), or a mapping with these names; None when
        only the invariant is watched
    every : steps between measurements
    layers : indices of the layers to watch; None: all
    start : the step at which the model is now, for a training that is resumed
    free_logits : for blocks of the paper's form: callable (model) -> mapping with `kind` ("exp" or "linear"), `z` [..., M],
        `v` [..., K, M] and, if it is not 1, `temperature`; records how far the quantity of Theorem 1 has moved
    options : passed to `measure`, such as `weights=False` or the two callables

    Raises
    ------
    ValueError : nothing to record, `every` below 1, logits that are not free or softmax attention (there the theorem is no
        conservation law), and whatever `measure` refuses.

    >>> import torch
    >>> block = lambda model: {"kind": "linear", "z": model.weight[0], "v": model.weight[1:]}
    >>> watch = Recorder(torch.nn.Linear(3, 2), None, every=10, free_logits=block)
    >>> for _ in range(20):
    ...     watch.step()
    >>> watch.dataset().step.values.tolist()
    [0, 10, 20]
    """

    def __init__(
        self,
        model: Any,
        probe: Any,
        every: int,
        layers: Sequence[int] | None = None,
        *,
        start: int = 0,
        free_logits: Callable[[Any], Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; give the number of steps between measurements, 1 or more")
        if probe is None and free_logits is None:
            raise ValueError(
                "probe is None and free_logits too, so there is nothing to record; give one of them"
            )
        if free_logits is not None and hasattr(model, "base_model_prefix"):
            raise ValueError(
                f"the logits of {type(model).__name__} are products of query and key, not free; Theorem 1 says nothing of them"
            )
        self.model, self.every, self.layers = model, every, layers
        self._probe, self._free_logits, self._options = _probe(probe), free_logits, options
        self._origin: tuple[np.ndarray, np.ndarray] | None = None
        self._results: dict[int, xr.Dataset] = {}
        self._count = start
        self.record()

    def step(self) -> None:
        """Count one training step; call it after `optimizer.step()`."""
        self.at(self._count + 1)

    def at(self, step: int) -> None:
        """Say which step the training has reached; measures when it is due and not done yet."""
        self._count = step
        if step % self.every == 0:
            self.record()

    def record(self) -> None:
        """Measure now, unless this step was measured before."""
        if self._count in self._results:
            return
        result = xr.Dataset()
        if self._probe is not None:
            result = measure(self.model, *self._probe, layers=self.layers, **self._options)
            result = result.drop_vars("neuron_norm", errors="ignore")
        if self._free_logits is not None:
            result = result.assign(self._drift(self._free_logits(self.model)))
        self._results[self._count] = result.assign_coords(step=self._count)

    def dataset(self) -> xr.Dataset:
        """Return what was recorded: the variables of `measure` with a dimension `step`, and with `free_logits`

        `invariant_drift` and `logit_change` (step), the largest change over tokens of the conserved quantity and of the
        logits' side of it (z, or z² for linear attention) since the first measurement. Save it with `runs.save_run`.
        """
        series = concat_steps(list(self._results.values()))
        series.attrs["recorder"] = json.dumps({"every": self.every, "steps": list(self._results)})
        return series

    def plot(self) -> Any:
        """Return a figure of what was recorded."""
        from joma_lib.figures import recorded_training

        return recorded_training(self.dataset())

    def _drift(self, block: Mapping[str, Any]) -> dict[str, float]:
        kind = block.get("kind")
        if kind not in ("exp", "linear"):
            raise ValueError(
                f"free_logits names the kind {kind!r}; only exp and linear attention have a conserved quantity to watch"
            )
        z, v = (np.array(_plain(block[name]), dtype=np.float64) for name in ("z", "v"))
        law = np.asarray(conserved(kind, z, v, temperature=float(block.get("temperature", 1.0))))
        side = z if kind == "exp" else z**2
        if self._origin is None:
            self._origin = law, side
        changes = (abs(now - then).max() for now, then in zip((law, side), self._origin, strict=True))
        return dict(zip(("invariant_drift", "logit_change"), map(float, changes), strict=True))


class JomaCallback:
    """A `Recorder` as a callback of `transformers.Trainer` or of Lightning's `Trainer`.

    It takes the base class of whichever of the two is imported (both, if both are); neither is imported otherwise.

    Parameters
    ----------
    probe, every, layers, options : as for `Recorder`
    select : callable that finds the model to measure in what is trained; default: the model itself, or the one Hugging Face
        decoder among a Lightning module's parts

    Raises
    ------
    ImportError : neither transformers nor Lightning is imported.
    RuntimeError : asked for results before training has begun.

    Chapter `pretrained`.
    """

    recorder: Recorder | None = None

    def __new__(cls, *args: Any, **options: Any) -> JomaCallback:
        bases: list[type] = []
        for module, name in (
            ("transformers", "TrainerCallback"), ("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"),
        ):  # fmt: skip
            base = getattr(sys.modules.get(module), name, None)
            if base is not None and base not in bases:
                bases.append(base)
        if not bases:
            raise ImportError(
                "neither transformers nor lightning.pytorch is imported; import the one that trains first"
            )
        return object.__new__(
            type(cls.__name__, (cls, *bases), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        )

    def __init__(
        self,
        probe: Any,
        every: int = 100,
        layers: Sequence[int] | None = None,
        *,
        select: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self._select = select or _decoder_in
        self._make = lambda model, start: Recorder(model, probe, every, layers, start=start, **options)

    def dataset(self) -> xr.Dataset:
        """Return what was recorded, as `Recorder.dataset` does."""
        return self._begun().dataset()

    def plot(self) -> Any:
        """Return a figure of what was recorded."""
        return self._begun().plot()

    def _begun(self) -> Recorder:
        if self.recorder is None:
            raise RuntimeError("nothing is recorded yet; pass this callback to a trainer and train")
        return self.recorder

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start to record (transformers)."""
        if state.is_world_process_zero:
            self.recorder = self._make(self._select(model), state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record when it is due (transformers)."""
        if self.recorder is not None:
            self.recorder.at(state.global_step)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record (Lightning)."""
        if trainer.is_global_zero:
            self.recorder = self._make(self._select(pl_module), trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Record when it is due (Lightning)."""
        if self.recorder is not None:
            self.recorder.at(trainer.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Record the last step too."""
        if self.recorder is not None:
            self.recorder.record()


def _probe(probe: Any) -> tuple[Any, Any] | None:
    if probe is None:
        return None
    if isinstance(probe, Mapping):
        if "input_ids" not in probe:
            raise ValueError(f"the probe has the entries {sorted(probe)}; it needs input_ids")
        return probe["input_ids"], probe.get("attention_mask")
    if isinstance(probe, tuple):
        if len(probe) != 2:
            raise ValueError(f"the probe is a tuple of {len(probe)}; give (input_ids, attention_mask)")
        return probe
    return probe, None


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _decoder_in(model: Any) -> Any:
    """Return the model itself, or the only Hugging Face decoder among its direct parts."""
    if hasattr(model, "base_model_prefix"):
        return model
    inside = [part for part in model.children() if hasattr(part, "base_model_prefix")]
    return inside[0] if len(inside) == 1 else model
