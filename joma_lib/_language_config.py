"""The settings of Figures 6 and 8, without torch. Chapter: wikitext."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["LanguageConfig"]


@dataclass(frozen=True)
class LanguageConfig:
    """A setting of Figures 6 and 8; the defaults are the published one, with one layer.

    Parameters
    ----------
    layers, width, hidden, heads, dropout : the encoder; `hidden` is the MLP's width
    activation : "relu", "linear" or "gelu"
    positions : add sinusoidal positions to the embeddings
    lr : Adam's rate, constant; restart : build Adam anew each epoch, as the published loop does
    batch, context, clip : columns of training text, tokens of a sequence, largest norm of the gradient
    steps : training steps; one epoch of WikiText-2 has 2,929 (the last is short), 20 epochs are 58,580
    record_every, validate_every : steps between two records; the whole validation set is measured at the latter
    precision : "float32", or "bfloat16" for the products of the decoder (all else stays float32)

    Raises
    ------
    ValueError : a value that is out of range, named.

    >>> LanguageConfig(layers=3).lr
    0.0001
    """

    layers: int = 1
    width: int = 200
    hidden: int = 200
    heads: int = 1
    dropout: float = 0.2
    activation: str = "relu"
    positions: bool = True
    lr: float = 1e-4
    restart: bool = True
    batch: int = 20
    context: int = 35
    clip: float = 0.5
    steps: int = 58_580
    record_every: int = 50
    validate_every: int = 1000
    precision: str = "float32"

    def __post_init__(self) -> None:
        counts = ("layers", "width", "hidden", "heads", "batch", "context", "record_every", "validate_every")
        for name, least in (*((name, 1) for name in counts), ("steps", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; give an integer of at least {least}")
        if self.width % 2 or self.width % self.heads:
            raise ValueError(f"width is {self.width}; it must be even and a multiple of heads = {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; give a number from 0 to below 1")
        if not (self.lr > 0 and self.clip > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr and clip are {self.lr}, {self.clip}; both must be positive")
        if self.validate_every % self.record_every:
            raise ValueError(
                f"validate_every is {self.validate_every}; make it a multiple of record_every = {self.record_every}"
            )
        for name, known in (
            ("activation", ("relu", "linear", "gelu")),
            ("precision", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(known)}")
