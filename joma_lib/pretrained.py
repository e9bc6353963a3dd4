"""Measure Hugging Face decoders: attention entropy by layer and head, stable rank of MLP and query-key matrices.

Known by name are OPT, GPT-NeoX/Pythia, GPT-2 and Llama-like decoders; any other module through two callables. The
quantities of the paper's Figures 6 to 8. Chapter: pretrained.
"""

from __future__ import annotations

from joma_lib._measure import AttentionMaps, Matrices, measure

__all__ = ["AttentionMaps", "Matrices", "measure"]
