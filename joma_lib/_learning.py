"""What Theorem 2's flow becomes when the loss is cross-entropy, and the gradient shrinks (used by `joma_lib.dynamics`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from scipy.special import softmax

from joma_lib._checks import finite_array, increasing_times

__all__ = ["cross_entropy_growth"]

Array = NDArray[np.float64]

_ABSOLUTE, _RELATIVE = 1e-7, 1e-5


def cross_entropy_growth(x: ArrayLike, targets: ArrayLike, times: ArrayLike) -> tuple[Array, Array]:
    """Solve the gradient flow of the linear block with exp attention (T = A = 1) under cross-entropy, from zero.

    v_kl' = E[g_k b_l], c_k' = E[g_k] with b = x∘exp(½ Σ_k v_k²) (the logits by Theorem 1), p_k = b·v_k + c_k and
    g = target − softmax(p). The flow is stiff once attention is large: gradient descent with a fixed step oscillates
    there, and is another process. BDF with the exact Jacobian, relative tolerance 1e-5.

    Parameters
    ----------
    x : [N, M], token frequencies of the samples
    targets : [N, K], class probabilities (one-hot rows for classes)
    times : [T], not negative, increasing

    Returns
    -------
    v [T, K, M] and g [T, N, K], float64.

    Raises
    ------
    ValueError : shapes, non-finite input, or times that do not increase.

    Section 3 of the paper; chapter `linear_attention_dynamics`.

    >>> v, g = cross_entropy_growth([[0.7, 0.3], [0.3, 0.7]], [[1, 0], [0, 1]], [0.0, 5.0])
    >>> v[1].round(2)
    array([[ 0.48, -0.48],
           [-0.48,  0.48]])
    """
    data, wanted = finite_array("x", x, ndim=(2,)), finite_array("targets", targets, ndim=(2,))
    if len(data) != len(wanted):
        raise ValueError(
            f"x has {len(data)} samples and targets {len(wanted)}; give one row of each a sample"
        )
    at = increasing_times(times)
    samples, nodes, tokens = len(data), wanted.shape[1], data.shape[1]
    size = nodes * tokens
    one = np.eye(nodes)

    def parts(state: Array) -> tuple[Array, Array, Array]:
        v = state[:size].reshape(nodes, tokens)
        b = data * np.exp(0.5 * (v * v).sum(0))
        return v, b, softmax(b @ v.T + state[size:], axis=1)

    def rate(_: float, state: Array) -> Array:
        _v, b, p = parts(state)
        g = wanted - p
        return np.concatenate([(g.T @ b / samples).ravel(), g.mean(0)])

    def jacobian(_: float, state: Array) -> Array:
        v, b, p = parts(state)
        slope = p[:, :, None] * p[:, None, :] - p[:, :, None] * one  # ∂g_k/∂p_j [N, K, K]
        reach = one[:, :, None] + v[:, None] * v[None]  # ∂p_j/∂v_il divided by b_l [K, K, M]
        through = np.einsum("nkj,jil->nkil", slope, reach, optimize=True) * b[:, None, None]
        inner = np.einsum("nm,nkil->kmil", b, through, optimize=True) / samples
        drift = (wanted - p).T @ b / samples
        for token in range(tokens):  # b_l itself moves with v_.l
            inner[:, token, :, token] += np.outer(drift[:, token], v[:, token])
        return np.block(
            [
                [
                    inner.reshape(size, size),
                    (np.einsum("nm,nkj->kmj", b, slope) / samples).reshape(size, nodes),
                ],
                [through.mean(0).reshape(nodes, size), slope.mean(0)],
            ]
        )

    start = np.zeros(size + nodes)
    if at[-1] == 0:
        states = start[None]
    else:
        solution = solve_ivp(
            rate,
            (0.0, at[-1]),
            start,
            method="BDF",
            t_eval=at,
            jac=jacobian,
            rtol=_RELATIVE,
            atol=_ABSOLUTE,
        )
        if solution.status != 0:
            raise ValueError(f"the solver stopped ({solution.message}); ask for earlier times")
        states = solution.y.T
    return states[:, :size].reshape(-1, nodes, tokens), np.stack(
        [wanted - parts(state)[2] for state in states]
    )
