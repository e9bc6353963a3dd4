"""joma_lib: the joint dynamics of MLP and attention, derived, trained and measured.

Submodules load on first use, so that `import joma_lib` costs nothing: `joma_lib.metrics`, `joma_lib.invariants`, ...
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

_SUBMODULES = (
    "block",
    "claims",
    "dynamics",
    "explore",
    "figures",
    "flow",
    "hierarchy",
    "invariants",
    "language",
    "latent_tree",
    "metrics",
    "pretrained",
    "recorder",
    "runs",
)

__all__ = ["__version__", *_SUBMODULES]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
