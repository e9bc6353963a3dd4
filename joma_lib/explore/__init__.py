"""Explorers: figures with controls that work in Jupyter, in Colab, and on a page without kernel or network.

Each function returns an `Explorer`: the last line of a cell shows it as one self-contained block of HTML (its JavaScript
is printed from the SymPy expressions that the chapters prove, or moves recorded frames), `.widget()` returns the same as
core ipywidgets. Nothing here trains anything at import.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Explorer": "_base",
    "entropy_by_layer": "_entropy",
    "invariant": "_invariant",
    "latent_tree": "_tree",
    "race": "_race",
    "sparse_then_dense": "_sparse",
}
"""Public name: the private module that holds it."""

__all__ = ["Explorer", "entropy_by_layer", "invariant", "latent_tree", "race", "sparse_then_dense"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
