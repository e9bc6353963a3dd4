"""The paper's block in PyTorch, trained by gradient descent, a whole batch of seeds in one computation.

Tokens l = 1..M with frequencies x, logits z, attention b (linear x∘z/T, exp x∘e^{z/T}/A, softmax), residual
f = U_C b + u_q, hidden nodes h_k = φ(w_kᵀ f), loss L(h). The backward pass is written by hand (`joma_lib._block_step`):
for tensors this small an autograd graph costs far more than the arithmetic. Chapter `block`; section 3 of the paper.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from joma_lib import runs
from joma_lib._block_data import (
    as_data,
    draw_embedding,
    draw_smooth_classes,
    find_device,
    given_samples,
    number,
    recorded_steps,
    whole,
)
from joma_lib._block_step import ACTIVATIONS, Adam, Data, Gradients, Sgd, gradients
from joma_lib._lazy import require

torch = require("torch", extra="torch")

__all__ = ["BlockConfig", "smooth_classes", "train_block"]

_CHOICES = {
    "attention": ("linear", "exp", "softmax"),
    "activation": tuple(ACTIVATIONS),
    "loss": ("cross-entropy", "squared", "linear"),
    "embedding": ("orthonormal", "gaussian"),
    "optimizer": ("sgd", "adam"),
    "dtype": ("float32", "float64"),
}


@dataclass(frozen=True)
class BlockConfig:
    """What is trained, and how. The defaults are those of Figure 2.

    Parameters
    ----------
    tokens, nodes, queries : M contextual tokens, K hidden nodes, and the number of queries that share w
    width : d of the residual stream; orthonormal embeddings need tokens + queries ≤ width
    attention : "linear", "exp" or "softmax"; `temperature` T and `normalizer` A (exp only) go with it
    activation : "linear", "relu", "gelu", "erf" (erf(p/√2)) or "tanh"
    loss : "cross-entropy", "squared" (½ Σ (y − target)²) or "linear" (− Σ target·y: a constant g = target)
    outputs : 0: the loss sees h; C > 0: a trained read-out y = A h with C outputs, which sees h only
    embedding : "orthonormal" or "gaussian" (entries normal with variance 1/d)
    layer_norm, skip : normalise f; add a fixed random map of f to h, so that the loss sees f past the MLP
    optimizer, learning_rate, momentum, betas : "sgd" with momentum, or "adam"
    decay_w, decay_z : L2 decay of W (and the read-out) and of z, added to the gradient as in torch.optim
    steps, batch_size : number of steps; samples a step, drawn with replacement (None: all of them, every step)
    init_scale, init_scale_z : standard deviation of the initial w (and read-out), and of z (None: the same)
    dtype : "float32" or "float64"

    Raises
    ------
    ValueError, TypeError : a value that means nothing, named in one sentence.

    >>> BlockConfig(attention="exp", steps=100).temperature
    0.5
    >>> BlockConfig(temperature=0)
    Traceback (most recent call last):
    ValueError: temperature is 0; give a positive finite number
    """

    tokens: int = 20
    nodes: int = 20
    queries: int = 1
    width: int = 30
    attention: str = "softmax"
    temperature: float = 0.5
    normalizer: float = 1.0
    activation: str = "linear"
    loss: str = "cross-entropy"
    outputs: int = 0
    embedding: str = "orthonormal"
    layer_norm: bool = False
    skip: bool = False
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    decay_w: float = 0.0
    decay_z: float = 0.0
    steps: int = 2000
    batch_size: int | None = None
    init_scale: float = 0.01
    init_scale_z: float | None = None
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} {getattr(self, name)!r} is unknown; use one of {', '.join(choices)}"
                )
        for name in ("tokens", "nodes", "queries", "width", "steps"):
            whole(name, getattr(self, name), at_least=1)
        whole("outputs", self.outputs, at_least=0)
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, at_least=1)
        for name in ("temperature", "normalizer", "learning_rate"):
            if not number(name, getattr(self, name)) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a positive finite number")
        scale_z = 0.0 if self.init_scale_z is None else self.init_scale_z
        for name, value in (
            ("decay_w", self.decay_w),
            ("decay_z", self.decay_z),
            ("init_scale", self.init_scale),
            ("init_scale_z", scale_z),
        ):
            if not number(name, value) >= 0:
                raise ValueError(f"{name} is {value}; give a finite number that is not negative")
        object.__setattr__(self, "betas", tuple(self.betas))
        for name, value in (("momentum", self.momentum), *(("betas", beta) for beta in self.betas)):
            if not 0 <= number(name, value) < 1:
                raise ValueError(f"{name} is {value}; give a number in [0, 1)")
        if self.momentum and self.optimizer == "adam":
            raise ValueError(f"momentum is {self.momentum} with adam, which has its own; set betas instead")
        if self.embedding == "orthonormal" and self.tokens + self.queries > self.width:
            raise ValueError(
                f"{self.tokens} tokens and {self.queries} query embeddings cannot be orthonormal in width {self.width}; "
                f"give a width of at least {self.tokens + self.queries}"
            )


def smooth_classes(config: BlockConfig, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the data of Figure 2 for one seed: x [N, M], targets [N], queries [N], one sample a class and query.

    There are as many classes as outputs (nodes, without a read-out). Half the tokens are distinct, D of them, with
    class-conditional frequencies exp(−(i − D k/K)²/3D), which move smoothly from class to class; the others are
    common, uniform in [0, ½) and drawn afresh for each class. Each row is divided by its sum.

    >>> x, targets, queries = smooth_classes(BlockConfig(), seed=0)
    >>> x.shape, bool(abs(x.sum(1) - 1).max() < 1e-12), int(targets.max())
    ((20, 20), True, 19)
    """
    return draw_smooth_classes(config, torch.Generator().manual_seed(whole("seed", seed, at_least=0)))


def train_block(
    config: BlockConfig | None = None,
    *,
    seeds: int | Iterable[int] = (0,),
    x: Any = None,
    targets: Any = None,
    queries: Any = None,
    record: int | Iterable[int] | None = None,
    track_updates: bool = False,
    per_sample: bool = False,
    device: str = "auto",
) -> xr.Dataset:
    """Train the block from every seed at once, and return what was recorded.

    Parameters
    ----------
    config : what to train; without it the experiment of Figure 2
    seeds : one seed or several; each seeds a CPU generator of its own for data, initial values and mini-batches, so
        that a seed gives the same numbers alone, in company, and on any device (within rounding)
    x, targets, queries : the data, else `smooth_classes` of each seed. x [N, M] or [seed, N, M]: frequencies;
        targets [N] (or [seed, N]): classes, or [N, C] ([seed, N, C]): class probabilities, values, or g; queries [N]
    record : every so many steps, or the steps themselves; by default 101 of them. First and last are always there
    track_updates : add the sums over steps of the squared updates of z and v (for the exact finite-step identities)
    per_sample : add each sample's attention b and signal g_k φ'_k at the recorded steps
    device : "auto" takes CUDA where there is one

    Returns
    -------
    xarray.Dataset : z (seed, step, [query,] token), v = U_Cᵀ w (seed, step, node, token), bias = u_qᵀ w (seed, step,
        [query,] node), loss and entropy (seed, step; entropy in nats of each sample's attention divided by its sum,
        averaged over samples), mean_attention b̄ (seed, step, [query,] token), the data x, targets, query; with options
        readout, squared_updates_z, squared_updates_v, attention, signal. Provenance in the attributes.

    Raises
    ------
    ValueError, TypeError : bad data or options; a run that left the finite numbers, with its seed and step.

    >>> run = train_block(BlockConfig(attention="exp", steps=10), seeds=[0, 1], record=5)
    >>> dict(run.v.sizes), run.step.values.tolist()
    ({'seed': 2, 'step': 3, 'node': 20, 'token': 20}, [0, 5, 10])
    """
    config = config or BlockConfig()
    if not isinstance(config, BlockConfig):
        raise TypeError(f"config is a {type(config).__name__}; give a BlockConfig")
    began = time.perf_counter()
    seeds = [whole("seed", seed, at_least=0) for seed in (seeds if isinstance(seeds, Iterable) else [seeds])]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds are {seeds}; give at least one, each once")
    steps = recorded_steps(record, config.steps)
    where = find_device(device)
    with torch.no_grad(), _few_threads(config, len(seeds), where):
        training = _Training(config, seeds, (x, targets, queries), where, track_updates)
        variables = training.run(steps, per_sample)
    dataset = xr.Dataset(variables, coords={"seed": seeds, "step": steps})
    if config.queries == 1:
        dataset = dataset.squeeze("query", drop=True) if "query" in dataset.dims else dataset
    dataset.attrs = runs.provenance(
        config,
        seeds=seeds,
        device=where,
        wall_seconds=time.perf_counter() - began,
        data=[dataset.x.values, dataset.targets.values],
    )
    return dataset


@contextmanager
def _few_threads(config: BlockConfig, seeds: int, device: Any) -> Iterator[None]:
    """Compute on one thread where a step is too small to share, as threads then wait for each other, and put it back."""
    threads = torch.get_num_threads()
    if (
        device.type == "cpu"
        and seeds * config.nodes * (config.tokens + config.queries) * config.nodes < 1_000_000
    ):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Training:
    """The state of a batch of runs."""

    def __init__(
        self, config: BlockConfig, seeds: Sequence[int], data: tuple[Any, Any, Any], device: Any, track: bool
    ) -> None:
        self.config, self.seeds = config, seeds
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.samples = given_samples(config, len(seeds), generators, *data)

        def stack(draw: Any) -> Any:
            return torch.stack([draw(generator) for generator in generators]).to(device, dtype)

        def normal(*shape: int) -> Any:
            return stack(lambda generator: torch.randn(shape, generator=generator, dtype=torch.float64))

        dtype = getattr(torch, config.dtype)
        scale_z = config.init_scale if config.init_scale_z is None else config.init_scale_z
        columns = config.tokens + config.queries
        # In the basis of orthonormal embeddings W has the columns v, bias, and others that nothing ever sees.
        mixed = config.embedding == "gaussian" or config.layer_norm or config.optimizer == "adam"
        coordinates = config.width if mixed else columns
        self.z = scale_z * normal(config.queries, config.tokens)
        self.w = config.init_scale * normal(coordinates, config.nodes).transpose(1, 2).contiguous()
        self.readout = config.init_scale * normal(config.outputs, config.nodes) if config.outputs else None
        self.skip = normal(config.nodes, coordinates) if config.skip else None
        self.embedding = stack(lambda generator: draw_embedding(config, generator)) if mixed else None
        self.data = as_data(self.samples, config, device, dtype)
        samples = self.data.x.shape[1]
        self.batches = None
        if config.batch_size is not None:
            shape = (config.steps, config.batch_size)
            drawn = [torch.randint(samples, shape, generator=generator) for generator in generators]
            self.batches = torch.stack(drawn, 1).to(device)
        self.updates = [torch.zeros_like(self.z), torch.zeros_like(self.v)] if track else None

    @property
    def v(self) -> Any:
        w = self.w if self.embedding is None else torch.bmm(self.w, self.embedding)
        return w[..., : self.config.tokens]

    @property
    def bias(self) -> Any:
        w = self.w if self.embedding is None else torch.bmm(self.w, self.embedding)
        return w[..., self.config.tokens :].transpose(1, 2)

    def gradients(self, data: Data, want_loss: bool = False) -> Gradients:
        return gradients(
            self.config,
            data,
            self.z,
            self.w,
            readout=self.readout,
            skip=self.skip,
            embedding=self.embedding,
            want_loss=want_loss,
        )

    def run(self, steps: list[int], per_sample: bool) -> dict[str, Any]:
        config, frames, recorded = self.config, [], set(steps)
        optimizers = [self._optimizer(self.z, config.decay_z), self._optimizer(self.w, config.decay_w)]
        if self.readout is not None:
            optimizers.append(self._optimizer(self.readout, config.decay_w))
        for step in range(config.steps + 1):
            if step in recorded:
                frames.append(self._record(step, per_sample))
            if step == config.steps:
                break
            found = self.gradients(self.data if self.batches is None else self.data.take(self.batches[step]))
            before = (self.z.clone(), self.v.clone()) if self.updates is not None else None
            for optimizer, gradient in zip(optimizers, (found.z, found.w, found.readout), strict=False):
                optimizer.step(gradient)
            if self.updates is not None and before is not None:
                self.updates[0] += (self.z - before[0]) ** 2
                self.updates[1] += (self.v - before[1]) ** 2
        return self._variables(frames)

    def _optimizer(self, parameter: Any, decay: float) -> Sgd | Adam:
        config = self.config
        if config.optimizer == "adam":
            return Adam(parameter, config.learning_rate, config.betas, decay)
        return Sgd(parameter, config.learning_rate, config.momentum, decay)

    def _record(self, step: int, per_sample: bool) -> dict[str, Any]:
        found = self.gradients(self.data, want_loss=True)
        finite = (
            torch.isfinite(found.loss)
            & torch.isfinite(self.w).all((1, 2))
            & torch.isfinite(self.z).all((1, 2))
        )
        if not bool(finite.all()):
            seed = self.seeds[int((~finite).nonzero()[0])]
            raise ValueError(
                f"seed {seed} is not finite any more at step {step}; lower the learning rate "
                f"({self.config.learning_rate}) or stop earlier"
            )
        size = found.b.abs()
        rows = size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
        share = self.data.code.transpose(1, 2) / self.data.code.sum(1)[..., None].clamp(min=1)
        frame = {
            "z": self.z,
            "v": self.v,
            "bias": self.bias,
            "loss": found.loss,
            "entropy": torch.special.entr(rows).sum(-1).mean(-1),
            "mean_attention": torch.bmm(share, found.b),
        }
        if self.readout is not None:
            frame["readout"] = self.readout
        if self.updates is not None:
            frame |= {"squared_updates_z": self.updates[0], "squared_updates_v": self.updates[1]}
        if per_sample:
            frame |= {"attention": found.b, "signal": -found.p * found.p.shape[1]}
        return {name: value.cpu().numpy().copy() for name, value in frame.items()}

    def _variables(self, frames: list[dict[str, Any]]) -> dict[str, Any]:
        dims = {
            "z": ("query", "token"),
            "v": ("node", "token"),
            "bias": ("query", "node"),
            "loss": (),
            "entropy": (),
            "mean_attention": ("query", "token"),
            "readout": ("output", "node"),
            "squared_updates_z": ("query", "token"),
            "squared_updates_v": ("node", "token"),
            "attention": ("sample", "token"),
            "signal": ("sample", "node"),
        }
        units = {
            "loss": {"units": "nats"} if self.config.loss == "cross-entropy" else {},
            "entropy": {"units": "nats"},
        }
        variables: dict[str, Any] = {
            name: (
                ("seed", "step", *dims[name]),
                np.stack([frame[name] for frame in frames], 1),
                units.get(name, {}),
            )
            for name in frames[0]
        }
        samples = self.samples
        variables["x"] = (("seed", "sample", "token"), samples.x)
        variables["targets"] = (("seed", "sample", "output")[: samples.targets.ndim], samples.targets)
        variables["queries"] = (("sample",), samples.queries)
        return variables
