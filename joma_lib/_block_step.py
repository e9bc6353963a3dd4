"""One gradient of the block, by hand, for a batch of seeds at once (used by `joma_lib.block`).

Shapes: S seeds, N samples, M tokens, Q queries, K nodes, C outputs, D coordinates of the residual stream.
The residual f = [b, one-hot query] is written in the basis of the embeddings; where the result depends on the basis
(LayerNorm, Adam) or the embeddings are not orthonormal, `embedding` [S, D, M + Q] maps it to the stream's coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from joma_lib._lazy import require

torch = require("torch", extra="torch")
Tensor = Any

__all__ = ["ACTIVATIONS", "Adam", "Data", "Gradients", "Sgd", "gradients"]

_LAYER_NORM_EPS = 1e-5


def _normal_pdf(p: Tensor) -> Tensor:
    return torch.exp(-0.5 * p * p) / math.sqrt(2 * math.pi)


def _relu(p: Tensor) -> tuple[Tensor, Tensor]:
    return p.clamp(min=0), (p > 0).to(p.dtype)


def _tanh(p: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(p)
    return h, 1 - h * h


def _erf(p: Tensor) -> tuple[Tensor, Tensor]:
    return torch.erf(p / math.sqrt(2)), 2 * _normal_pdf(p)


def _gelu(p: Tensor) -> tuple[Tensor, Tensor]:
    cdf = 0.5 * (1 + torch.erf(p / math.sqrt(2)))
    return p * cdf, cdf + p * _normal_pdf(p)


ACTIVATIONS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor | None]]] = {
    "linear": lambda p: (p, None),
    "relu": _relu,
    "gelu": _gelu,
    "erf": _erf,
    "tanh": _tanh,
}
"""Name: function from p to (φ(p), φ'(p)); None stands for a derivative of 1. erf is erf(p/√2)."""


@dataclass(frozen=True)
class Data:
    """What a block is trained on: x [S, N, M], code [S, N, Q] one-hot queries, targets [S, N, C]."""

    x: Tensor
    code: Tensor
    targets: Tensor

    @cached_property
    def log_x(self) -> Tensor | None:
        """log x where some frequencies are (nearly) zero, so that no row of the softmax can vanish; else None."""
        return None if float(self.x.min()) > 1e-6 else torch.log(self.x)

    def take(self, index: Tensor) -> Data:
        """Return the samples index [S, B] of each seed."""

        def pick(tensor: Tensor) -> Tensor:
            return torch.gather(tensor, 1, index[..., None].expand(-1, -1, tensor.shape[-1]))

        batch = Data(pick(self.x), pick(self.code), pick(self.targets))
        batch.__dict__["log_x"] = None if self.log_x is None else pick(self.log_x)
        return batch


@dataclass
class Gradients:
    """Gradients of the mean loss with respect to z, w, readout and each sample's p; the attention b; the loss."""

    z: Tensor
    w: Tensor
    readout: Tensor | None
    b: Tensor
    p: Tensor
    loss: Tensor | None


def gradients(
    config: Any,
    data: Data,
    z: Tensor,
    w: Tensor,
    *,
    readout: Tensor | None = None,
    skip: Tensor | None = None,
    embedding: Tensor | None = None,
    want_loss: bool = False,
) -> Gradients:
    """Return the gradients at z [S, Q, M], w [S, K, D], readout [S, C, K]; skip [S, K, D] is fixed."""
    scores = z if z.shape[1] == 1 else torch.bmm(data.code, z)
    b = _attention(config, data, scores)
    f = torch.cat((b, data.code), -1)
    if embedding is not None:
        f = torch.bmm(f, embedding.transpose(1, 2))
    scale = None
    if config.layer_norm:
        f, scale = _layer_norm(f)
    p = torch.bmm(f, w.transpose(1, 2))
    h, slope = ACTIVATIONS[config.activation](p)
    upper = h if skip is None else torch.baddbmm(h, f, skip.transpose(1, 2))
    y = upper if readout is None else torch.bmm(upper, readout.transpose(1, 2))
    delta = _loss_gradient(config.loss, y, data.targets).div_(b.shape[1])

    to_upper = delta if readout is None else torch.bmm(delta, readout)
    to_p = to_upper if slope is None else to_upper * slope
    to_b = _to_attention(config, b, f, to_p, to_upper, w, skip, embedding, scale)
    to_scores = _attention_backward(config, data, b, to_b)
    return Gradients(
        z=to_scores.sum(1, keepdim=True)
        if z.shape[1] == 1
        else torch.bmm(data.code.transpose(1, 2), to_scores),
        w=torch.bmm(to_p.transpose(1, 2), f),
        readout=None if readout is None else torch.bmm(delta.transpose(1, 2), upper),
        b=b,
        p=to_p,
        loss=_loss(config.loss, y, data.targets).mean(1) if want_loss else None,
    )


def _to_attention(
    config: Any,
    b: Tensor,
    f: Tensor,
    to_p: Tensor,
    to_upper: Tensor,
    w: Tensor,
    skip: Tensor | None,
    embedding: Tensor | None,
    scale: Tensor | None,
) -> Tensor:
    """Carry the gradient from the nodes' inputs (and the skip path) back to b."""
    tokens = b.shape[-1]
    if embedding is None and scale is None and skip is None:
        return torch.bmm(to_p, w[..., :tokens])
    to_f = torch.bmm(to_p, w)
    if skip is not None:
        to_f.baddbmm_(to_upper, skip)
    if scale is not None:
        to_f = _layer_norm_backward(to_f, f, scale)
    return (to_f if embedding is None else torch.bmm(to_f, embedding))[..., :tokens]


def _attention(config: Any, data: Data, scores: Tensor) -> Tensor:
    if config.attention == "softmax" and data.log_x is not None:
        return _softmax(data.log_x + scores / config.temperature)
    if config.attention == "softmax":
        shifted = scores / config.temperature
        weights = data.x * (shifted - shifted.amax(-1, keepdim=True)).exp_()
        return weights.div_(weights.sum(-1, keepdim=True))
    if config.attention == "exp":
        return data.x * torch.exp(scores / config.temperature) / config.normalizer
    return data.x * scores / config.temperature


def _softmax(y: Tensor) -> Tensor:
    if y.dtype != torch.float64 or y.is_cuda:
        return torch.softmax(y, -1)
    weights = (y - y.amax(-1, keepdim=True)).exp_()  # on the CPU several times faster than softmax in float64
    return weights.div_(weights.sum(-1, keepdim=True))


def _attention_backward(config: Any, data: Data, b: Tensor, to_b: Tensor) -> Tensor:
    if config.attention == "linear":
        return to_b * data.x / config.temperature
    product = to_b * b
    if config.attention == "softmax":
        product -= b * product.sum(-1, keepdim=True)
    return product.div_(config.temperature)


def _layer_norm(f: Tensor) -> tuple[Tensor, Tensor]:
    centred = f - f.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + _LAYER_NORM_EPS)
    return centred * scale, scale


def _layer_norm_backward(to_out: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    along = (to_out * out).mean(-1, keepdim=True)
    return (to_out - to_out.mean(-1, keepdim=True) - out * along) * scale


def _loss(kind: str, y: Tensor, targets: Tensor) -> Tensor:
    if kind == "cross-entropy":
        return -(targets * torch.log_softmax(y, -1)).sum(-1)
    if kind == "squared":
        return 0.5 * ((y - targets) ** 2).sum(-1)
    return -(targets * y).sum(-1)


def _loss_gradient(kind: str, y: Tensor, targets: Tensor) -> Tensor:
    if kind == "cross-entropy":
        return _softmax(y).sub_(targets)
    if kind == "squared":
        return y - targets
    return -targets


class Sgd:
    """Gradient descent with momentum and L2 decay on one tensor, in place; as torch.optim.SGD."""

    def __init__(self, parameter: Tensor, learning_rate: float, momentum: float, decay: float) -> None:
        self.parameter, self.learning_rate, self.momentum, self.decay = (
            parameter,
            learning_rate,
            momentum,
            decay,
        )
        self.velocity = torch.zeros_like(parameter) if momentum else None

    def step(self, gradient: Tensor) -> None:
        if self.decay:
            gradient = gradient.add(self.parameter, alpha=self.decay)
        if self.velocity is not None:
            gradient = self.velocity.mul_(self.momentum).add_(gradient)
        self.parameter.add_(gradient, alpha=-self.learning_rate)


class Adam:
    """Adam with L2 decay on one tensor, in place; as torch.optim.Adam."""

    def __init__(
        self, parameter: Tensor, learning_rate: float, betas: tuple[float, float], decay: float
    ) -> None:
        self.parameter, self.learning_rate, self.betas, self.decay = parameter, learning_rate, betas, decay
        self.mean, self.square = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.count = 0

    def step(self, gradient: Tensor) -> None:
        if self.decay:
            gradient = gradient.add(self.parameter, alpha=self.decay)
        self.count += 1
        first, second = self.betas
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (self.square / (1 - second**self.count)).sqrt_().add_(1e-8)
        self.parameter.addcdiv_(self.mean, root, value=-self.learning_rate / (1 - first**self.count))
