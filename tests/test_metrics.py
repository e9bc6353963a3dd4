"""The three metrics against independent float64 values, on every dtype, scale and edge, and their refusals."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma_lib.metrics import attention_entropy, normalized_correlation, stable_rank


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropy_by_hand(row: np.ndarray) -> float:
    return -sum(p * np.log(p) for p in row.tolist() if p > 0)


def rank_by_hand(matrix: np.ndarray) -> float:
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    return float((values**2).sum() / values[0] ** 2)


def test_entropy_of_rows_matches_the_sum_written_out(rng: np.random.Generator) -> None:
    weights = softmax(rng.standard_normal((3, 4, 7)))
    expected = np.apply_along_axis(entropy_by_hand, -1, weights)
    np.testing.assert_allclose(attention_entropy(weights), expected, atol=1e-14)
    moved = attention_entropy(np.moveaxis(weights, -1, 0), dim=0)
    np.testing.assert_allclose(moved, expected, atol=1e-14)
    got = attention_entropy(torch.tensor(weights))
    assert got.dtype == torch.float64 and isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_edges_one_hot_zeros_single_key_uniform(kind: type) -> None:
    rows = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4], dtype=kind)
    got = attention_entropy(rows)
    assert got.dtype == (np.float64 if kind is np.float64 else np.float32)
    np.testing.assert_allclose(got, [0, 0, np.log(2), np.log(4)], atol=1e-6)
    assert (got >= 0).all() and not np.signbit(got).any()
    assert attention_entropy(np.ones((2, 1), dtype=kind)).tolist() == [0.0, 0.0]
    assert attention_entropy(np.empty((0, 3), dtype=kind)).shape == (0,)


@pytest.mark.parametrize(
    ("kind", "error"), [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_halves_are_upcast_and_renormalised(kind: torch.dtype, error: float) -> None:
    """A causal map of 2,048 positions, stored in half precision: no NaN, close to the float64 value (pitfalls 8, 9)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2048, 2048, generator=generator, dtype=torch.float64)
    exact = torch.softmax(logits.masked_fill(torch.ones(2048, 2048).triu(1).bool(), -torch.inf), -1)
    got = attention_entropy(exact.to(kind))
    assert got.dtype == torch.float32 and bool(torch.isfinite(got).all()) and bool((got >= 0).all())
    reference = torch.special.entr(exact).sum(-1)
    assert float((got - reference).abs().max()) < error


def test_entropy_ignores_autocast() -> None:
    weights = torch.softmax(torch.randn(5, 9, generator=torch.Generator().manual_seed(1)), -1)
    plain = attention_entropy(weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attention_entropy(weights)
    assert inside.dtype == torch.float32 and torch.equal(plain, inside)


def test_mask_keeps_rows_and_does_not_look_at_the_others() -> None:
    weights = np.array([[[0.5, 0.5], [9.0, -3.0]], [[np.nan, 1.0], [1.0, 0.0]]])
    mask = np.array([[True, False], [False, True]])
    for values, keep in (
        (weights, mask),
        (torch.tensor(weights), torch.tensor(mask)),
        (torch.tensor(weights), mask),
    ):
        got = attention_entropy(values, mask=keep)
        assert tuple(got.shape) == (2,)
        np.testing.assert_allclose(np.asarray(got), [np.log(2), 0.0], atol=1e-12)
    assert attention_entropy(weights, mask=np.zeros((2, 2), bool)).shape == (0,)
    with pytest.raises(ValueError, match=r"row \(1, 0\)"):
        attention_entropy(weights, mask=np.array([[True, False], [True, True]]))


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_entropy_refuses_and_names_the_row(convert) -> None:
    good = [0.25, 0.75]
    with pytest.raises(ValueError, match=r"row 1 .*sums to 1.1.*mask"):
        attention_entropy(convert(np.array([good, [0.35, 0.75]])))
    with pytest.raises(ValueError, match=r"row \(0, 2\) .*negative"):
        attention_entropy(convert(np.array([[good, good, [-0.25, 1.25]]])))
    with pytest.raises(ValueError, match=r"row 0 .*nan.*finite"):
        attention_entropy(convert(np.array([[np.nan, 1.0], good])))
    with pytest.raises(ValueError, match=r"row 1 .*inf.*finite"):
        attention_entropy(convert(np.array([good, [np.inf, 1.0]])))
    with pytest.raises(ValueError, match="mask has shape"):
        attention_entropy(convert(np.array([good])), mask=convert(np.array([True, False])))
    with pytest.raises(TypeError, match="mask has dtype"):
        attention_entropy(convert(np.array([good])), mask=convert(np.array([1])))
    with pytest.raises(ValueError, match="dim is 2"):
        attention_entropy(convert(np.array([good])), dim=2)
    with pytest.raises(TypeError, match="dtype bool"):
        attention_entropy(convert(np.array([[True, False]])))
    with pytest.raises(ValueError, match="one key"):
        attention_entropy(convert(np.empty((2, 0))))


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        (torch.float64, 1e-9),
        (torch.float32, 1e-4),
        (torch.float16, 5e-3),
        (torch.bfloat16, 2e-2),
    ],
)
def test_tolerance_of_the_row_sum_by_dtype(kind: torch.dtype, tolerance: float) -> None:
    def row(excess: float) -> torch.Tensor:
        parts = torch.full((1, 1024), 2.0**-10, dtype=torch.float64)  # exact in every dtype
        parts[0, 0] += excess
        return parts.to(kind)

    ok = attention_entropy(row(0.7 * tolerance))
    assert 6.8 < float(ok[0]) <= np.log(1024)
    for excess in (1.5 * tolerance, -1.0 * 2**-10 if tolerance < 5e-4 else 1.5 * tolerance):
        with pytest.raises(ValueError, match="sums to"):
            attention_entropy(row(excess))


def test_renormalised_within_the_tolerance() -> None:
    weights = np.array([[0.3, 0.7]]) * (1 + 5e-10)
    np.testing.assert_allclose(attention_entropy(weights), entropy_by_hand(np.array([0.3, 0.7])), rtol=1e-14)


def test_entropy_carries_gradients() -> None:
    logits = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: attention_entropy(torch.softmax(x, -1)), logits)


@given(st.integers(1, 40), st.integers(0, 2**31), st.floats(0.0, 50.0))
def test_entropy_lies_between_zero_and_log_n(n: int, seed: int, scale: float) -> None:
    weights = softmax(scale * np.random.default_rng(seed).standard_normal((3, n)))
    got = attention_entropy(weights)
    assert (got >= 0).all() and (got <= np.log(n) + 1e-12).all()


def test_stable_rank_by_svd_batches_and_types(rng: np.random.Generator) -> None:
    batch = rng.standard_normal((2, 3, 6, 4))
    expected = np.array([[rank_by_hand(m) for m in row] for row in batch])
    np.testing.assert_allclose(stable_rank(batch), expected, rtol=1e-13)
    np.testing.assert_allclose(stable_rank(torch.tensor(batch)).numpy(), expected, rtol=1e-13)
    assert stable_rank(batch.astype(np.float32)).dtype == np.float32
    assert isinstance(stable_rank(torch.tensor(batch[0, 0])), torch.Tensor)
    for kind, error in ((torch.float16, 1e-6), (torch.bfloat16, 1e-6)):
        half = torch.tensor(batch).to(kind)
        exact = [rank_by_hand(m) for m in half.double().numpy().reshape(-1, 6, 4)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = stable_rank(half)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy().ravel(), exact, rtol=error)
    np.testing.assert_allclose(
        stable_rank(batch.astype(np.float16)).ravel(),
        [rank_by_hand(m) for m in batch.astype(np.float16).reshape(-1, 6, 4)],
        rtol=1e-6,
    )


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30, 1e38])
@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_scale_does_not_matter(scale: float, tolerance: float | None) -> None:
    matrix = np.array([[1.0, 1.0], [0.0, 2.0], [1.0, 0.0]]).astype(np.float32) * np.float32(scale)
    exact = rank_by_hand(matrix.astype(np.float64) * (1e44 if scale < 1e-40 else 1.0))
    assert np.isclose(stable_rank(matrix, tolerance=tolerance), exact, rtol=1e-5)
    assert np.isclose(float(stable_rank(torch.tensor(matrix), tolerance=tolerance)), exact, rtol=1e-5)
    wide = matrix.astype(np.float64) * 1e250
    assert np.isclose(stable_rank(wide, tolerance=tolerance), exact, rtol=1e-5)


def test_fp16_sum_of_squares_would_overflow() -> None:
    matrix = (torch.randn(300, 76, generator=torch.Generator().manual_seed(0)) * 100).half()
    assert torch.isinf(matrix.norm() ** 2)
    assert np.isclose(float(stable_rank(matrix)), rank_by_hand(matrix.double().numpy()), rtol=1e-5)


SPECTRA = {
    "all equal": np.ones(60),
    "one just above a plateau": np.r_[1.0, np.full(59, 0.97)],
    "two nearly equal": np.r_[1.0, 1 - 1e-10, np.full(58, 0.1)],
    "a ramp": np.linspace(0, 1, 60),
    "rank one": np.r_[1.0, np.zeros(59)],
    "a plateau of 30": np.r_[np.ones(30), np.full(30, 0.999)],
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-5, 1e-10])
def test_iterated_stable_rank_keeps_its_tolerance(name: str, tolerance: float) -> None:
    rng = np.random.default_rng(len(name))
    left = np.linalg.qr(rng.standard_normal((90, 60)))[0]
    right = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    matrix = (left * SPECTRA[name]) @ right.T
    exact = rank_by_hand(matrix)
    for candidate in (matrix, matrix.T, torch.tensor(matrix)):
        ratio = float(stable_rank(candidate, tolerance=tolerance)) / exact
        assert 1 - 1e-12 <= ratio <= 1 + tolerance + 1e-12


def test_iterated_stable_rank_does_less_work_than_the_whole_spectrum(rng: np.random.Generator) -> None:
    from joma_lib._lanczos import largest_eigenvalue

    matrix = rng.standard_normal((900, 300))
    calls = []

    def apply(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return matrix.T @ (matrix @ x)

    top = largest_eigenvalue(apply, 300, 1e-2)
    exact = np.linalg.norm(matrix, 2) ** 2
    assert exact / 1.01 <= top <= exact * (1 + 1e-12)
    assert len(calls) < 80


def test_iterated_stable_rank_in_batches_and_halves() -> None:
    batch = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3)).half()
    got = stable_rank(batch, tolerance=1e-8)
    assert got.dtype == torch.float32 and tuple(got.shape) == (2,)
    np.testing.assert_allclose(got, [rank_by_hand(m) for m in batch.double().numpy()], rtol=1e-6)


def test_stable_rank_is_differentiable() -> None:
    matrix = torch.randn(
        4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert torch.autograd.gradcheck(stable_rank, matrix)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_stable_rank_refuses(convert, tolerance: float | None) -> None:
    with pytest.raises(ValueError, match="the matrix is zero"):
        stable_rank(convert(np.zeros((2, 2))), tolerance=tolerance)
    batch = np.ones((3, 2, 2))
    batch[1] = 0
    with pytest.raises(ValueError, match=r"matrix \(1,\) of the batch is zero"):
        stable_rank(convert(batch), tolerance=tolerance)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="not finite"):
            stable_rank(convert(np.array([[1.0, bad], [0.0, 1.0]])), tolerance=tolerance)
    with pytest.raises(ValueError, match=r"give .*columns"):
        stable_rank(convert(np.ones(3)), tolerance=tolerance)
    with pytest.raises(ValueError, match=r"give .*columns"):
        stable_rank(convert(np.ones((0, 3))), tolerance=tolerance)
    with pytest.raises(TypeError, match="complex"):
        stable_rank(convert(np.ones((2, 2), dtype=complex)), tolerance=tolerance)
    with pytest.raises(ValueError, match="tolerance is 2"):
        stable_rank(convert(np.ones((2, 2))), tolerance=2)


def test_correlation_matches_numpy(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 4, 50))
    expected = [np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(normalized_correlation(a, b), expected, atol=1e-14)
    np.testing.assert_allclose(normalized_correlation(a.T, b.T, dim=0), expected, atol=1e-14)
    got = normalized_correlation(torch.tensor(a), b)
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-14)
    table = normalized_correlation(a[:, None], b[None])
    np.testing.assert_allclose(table, np.corrcoef(a, b)[:4, 4:], atol=1e-14)
    half = normalized_correlation(torch.tensor(a).half(), torch.tensor(b).half())
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half.numpy(), expected, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(half, normalized_correlation(torch.tensor(a).half(), torch.tensor(b).half()))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e300])
def test_correlation_of_any_scale_and_offset(scale: float, rng: np.random.Generator) -> None:
    a = rng.standard_normal(30)
    assert np.isclose(normalized_correlation(a, scale * a), 1.0)
    assert np.isclose(normalized_correlation(-scale * a, 5 + a), -1.0)


def test_correlation_of_a_constant() -> None:
    varied = np.array([1.0, 2.0, 4.0])
    constant = np.full(3, 0.1)
    for a, b in ((constant, varied), (torch.tensor(constant), torch.tensor(varied))):
        with pytest.raises(ValueError, match=r"a is constant.*constant='nan'"):
            normalized_correlation(a, b)
        assert np.isnan(float(normalized_correlation(a, b, constant="nan")))
        stacked = normalized_correlation(
            np.stack([constant, varied]), np.stack([varied, varied]), constant="nan"
        )
        assert np.isnan(stacked[0]) and np.isclose(stacked[1], 1)
    with pytest.raises(ValueError, match=r"b is constant at \(1,\)"):
        normalized_correlation(np.stack([varied, varied]), np.stack([varied, constant]))
    noise = np.array([0.3, 0.1 + 0.2, 0.3])  # a constant up to its rounding
    with pytest.raises(ValueError, match="constant"):
        normalized_correlation(noise, varied)


def test_correlation_refuses() -> None:
    with pytest.raises(ValueError, match="must broadcast"):
        normalized_correlation(np.arange(3.0), np.arange(4.0))
    with pytest.raises(ValueError, match="not finite"):
        normalized_correlation(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="constant is 'zero'"):
        normalized_correlation(np.arange(3.0), np.arange(3.0), constant="zero")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dim is 1"):
        normalized_correlation(np.arange(3.0), np.arange(3.0), dim=1)


def test_input_is_left_as_it_was_and_so_is_the_random_state(global_state_untouched, rng) -> None:
    weights = softmax(rng.standard_normal((3, 4)))
    matrix = rng.standard_normal((3, 4))
    copies = weights.copy(), matrix.copy()
    attention_entropy(weights)
    stable_rank(matrix)
    stable_rank(matrix, tolerance=1e-3)
    normalized_correlation(matrix, weights)
    assert (weights == copies[0]).all() and (matrix == copies[1]).all()


def test_metrics_do_not_import_torch() -> None:
    code = (
        "import sys, numpy as np, joma_lib.metrics as m; m.stable_rank(np.eye(2), tolerance=.1);"
        "m.attention_entropy(np.eye(2)); assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
