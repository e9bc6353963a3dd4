"""Import optional dependencies late, and say which extra brings them."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["require"]


def require(name: str, *, extra: str) -> ModuleType:
    """Return module `name`; where it is missing, raise ImportError naming the extra that brings it.

    >>> require("math", extra="torch").pi > 3
    True
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        raise ImportError(f"{name} is not installed; run: pip install 'joma_lib[{extra}]'") from error
