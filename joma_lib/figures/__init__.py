"""The paper's figures and the book's own: data in, `matplotlib.figure.Figure` out; no training inside.

Each function lives in a private module of its own and loads when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "attention_by_height": "_table_1",
    "cluster_field_map": "_cluster_field",
    "co_occurrence_tree": "_latent_tree",
    "gain_by_count": "_table_1",
    "ncorr_curves": "_table_1",
    "table_1": "_table_1",
    "band": "_style",
    "block_diagram": "_diagram",
    "broken_laws": "_broken_laws",
    "bounce_map": "_figure_4",
    "figure_2": "_figure_2",
    "figure_3": "_figure_3",
    "figure_4": "_figure_4",
    "figure_6": "_figure_6",
    "figure_7": "_figure_7",
    "figure_8": "_figure_6",
    "idea": "_idea",
    "new_figure": "_style",
    "recorded_training": "_figure_7",
    "stable_rank_paths": "_stable_rank",
    "style": "_style",
}
"""Public name: the private module that holds it. Add a line for each new figure."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
