"""Shared set-up of the tests: no network, reproducible hypothesis, reasons for what is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("dev", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`slow` tests run when asked for (-m slow); `cuda` tests where there is a device."""
    asked = config.getoption("-m") or ""
    for item in items:
        if "slow" in item.keywords and "slow" not in asked:
            item.add_marker(pytest.mark.skip(reason="slow: run weekly, or with -m slow"))
        if "cuda" in item.keywords:
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _global_state() -> tuple:
    import random

    import torch

    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002 - it is this stream that must stay as it was
    return random.getstate(), legacy, torch.get_rng_state().tolist(), torch.get_default_dtype()


@pytest.fixture
def global_state_untouched() -> Iterator[None]:
    """Fail when the test changed a global random stream or the default dtype."""
    before = _global_state()
    yield
    assert before == _global_state(), "global random state or default dtype was changed"
