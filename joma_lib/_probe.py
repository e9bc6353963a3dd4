"""The sequences that a model is measured on: checked, on the model's device, with a boolean mask of the real tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

import joma_lib._lazy

torch = joma_lib._lazy.require("torch", extra="torch")

__all__ = ["draw_queries", "prepare_probe"]


def prepare_probe(model: Any, input_ids: Any, attention_mask: Any) -> tuple[Any, Any]:
    """Return (ids, mask of real tokens), each [sequences, positions], on the model's device.

    Raises
    ------
    TypeError : ids that are no integers.
    ValueError : another shape, ids outside the vocabulary, a mask that is not 0/1, has gaps or a sequence without tokens,
        more real tokens than the model has positions.
    """
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else "cpu"
    try:
        ids = torch.as_tensor(input_ids if isinstance(input_ids, torch.Tensor) else np.asarray(input_ids))
    except (TypeError, ValueError):
        raise ValueError(
            "input_ids cannot be read as an array; pad the sequences to one length, and pass a mask"
        ) from None
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"input_ids has dtype {ids.dtype}; give token ids as integers")
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"input_ids has shape {tuple(ids.shape)}; give [sequences, positions], neither of them 0"
        )
    ids = ids.to(device=device, dtype=torch.long)
    if attention_mask is None:
        mask = torch.ones_like(ids, dtype=torch.bool)
    else:
        given = torch.as_tensor(
            attention_mask if isinstance(attention_mask, torch.Tensor) else np.asarray(attention_mask)
        )
        if given.shape != ids.shape:
            raise ValueError(
                f"attention_mask has shape {tuple(given.shape)}, input_ids {tuple(ids.shape)}; give one entry for each token"
            )
        if not bool(((given == 0) | (given == 1)).all()):
            raise ValueError(
                "attention_mask has entries other than 0 and 1; give 1 for real tokens and 0 for padding"
            )
        mask = given.to(device=device, dtype=torch.bool)
    lengths = mask.sum(-1)
    if not bool(lengths.all()):
        raise ValueError(f"sequence {int((lengths == 0).nonzero()[0])} has no real token; leave it out")
    starts = mask[:, 0].long() + (mask.long().diff(dim=-1) > 0).sum(-1)
    if bool((starts > 1).any()):
        raise ValueError(
            f"the attention_mask of sequence {int((starts > 1).nonzero()[0])} has a gap; padding may stand before and after only"
        )
    _check_against_model(model, ids[mask], int(lengths.max()))
    return ids, mask


def _check_against_model(model: Any, ids: Any, longest: int) -> None:
    if int(ids.min()) < 0:
        raise ValueError(f"input_ids holds {int(ids.min())}; token ids are not negative")
    try:
        vocabulary = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        return  # no Hugging Face model: its own forward pass will tell
    if int(ids.max()) >= vocabulary:
        raise ValueError(
            f"input_ids holds {int(ids.max())}, the model's vocabulary has {vocabulary}; use the model's own tokenizer"
        )
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise ValueError(f"a sequence has {longest} tokens, the model {positions} positions; cut it")


def draw_queries(mask: Any, queries: int, seed: int) -> Any:
    """Return a mask of at most `queries` real positions a sequence, drawn without replacement."""
    if queries < 1:
        raise ValueError(f"queries is {queries}; give 1 or more, or None for all")
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(mask.shape, generator=generator).to(mask.device).masked_fill(~mask, 2.0)
    return mask & (order.argsort(-1).argsort(-1) < queries)
