"""The settings of Table 1 and its data: classes made of latents made of latents made of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from joma_lib import _lazy

torch = _lazy.require("torch", extra="torch")

ACTIVATIONS = ("relu", "linear")
ATTENTIONS = ("trained", "frozen")
LABELS = ("true", "shuffled")


@dataclass(frozen=True)
class HierarchyConfig:
    """Data, model and training of one setting of Table 1; the defaults are the paper's first setting, 2,000 steps.

    Parameters
    ----------
    latents : number of latents of each level, from the tokens up: (N_0, N_1, ...); the model has one layer more
    classes : C; one sequence a class
    children : N_ch, how many nodes of the level below a latent or a class combines
    tokens : vocabulary, of which the last token is padding
    length : positions of a sequence; the active tokens end it
    width, hidden : of the model; hidden nodes of each MLP (None: 4 * tokens)
    activation : "relu" or "linear"
    attention : "trained", or "frozen": W_q and W_k keep their first values
    labels : "true", or "shuffled": every sample of a batch gets a label drawn afresh, nothing can be learned from it
    steps : updates of Adam (`lr`, `weight_decay` added to the gradient)
    batch : samples a step, whose class counts are drawn; None: their limit, every class with weight 1 / C
    record : steps at which to measure; None: 0, 1, 2, 3, 5, 7, 10, 20, ... and the last
    fresh : sequences of class-like combinations that no class uses, for the held-out measure
    permutations : draws of the null distribution

    Raises
    ------
    ValueError, TypeError : naming the value that cannot be, and the remedy.

    >>> HierarchyConfig().layers, HierarchyConfig().hidden_nodes
    (3, 400)
    >>> HierarchyConfig(latents=(3, 20))
    Traceback (most recent call last):
    ValueError: 20 latents of level 1 need 20 different combinations of 2 of 3, but there are only 3; take fewer
    """

    latents: tuple[int, ...] = (10, 20)
    classes: int = 20
    children: int = 2
    tokens: int = 100
    length: int = 30
    width: int = 1024
    hidden: int | None = None
    activation: str = "relu"
    attention: str = "trained"
    labels: str = "true"
    steps: int = 2000
    batch: int | None = 128
    lr: float = 1e-5
    weight_decay: float = 1e-4
    record: tuple[int, ...] | None = None
    fresh: int = 200
    permutations: int = 200

    def __post_init__(self) -> None:
        if (
            isinstance(self.latents, (str, bytes))
            or not isinstance(self.latents, Sequence)
            or not self.latents
        ):
            raise TypeError(
                f"latents is {self.latents!r}; give the number of latents of each level, such as (10, 20)"
            )
        object.__setattr__(self, "latents", tuple(self.latents))
        for level, number in enumerate(self.latents):
            _at_least(number, 1, f"latents[{level}]")
        for name, least in _LEAST.items():
            if getattr(self, name) is not None:
                _at_least(getattr(self, name), least, name)
        for name, allowed in (("activation", ACTIVATIONS), ("attention", ATTENTIONS), ("labels", LABELS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr is {self.lr}; Adam needs a positive learning rate")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay is {self.weight_decay}; give 0 or more")
        self._check_combinations()
        if self.record is not None:
            record = tuple(sorted(set(self.record)))
            if not record or record[0] < 0 or record[-1] > self.steps:
                raise ValueError(f"record is {self.record}; give steps between 0 and steps = {self.steps}")
            object.__setattr__(self, "record", record)

    def _check_combinations(self) -> None:
        below = (self.tokens - 1, *self.latents)
        names = [f"latents of level {level}" for level in range(len(self.latents))] + ["classes"]
        for name, number, pool in zip(names, (*self.latents, self.classes), below, strict=True):
            there_are = math.comb(pool, self.children)
            if number > there_are:
                raise ValueError(
                    f"{number} {name} need {number} different combinations of {self.children} of {pool}, "
                    f"but there are only {there_are}; take fewer"
                )
        most = min(self.children ** (len(self.latents) + 1), self.tokens - 1)
        if most > self.length:
            raise ValueError(
                f"a class may have {most} tokens, more than length = {self.length} holds; "
                "take a longer sequence, fewer children or fewer levels"
            )

    @property
    def layers(self) -> int:
        """Layers of the model: one a level of latents, and one for the classes."""
        return len(self.latents) + 1

    @property
    def hidden_nodes(self) -> int:
        """Hidden nodes of each MLP."""
        return 4 * self.tokens if self.hidden is None else self.hidden

    @property
    def recorded(self) -> tuple[int, ...]:
        """Steps at which a run is measured, the last always among them."""
        if self.record is not None:
            return tuple(sorted({*self.record, self.steps}))
        grid = [0] + [m * 10**power for power in range(8) for m in (1, 2, 3, 5, 7)]
        return (*(step for step in grid if step < self.steps), self.steps)


_LEAST = {
    "classes": 2,
    "children": 1,
    "tokens": 2,
    "length": 1,
    "width": 1,
    "hidden": 1,
    "steps": 0,
    "batch": 1,
    "fresh": 0,
    "permutations": 0,
}
assert set(_LEAST) <= {field.name for field in fields(HierarchyConfig)}


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The data of one draw: what each latent and class combines, and the sequences.

    Attributes
    ----------
    combinations : for each level of latents and then the classes, int64 [number, N_ch], sorted rows
    sequences : int64 [C, length], padding first, then the class's tokens in order
    on : for each level of latents, bool [C, N]: which latents a class uses
    fresh, fresh_on : the same for combinations of top latents that no class uses, [F, length] and bool [F, N];
        those that give a class's sequence all the same are left out
    """

    config: HierarchyConfig
    combinations: tuple[Any, ...]
    sequences: Any
    on: tuple[Any, ...]
    fresh: Any
    fresh_on: tuple[Any, ...]

    @property
    def unused(self) -> tuple[tuple[int, ...], ...]:
        """For each level, the latents that no class uses: nothing can be learned about them."""
        return tuple(tuple((~on.any(0)).nonzero().flatten().tolist()) for on in self.on)

    @property
    def twins(self) -> tuple[tuple[int, int], ...]:
        """Pairs of classes with one and the same sequence: no model can tell them apart."""
        same = (self.sequences[:, None] == self.sequences[None]).all(-1).triu(1)
        return tuple((int(a), int(b)) for a, b in same.nonzero().tolist())

    def heights(self, sequences: Any, on: tuple[Any, ...]) -> Any:
        """Height of the lowest common ancestor of two positions' tokens, int64 [n, length, length].

        1: some latent of level 0 that the sequence uses combines both tokens, ...; one more than the number of levels:
        they share the class alone; 0: the same token, or padding.
        """
        levels = len(self.config.latents)
        padding = self.config.tokens - 1
        out = torch.full((len(sequences), *[self.config.length] * 2), levels + 1)
        below = _members(self.combinations[0], self.config.tokens)
        spans = [below]
        for rows in self.combinations[1:-1]:
            below = (_members(rows, len(below)).float() @ below.float()) > 0
            spans.append(below)
        for level in reversed(range(levels)):
            has = spans[level][:, sequences].permute(1, 0, 2) & on[level][:, :, None]  # [n, latent, position]
            together = (has.float().transpose(1, 2) @ has.float()) > 0
            out[together] = level + 1
        same = sequences[:, :, None] == sequences[:, None, :]
        out[same | (sequences == padding)[:, :, None] | (sequences == padding)[:, None, :]] = 0
        return out


def make_hierarchy(config: HierarchyConfig, generator: Any) -> Hierarchy:
    """Draw a hierarchy from an explicit generator: the same tensors in every process.

    Every level draws different combinations, each uniformly: N_0 of the tokens, N_1 of the N_0 latents, ..., the
    classes of the top latents. All draws are made on the CPU.

    Parameters
    ----------
    config : the setting
    generator : `torch.Generator` on the CPU, or an int seed

    >>> data = make_hierarchy(HierarchyConfig(), 0)
    >>> data.sequences.shape, [tuple(on.shape) for on in data.on]
    (torch.Size([20, 30]), [(20, 10), (20, 20)])
    """
    generator = _as_generator(generator)
    pools = (config.tokens - 1, *config.latents)
    numbers = (*config.latents, config.classes)
    combinations: list[Any] = []
    for pool, number in zip(pools, numbers, strict=True):
        combinations.append(_draw(pool, number, config.children, generator, set()))
    taken = {tuple(row) for row in combinations[-1].tolist()}
    left = math.comb(config.latents[-1], config.children) - len(taken)
    fresh = _draw(config.latents[-1], min(config.fresh, left), config.children, generator, taken)
    sequences, on = _unfold(config, combinations[:-1], combinations[-1])
    fresh_sequences, fresh_on = _unfold(config, combinations[:-1], fresh)
    new = ~(fresh_sequences[:, None] == sequences[None]).all(-1).any(1)
    return Hierarchy(
        config, tuple(combinations), sequences, on, fresh_sequences[new], tuple(one[new] for one in fresh_on)
    )


def _as_generator(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        if generator.device.type != "cpu":
            raise ValueError(
                f"the generator is on {generator.device}; draw on the CPU, so that every machine agrees"
            )
        return generator
    if isinstance(generator, int) and not isinstance(generator, bool):
        return torch.Generator().manual_seed(generator)
    raise TypeError(f"generator is a {type(generator).__name__}; give a torch.Generator or an int seed")


def _draw(pool: int, number: int, children: int, generator: Any, taken: set[tuple[int, ...]]) -> Any:
    """Different sorted combinations of `children` of range(pool), none of them in `taken`."""
    rows: list[tuple[int, ...]] = []
    seen = set(taken)  # asked for membership only: its order never matters
    while len(rows) < number:
        row = tuple(sorted(torch.randperm(pool, generator=generator)[:children].tolist()))
        if row not in seen:
            seen.add(row)
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int64).reshape(number, children)


def _members(rows: Any, pool: int) -> Any:
    """Combinations as a table, bool [number, pool]."""
    out = torch.zeros(len(rows), pool, dtype=torch.bool)
    return out.scatter_(1, rows, True)


def _unfold(config: HierarchyConfig, combinations: list[Any], tops: Any) -> tuple[Any, tuple[Any, ...]]:
    """Sequences and latents in use of combinations of top latents."""
    on: list[Any] = [_members(tops, config.latents[-1])]
    pools = (config.tokens, *config.latents[:-1])
    for pool, rows in reversed(list(zip(pools, combinations, strict=True))):
        on.append((on[-1].float() @ _members(rows, pool).float()) > 0)
    tokens = on.pop()
    sequences = torch.full((len(tops), config.length), config.tokens - 1)
    for row, used in enumerate(tokens):
        active = used.nonzero().flatten()
        sequences[row, config.length - len(active) :] = active
    return sequences, tuple(reversed(on))


def _at_least(value: Any, least: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; give an int")
    if value < least:
        raise ValueError(f"{name} is {value}; give at least {least}")
