"""Attention entropy, stable rank and normalised correlation, each with one definition for the whole book.

NumPy in, NumPy out; torch in, torch out (torch is used where the caller already has it, never imported here). Halves are
upcast before anything is computed, an ambient autocast is ignored, and input without a defined value is an error that
names the row, never a NaN. Chapters: `wikitext` and `pretrained` (entropy), `stable_rank`, `invariant` (correlation).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NoReturn

import numpy as np
from scipy.special import entr

from joma_lib._lanczos import largest_eigenvalue

__all__ = ["attention_entropy", "normalized_correlation", "stable_rank"]

_ROW_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3}
_COARSE_TOLERANCE = 2e-2  # bfloat16, and anything coarser


def attention_entropy(weights: Any, *, mask: Any = None, dim: int = -1) -> Any:
    """Return the entropy −Σ p ln p of each row of attention weights, in nats.

    Parameters
    ----------
    weights : attention after the softmax, [..., keys]; any float dtype, computed in float32 or better; zeros count 0
    mask : boolean array over the rows (the shape of `weights` without `dim`), True = keep; dropped rows, such as
        padded queries, are not looked at
    dim : the dimension of the keys, along which rows sum to 1

    Returns
    -------
    the shape of `weights` without `dim`, or with `mask` a 1-D array of the kept rows in row-major order; float64 for
    float64 input, else float32; between 0 and ln(keys). Rows are renormalised within the tolerance below.

    Raises
    ------
    ValueError : a row that does not sum to 1 within 1e-9 / 1e-4 / 5e-3 / 2e-2 (float64 / 32 / 16 / bfloat16), or has a
        negative or non-finite entry (the message names the row); a mask of another shape; no such dimension.
    TypeError : weights that are no numbers, a mask that is not boolean.

    The quantity of the paper's Figures 4, 6 and 8; chapters `sparse_then_dense`, `wikitext` and `pretrained`.

    >>> attention_entropy(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).round(4)
    array([0.6931, 0.    ])
    >>> attention_entropy(np.array([[1.0, 0.0], [0.3, 0.3]]), mask=np.array([True, False]))
    array([0.])
    """
    torch = _torch_of(weights)
    rows, name = _floats(weights, "weights")
    rows = (torch.movedim if torch else np.moveaxis)(rows, _dimension(dim, rows.ndim, "weights"), -1)
    if rows.shape[-1] == 0:
        raise ValueError(f"weights have shape {tuple(rows.shape)} with the keys last; a row needs one key")
    shape = tuple(rows.shape[:-1])
    kept = None
    if mask is not None:
        kept = _mask(mask, shape, rows if torch else None)
        rows = rows[kept]
    with _no_autocast(rows):
        information, total, low = (_sums_torch if torch else _sums_numpy)(rows.reshape(-1, rows.shape[-1]))
        plain = total.detach() if torch else total
        tolerance = _ROW_TOLERANCE.get(name, _COARSE_TOLERANCE)
        good = ((abs(plain - 1) <= tolerance) & (low >= 0)).reshape(tuple(rows.shape[:-1]))
        if not bool(good.all()):
            _complain(rows.detach() if torch else rows, good, kept, name, tolerance)
        entropy = information / total + (total.log() if torch else np.log(total))
        entropy = entropy.clamp_min(0.0) if torch else np.maximum(entropy, 0)
        return entropy.reshape(tuple(rows.shape[:-1]))[()]


def stable_rank(matrix: Any, *, tolerance: float | None = None) -> Any:
    """Return the stable rank ‖W‖_F² / ‖W‖_2² of a matrix, or of each matrix of a batch.

    Parameters
    ----------
    matrix : [..., rows, columns], any float dtype, any scale (neither square overflows)
    tolerance : None for the exact value by singular values (gradients flow through it); a number asks for the largest
        one alone, by Lanczos iteration on WᵀW in float64: the result is at most that much, relatively, too high

    Returns
    -------
    [...], between 1 and min(rows, columns); float64 for float64 input, else float32; a scalar for a single matrix

    Raises
    ------
    ValueError : a zero, empty or non-finite matrix, fewer than two dimensions, or a tolerance outside [1e-12, 1).
    TypeError : entries that are no real numbers.

    Chapters `stable_rank` and `pretrained` (the paper's Figure 7).

    >>> float(stable_rank(np.eye(3)))
    3.0
    >>> round(float(stable_rank(np.diag([2.0, 1.0, 1.0]), tolerance=1e-6)), 6)
    1.5
    """
    torch = _torch_of(matrix)
    matrix, _ = _floats(matrix, "matrix")
    if matrix.ndim < 2 or 0 in tuple(matrix.shape[-2:]):
        raise ValueError(
            f"matrix has shape {tuple(matrix.shape)}; give [..., rows, columns], neither of them 0"
        )
    if tolerance is not None and not 1e-12 <= tolerance < 1:
        raise ValueError(
            f"tolerance is {tolerance}; give one from 1e-12 to below 1, or None for the exact value"
        )
    with _no_autocast(matrix):
        matrix = _upcast(matrix)
        plain = matrix.detach() if torch else matrix
        size = plain.abs().amax((-2, -1), keepdim=True) if torch else abs(plain).max((-2, -1), keepdims=True)
        good = (torch.isfinite(size) if torch else np.isfinite(size)) & (size > 0)
        if not bool(good.all()):
            at = _first_bad(good[..., 0, 0])
            where = f"matrix {at} of the batch" if at else "the matrix"
            value = float(size[at][0, 0])
            what = "zero" if value == 0 else "not finite"
            raise ValueError(
                f"{where} is {what}, so it has no stable rank; leave it out or look where it comes from"
            )
        matrix = matrix / size
        if tolerance is not None:
            return _iterated(matrix, tolerance)
        values = torch.linalg.svdvals(matrix) if torch else np.linalg.svd(matrix, compute_uv=False)
        values = values / values[..., :1]
        return (values**2).sum(-1)


def normalized_correlation(
    a: Any, b: Any, *, dim: int = -1, constant: Literal["error", "nan"] = "error"
) -> Any:
    """Return the normalised correlation of `a` and `b` along `dim`: the cosine of the centred vectors.

    Parameters
    ----------
    a, b : arrays of one size along `dim`; their other dimensions broadcast
    constant : a constant input has no correlation: "error" raises, "nan" returns NaN there

    Returns
    -------
    the broadcast shape without `dim`, in [−1, 1]; float64 if either input is, else float32

    Raises
    ------
    ValueError : a constant input (unless `constant="nan"`), entries that are not finite, sizes that do not fit.
    TypeError : entries that are no real numbers.

    NC of the paper's Figure 2 and Table 1; chapters `invariant` and `neurons_and_latents`.

    >>> float(normalized_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]))
    1.0
    """
    if constant not in ("error", "nan"):
        raise ValueError(f"constant is {constant!r}; use 'error' or 'nan'")
    torch = _torch_of(a) or _torch_of(b)
    if torch:
        device = a.device if _torch_of(a) else b.device
        a, b = torch.as_tensor(a, device=device), torch.as_tensor(b, device=device)
    (a, _), (b, _) = _floats(a, "a"), _floats(b, "b")
    at = _dimension(dim, max(a.ndim, b.ndim), "the broadcast input")
    move = torch.movedim if torch else np.moveaxis
    try:
        a, b = torch.broadcast_tensors(a, b) if torch else np.broadcast_arrays(a, b)
    except (RuntimeError, ValueError):
        raise ValueError(
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}; their shapes must broadcast"
        ) from None
    with _no_autocast(a):
        (x, flat_x), (y, flat_y) = (
            _centred(_upcast(move(v, at, -1)), name, constant) for v, name in ((a, "a"), (b, "b"))
        )
        value = (x * y).sum(-1)
        if torch:
            value = value.clamp(-1.0, 1.0)
            return torch.where(flat_x | flat_y, torch.full_like(value, float("nan")), value)
        return np.where(flat_x | flat_y, np.nan, np.clip(value, -1.0, 1.0)).astype(value.dtype)[()]


def _torch_of(value: Any) -> Any:
    """Return the torch module if `value` is one of its tensors, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def _floats(value: Any, name: str) -> tuple[Any, str]:
    """Return (array of a float dtype, the name of the dtype it came in); integers become float64."""
    torch = _torch_of(value)
    if not torch:
        value = np.asarray(value)
    kind = str(value.dtype).removeprefix("torch.")
    if kind.startswith(("int", "uint")):
        return value.to(torch.float64) if torch else value.astype(np.float64), "float64"
    if not kind.startswith(("float", "bfloat")):
        raise TypeError(f"{name} has dtype {kind}; convert it to a float dtype")
    if kind == "float128" or kind == "longdouble":
        return value.astype(np.float64), "float64"
    return value, kind


def _sums_numpy(rows: Any) -> tuple[Any, Any, Any]:
    """Return (−Σ p ln p, Σ p, least p) of each row of [rows, keys]."""
    rows = _upcast(rows)
    return entr(np.maximum(rows, 0)).sum(-1), rows.sum(-1), rows.min(-1)


def _sums_torch(rows: Any) -> tuple[Any, Any, Any]:
    """The same for a tensor, a cache-sized block of rows at a time; gradients stay finite where p = 0."""
    torch = _torch_of(rows)
    block = max(1, (1 << 18 if rows.device.type == "cpu" else 1 << 26) // rows.shape[-1])
    parts = []
    for piece in rows.split(block):
        p = _upcast(piece)
        logs = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        product = logs * p if logs.requires_grad else logs.mul_(p)
        parts.append((-product.sum(-1), p.sum(-1), p.detach().amin(-1)))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def _upcast(value: Any) -> Any:
    """Return float32 for anything below it, else the value itself."""
    if value.dtype.itemsize >= 4:
        return value
    torch = _torch_of(value)
    return value.to(torch.float32) if torch else value.astype(np.float32)


def _no_autocast(value: Any) -> AbstractContextManager[Any]:
    torch = _torch_of(value)
    if not torch:
        return nullcontext()
    try:
        return torch.autocast(value.device.type, enabled=False)
    except RuntimeError:  # a device that knows no autocast
        return nullcontext()


def _dimension(dim: int, ndim: int, name: str) -> int:
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
        raise TypeError(f"dim is {dim!r}; give an integer")
    if not -ndim <= dim < ndim:
        raise ValueError(f"dim is {dim}, but {name} has {ndim} dimension(s); choose one of those")
    return int(dim) % ndim


def _mask(mask: Any, shape: tuple[int, ...], like: Any) -> Any:
    """Return the mask as a boolean array of the rows' shape, beside the tensor `like` if there is one."""
    torch = _torch_of(like)
    if _torch_of(mask):
        mask = mask if torch else mask.detach().cpu().numpy()
    else:
        mask = np.asarray(mask)
    if str(mask.dtype).removeprefix("torch.") != "bool":
        raise TypeError(f"mask has dtype {mask.dtype}; convert it to booleans, True for the rows to keep")
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, but the rows have {shape}; give one boolean for each row"
        )
    return torch.as_tensor(mask, device=like.device) if torch else mask


def _first_bad(good: Any) -> tuple[int, ...]:
    good = good.cpu().numpy() if _torch_of(good) else np.asarray(good)
    return tuple(int(i) for i in np.argwhere(~good)[0])


def _complain(rows: Any, good: Any, kept: Any, dtype: str, tolerance: float) -> NoReturn:
    """Raise the ValueError that names the first bad row and what is wrong with it."""
    at = _first_bad(good)
    row = np.asarray(rows[at].cpu().double() if _torch_of(rows) else rows[at], dtype=np.float64)
    if kept is not None:
        kept = kept.cpu().numpy() if _torch_of(kept) else kept
        at = tuple(int(i) for i in np.argwhere(kept)[at[0]])
    where = f"row {at[0]}" if len(at) == 1 else (f"row {at}" if at else "the row")
    if not np.isfinite(row).all():
        what = f"holds {row[~np.isfinite(row)][0]}; attention must be finite"
    elif (row < 0).any():
        what = f"holds {row[row < 0][0]:.3g}; attention weights cannot be negative (are these logits?)"
    else:
        what = f"sums to {row.sum():.6g}, not to 1 within {tolerance:g} ({dtype}); apply the softmax, or mask it out"
    raise ValueError(f"{where} of the attention weights {what}")


def _centred(value: Any, name: str, constant: str) -> tuple[Any, Any]:
    """Return (unit-length centred vectors, where they are constant), the vectors in the last dimension."""
    torch = _torch_of(value)
    if value.shape[-1] == 0:
        raise ValueError(f"{name} is empty along dim; a correlation needs at least two entries")
    plain = value.detach() if torch else value
    high, low = (plain.amax(-1), plain.amin(-1)) if torch else (plain.max(-1), plain.min(-1))
    size = (torch.maximum if torch else np.maximum)(abs(high), abs(low))
    good = (torch.isfinite if torch else np.isfinite)(size)
    if not bool(good.all()):
        at = _first_bad(good)
        raise ValueError(
            f"{name} has an entry that is not finite{_place(at)}; leave it out before correlating"
        )
    eps = float((torch.finfo if torch else np.finfo)(value.dtype).eps)
    size = size + (size == 0)
    flat = (high / size - low / size) <= 8 * eps  # a few roundings of a constant count as one
    if constant == "error" and bool(flat.any()):
        at = _first_bad(~flat)
        raise ValueError(
            f"{name} is constant{_place(at)}, so its correlation is undefined; leave it out or pass constant='nan'"
        )
    value = value / size[..., None]
    value = value - value.mean(-1)[..., None]
    length = abs(value.detach() if torch else value)
    peak = length.amax(-1) if torch else length.max(-1)
    value = value / (peak + (peak == 0))[..., None]
    norm = (value * value).sum(-1)
    return value / ((norm + (norm == 0)) ** 0.5)[..., None], flat


def _place(at: tuple[int, ...]) -> str:
    return f" at {at}" if at else ""


def _iterated(matrix: Any, tolerance: float) -> Any:
    """Return the stable rank of each matrix (entries at most 1 in size) with σ_max² to a relative tolerance."""
    torch = _torch_of(matrix)
    shape = tuple(matrix.shape[:-2])
    plain = matrix.detach() if torch else matrix
    if torch and plain.device.type == "mps":  # knows no float64
        plain = plain.cpu()
    ranks = np.empty(shape)
    for at in np.ndindex(*shape):
        one = plain[at].to(torch.float64) if torch else plain[at].astype(np.float64)
        if one.shape[0] < one.shape[1]:
            one = one.T
        if torch:

            def apply(x: np.ndarray, one: Any = one) -> np.ndarray:
                return (one.T @ (one @ torch.as_tensor(x, device=one.device))).cpu().numpy()
        else:

            def apply(x: np.ndarray, one: Any = one) -> np.ndarray:
                return one.T @ (one @ x)

        ranks[at] = float((one * one).sum()) / largest_eigenvalue(apply, one.shape[1], tolerance)
    if torch:
        return torch.as_tensor(ranks, device=matrix.device, dtype=matrix.dtype)
    return ranks.astype(matrix.dtype)[()]
