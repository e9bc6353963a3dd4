"""Theorem 1: what the gradient flow of the paper's block conserves, proved in symbols and computed from numbers.

One token at a time, with s_l = Σ_k v_kl² and temperature T:

    linear   z² − s                          conserved, whatever the data, the loss and the activation
    exp      z − s/2T                        likewise
    softmax  z − (s − b̄ Σ_l s_l)/2T          the paper's closed form, an approximation; Σ_l z_l is what is conserved

`law` holds these expressions; `conserved` and `predicted_logits` are the same expressions as functions of arrays, `prove`
differentiates them along the flow of the block (`block_flow`). Chapters `invariant` and `symmetry`.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import sympy

from joma_lib.flow import Flow

__all__ = ["KINDS", "SYMBOLS", "block_flow", "conserved", "law", "predicted_logits", "prove"]

KINDS = ("linear", "exp", "softmax")

SYMBOLS: dict[str, sympy.Symbol] = {
    "z": sympy.Symbol("z", real=True),
    "s": sympy.Symbol("s", nonnegative=True),
    "S": sympy.Symbol("S", nonnegative=True),
    "b": sympy.Symbol(r"\bar{b}", real=True),
    "T": sympy.Symbol("T", positive=True),
}
"""z: logit of a token; s: Σ_k v_k² of that token; S: the sum of s over tokens; b: its mean attention; T: temperature."""


def law(kind: str) -> sympy.Expr:
    """Return the quantity of Theorem 1 for one token as an expression in `SYMBOLS`.

    >>> law("exp")
    z - s/(2*T)
    """
    z, s, total, b, temperature = (SYMBOLS[name] for name in ("z", "s", "S", "b", "T"))
    return {
        "linear": z**2 - s,
        "exp": z - s / (2 * temperature),
        "softmax": z - (s - b * total) / (2 * temperature),
    }[_known(kind)]


def conserved(kind: str, z: Any, v: Any, *, mean_attention: Any = None, temperature: float = 1.0) -> Any:
    """Return the quantity of Theorem 1 for each token, in the units of the logits (their square for linear attention).

    Linear: z² − Σ_k v_k². Exp: z − Σ_k v_k²/2T. Softmax: z − (Σ_k v_k² − b̄ Σ_k ‖v_k‖²)/2T, which gradient flow
    keeps only approximately.

    Parameters
    ----------
    kind : "linear", "exp" or "softmax"
    z : logits [..., M]; the attention is a function of z/T
    v : lower MLP weights seen from the tokens [..., K, M]; leading dimensions broadcast against those of z
    mean_attention : b̄ [..., M]; needed for softmax, not used otherwise
    temperature : T > 0; linear attention has the same law at every temperature

    Returns
    -------
    [..., M]: NumPy (float64, or the wider of the inputs), or torch if any input is a torch tensor (halves computed in float32)

    Raises
    ------
    ValueError : unknown kind, T ≤ 0, shapes that do not fit, non-finite entries, softmax without b̄.

    Theorem 1 of the paper; chapter `invariant`.

    >>> conserved("exp", [1.0, 2.0], [[1.0, 0.0], [1.0, 2.0]], temperature=0.5)
    array([-1., -2.])
    """
    _known(kind)
    v, z, mean = _arrays(v, z=z, mean_attention=mean_attention if kind == "softmax" else None)
    if kind == "softmax" and mean is None:
        raise ValueError(
            "softmax attention needs mean_attention, the mean b̄ [..., M] of the attention over samples"
        )
    squares = (v * v).sum(-2)
    return _numeric(kind)(
        z, squares, squares.sum(-1)[..., None], 0.0 if mean is None else mean, _temperature(temperature)
    )


def predicted_logits(
    kind: str,
    v: Any,
    constant: Any,
    *,
    mean_attention: Any = None,
    temperature: float = 1.0,
    sign: Any = None,
) -> Any:
    """Return the logits z [..., M] at which `conserved` has the value `constant` [..., M]: its inverse.

    Parameters
    ----------
    kind, v, mean_attention, temperature : as in `conserved`
    constant : value of the conserved quantity, such as that of the first step
    sign : linear attention only, which fixes z² alone: an array of ±1 [..., M]

    Raises
    ------
    ValueError : as `conserved`; linear without sign, with a sign that is not ±1, or where z² would be negative
        beyond rounding.

    >>> v = [[1.0, 0.0], [1.0, 2.0]]
    >>> predicted_logits("linear", v, conserved("linear", [1.0, -2.0], v), sign=[1, -1])
    array([ 1., -2.])
    """
    _known(kind)
    given = {
        "mean_attention": mean_attention if kind == "softmax" else None,
        "sign": sign if kind == "linear" else None,
    }
    v, constant, mean, signs = _arrays(v, constant=constant, **given)
    if kind == "softmax" and mean is None:
        raise ValueError(
            "softmax attention needs mean_attention, the mean b̄ [..., M] of the attention over samples"
        )
    temperature = _temperature(temperature)
    squares = (v * v).sum(-2)
    if kind != "linear":  # the law is z minus something: minus the law at z = 0, plus the constant
        total = squares.sum(-1)[..., None]
        return constant - _numeric(kind)(0.0, squares, total, 0.0 if mean is None else mean, temperature)
    if signs is None:
        raise ValueError(
            "linear attention fixes z² only; give sign, an array of ±1, for the sign of each logit"
        )
    if not bool((abs(signs) == 1).all()):
        raise ValueError("sign holds values other than 1 and -1; give one of them for each logit")
    square = constant + squares
    slack = 16 * _resolution(square) * (abs(constant) + squares)
    if bool((square < -slack).any()):
        raise ValueError(
            f"z² = constant + Σ_k v_k² would be {float(square.min()):.3g} for some token; this constant belongs to other weights"
        )
    return signs * square.clip(min=0) ** 0.5


def block_flow(kind: str, tokens: Any, nodes: Any) -> tuple[Flow, Any, Any]:
    """Return (flow, z, v): the gradient flow of the block in symbols, for any number of samples, loss and activation.

    With two numbers up to 16 weights in all, the loss is an unspecified function L(φ(p_1), ..., φ(p_K)) of one sample, z
    a vector and v a matrix [K, M] of symbols. Otherwise z and v are indexed symbols of any size, there are N samples
    with frequencies x[n, l], and r[n, k] = g_k φ'_k stands for what reaches node k from above: it is held fixed
    when z and v are differentiated, as backpropagation does.

    >>> flow, z, v = block_flow("exp", 1, 1)
    >>> flow.is_conserved(sympy.Symbol("T", positive=True) * z[0] - v[0, 0] ** 2 / 2)
    True
    """
    tokens, nodes = _count("tokens", tokens), _count("nodes", nodes)
    temperature, normalizer = SYMBOLS["T"], sympy.Symbol("A", positive=True)
    if isinstance(tokens, int) and isinstance(nodes, int) and tokens * nodes <= 16:
        logits = sympy.Matrix(sympy.symbols(f"z1:{tokens + 1}", real=True))
        weights = sympy.Matrix(nodes, tokens, lambda k, i: sympy.Symbol(f"v{k + 1}_{i + 1}", real=True))
        frequencies = sympy.Matrix(sympy.symbols(f"x1:{tokens + 1}", positive=True))
        scores = (
            logits / temperature if _known(kind) == "linear" else (logits / temperature).applyfunc(sympy.exp)
        )
        attention = frequencies.multiply_elementwise(scores)
        attention /= {"linear": 1, "exp": normalizer, "softmax": sum(attention)}[kind]
        bias = sympy.Matrix(sympy.symbols(f"c1:{nodes + 1}", real=True))
        phi, loss = sympy.Function("phi"), sympy.Function("L")
        return (
            Flow.descent(loss(*(weights * attention + bias).applyfunc(phi)), logits, weights),
            logits,
            weights,
        )
    m, k, i, j = sympy.symbols("n k l j", integer=True)
    z, v, x, r = (sympy.IndexedBase(name) for name in "zvxr")
    samples = sympy.Symbol("N", integer=True, positive=True)

    def raw(index: sympy.Symbol) -> sympy.Expr:
        return x[m, index] * (
            z[index] / temperature if kind == "linear" else sympy.exp(z[index] / temperature)
        )

    divisor = {"linear": 1, "exp": normalizer, "softmax": sympy.Sum(raw(j), (j, 1, tokens))}[_known(kind)]
    preactivation = sympy.Sum(raw(i) / divisor * v[k, i], (i, 1, tokens))
    surrogate = -sympy.Sum(r[m, k] * preactivation, (k, 1, nodes), (m, 1, samples)) / samples
    return Flow.descent(surrogate, z[i], v[k, i]), z, v


def prove(kind: str, tokens: Any, nodes: Any) -> sympy.Expr:
    """Return the time derivative, simplified, of the quantity that gradient flow conserves: 0 where the law holds.

    Linear and exp: `law(kind)` of one token. Softmax: Σ_l z_l.

    Parameters
    ----------
    kind : "linear", "exp" or "softmax"
    tokens, nodes : M and K, each a positive int or a SymPy Symbol (any size)

    Raises
    ------
    ValueError, TypeError : an unknown kind, or a size that is neither.

    >>> M, K = sympy.symbols("M K", integer=True, positive=True)
    >>> [prove(kind, M, K) for kind in KINDS], prove("exp", 2, 2)
    ([0, 0, 0], 0)
    """
    flow, z, v = block_flow(kind, tokens, nodes)
    if isinstance(z, sympy.MatrixBase):
        squares = sum(v[k, 0] ** 2 for k in range(v.rows))
        quantity = (
            sum(z) if kind == "softmax" else law(kind).subs({SYMBOLS["z"]: z[0], SYMBOLS["s"]: squares})
        )
    else:
        k, i = sympy.symbols("k l", integer=True)
        squares = sympy.Sum(v[k, i] ** 2, (k, 1, nodes))
        quantity = law(kind).subs({SYMBOLS["z"]: z[i], SYMBOLS["s"]: squares})
        if kind == "softmax":
            quantity = sympy.Sum(z[i], (i, 1, tokens))
    return flow.derivative(quantity)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    return kind


def _count(name: str, value: Any) -> Any:
    if isinstance(value, sympy.Symbol):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer | sympy.Integer):
        raise TypeError(f"{name} is {value!r}; give a positive int, or a SymPy Symbol for any size")
    if value < 1:
        raise ValueError(f"{name} is {value}; give a positive int, or a SymPy Symbol for any size")
    return int(value)


@cache
def _numeric(kind: str) -> Any:
    return sympy.lambdify([SYMBOLS[name] for name in ("z", "s", "S", "b", "T")], law(kind), modules="numpy")


def _temperature(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"temperature is {value!r}; give a positive finite number") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"temperature is {value}; give a positive finite number")
    return number


def _arrays(v: Any, **others: Any) -> list[Any]:
    """Return v and the others as floating arrays of one library, shapes checked; None stays None."""
    given = {"v": v} | {name: value for name, value in others.items() if value is not None}
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in given.values()):
        like = next(value for value in given.values() if isinstance(value, torch.Tensor))
        arrays = {name: torch.as_tensor(value, device=like.device) for name, value in given.items()}
        wide = torch.float32
        for array in arrays.values():
            if array.is_complex() or array.dtype == torch.bool:
                raise TypeError(f"entries are {array.dtype}; give real numbers")
            wide = torch.promote_types(wide, array.dtype)
        arrays = {name: array.to(wide) for name, array in arrays.items()}
        finite: Any = torch.isfinite
    else:
        arrays = {}
        for name, value in given.items():
            try:
                array = np.asarray(value)
                if array.dtype.kind not in "iuf":
                    raise TypeError
                arrays[name] = array.astype(np.result_type(array, np.float64))
            except (TypeError, ValueError):
                raise TypeError(f"{name} is not an array of real numbers; give floats") from None
        finite = np.isfinite
    v = arrays["v"]
    if v.ndim < 2 or 0 in tuple(v.shape[-2:]):
        raise ValueError(
            f"v has shape {tuple(v.shape)}; give [..., K, M], nodes by tokens, neither of them 0"
        )
    for name, array in arrays.items():
        if not bool(finite(array).all()):
            raise ValueError(f"{name} holds an entry that is not finite; look for a run that diverged")
        if name == "v":
            continue
        if array.ndim < 1 or array.shape[-1] != v.shape[-1]:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, v has {tuple(v.shape)}; both must end in the same number of tokens M"
            )
        try:
            np.broadcast_shapes(tuple(array.shape), (*v.shape[:-2], v.shape[-1]))
        except ValueError:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, v has {tuple(v.shape)}; their leading dimensions do not fit"
            ) from None
    return [v, *(arrays.get(name) for name in others)]


def _resolution(array: Any) -> float:
    torch = sys.modules.get("torch")
    return float(
        (torch if torch is not None and isinstance(array, torch.Tensor) else np).finfo(array.dtype).eps
    )
