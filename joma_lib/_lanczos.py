"""The largest eigenvalue of a positive semidefinite operator, to a relative tolerance that is certified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import eigh_tridiagonal

__all__ = ["largest_eigenvalue"]

_DOUBT = 1e-6  # chance, over Gaussian starts, that a larger eigenvalue was overlooked


def largest_eigenvalue(apply: Callable[[np.ndarray], np.ndarray], size: int, tolerance: float) -> float:
    """Return θ with θ ≤ λ_max ≤ (1 + tolerance) θ for the operator `apply` on vectors of length `size`.

    Lanczos iteration with full reorthogonalisation. A small residual alone would not do (it certifies some eigenvalue,
    not the largest). The stop rests on the Lanczos polynomials p_k: an eigenvector of eigenvalue λ has the component
    p_k(λ) g in the k-th basis vector, which is of unit length, so |g| ≤ 1/p_k(λ) for its component g in the start.
    Once p_k((1 + tolerance) θ) > √size / 10⁻⁶, a larger eigenvalue could hide only behind a start that has less than
    10⁻⁶ of a typical component there. The start is a fixed Gaussian vector; no global random state is touched.

    >>> matrix = np.diag([4.0, 1.0, 1.0, 0.0])
    >>> round(largest_eigenvalue(lambda x: matrix @ x, 4, 1e-9), 6)
    4.0
    """
    vector = np.random.default_rng(0).standard_normal(size)
    basis = (vector / np.linalg.norm(vector))[None]
    diagonal: list[float] = []
    beside: list[float] = []
    top = 0.0
    for step in range(size):
        image = apply(basis[-1])
        diagonal.append(float(basis[-1] @ image))
        for _ in range(2):
            image = image - basis.T @ (basis @ image)
        length = float(np.linalg.norm(image))
        top = float(eigh_tridiagonal(diagonal, beside, True, select="i", select_range=(step, step))[0])
        beside.append(length)
        if length == 0 or _exceeds(diagonal, beside, (1 + tolerance) * top, size**0.5 / _DOUBT):
            break
        basis = np.vstack([basis, image / length])
    return top


def _exceeds(diagonal: list[float], beside: list[float], at: float, bound: float) -> bool:
    """Return whether the last Lanczos polynomial exceeds `bound` at a point above all its roots."""
    before, now, previous = 0.0, 1.0, 0.0
    for alpha, beta in zip(diagonal, beside, strict=True):
        before, now, previous = now, ((at - alpha) * now - previous * before) / beta, beta
    return now > bound
