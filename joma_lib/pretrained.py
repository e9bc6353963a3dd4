"""Measure Hugging Face decoders, models of your own, and series of checkpoints: attention entropy and stable rank.

Known by name are OPT, GPT-NeoX/Pythia, GPT-2 and Llama-like decoders; any other module through two callables. The
quantities of the paper's Figures 6 to 8. Chapter: pretrained.
"""

from __future__ import annotations

from joma_lib._audit import Audit, Repeat, audit_series
from joma_lib._check_adapter import Check, check_adapter
from joma_lib._measure import measure
from joma_lib._numpy_decoder import numpy_attention
from joma_lib._series import measure_series

__all__ = [
    "Audit",
    "Check",
    "Repeat",
    "audit_series",
    "check_adapter",
    "measure",
    "measure_series",
    "numpy_attention",
]
