"""Theorem 1: proofs, the same formula on arrays, its inverse, and the exact laws of finite steps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from joma_lib.invariants import KINDS, SYMBOLS, block_flow, conserved, law, predicted_logits, prove

M, K = sp.symbols("M K", integer=True, positive=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(M, K), (1, 1), (3, 2), (M, 2), (5, K), (20, 20)])
def test_the_laws_are_proved(kind, size):
    assert prove(kind, *size) == 0


@pytest.mark.parametrize("size", [(M, K), (2, 2)])
def test_wrong_laws_are_not(size):
    """The other kind's law, the wrong sign, the wrong factor, and a single logit of softmax attention."""
    for kind in KINDS:
        flow, z, v = block_flow(kind, *size)
        if size == (2, 2):
            at, squares, total = z[0], v[0, 0] ** 2 + v[1, 0] ** 2, sum(z)
        else:
            at = z[sp.Symbol("l", integer=True)]
            k = sp.Symbol("k", integer=True)
            squares = sp.Sum(v[k, sp.Symbol("l", integer=True)] ** 2, (k, 1, K))
            total = sp.Sum(z[sp.Symbol("l", integer=True)], (sp.Symbol("l", integer=True), 1, M))
        temperature = SYMBOLS["T"]
        quantities = {
            "linear": at**2 - squares,
            "exp": at - squares / (2 * temperature),
            "softmax": total,
            "sign": at**2 + squares,
            "factor": at - squares / temperature,
            "no temperature": at - squares / 2,
        }
        for name, quantity in quantities.items():
            assert flow.is_conserved(quantity) == (name == kind), (kind, name)


def test_laws_read_as_in_the_contract():
    random = np.random.default_rng(0)
    z, v, b = random.normal(size=(4, 5)), random.normal(size=(4, 3, 5)), random.dirichlet(np.ones(5), size=4)
    s, temperature = (v**2).sum(1), 0.7
    np.testing.assert_allclose(conserved("linear", z, v, temperature=temperature), z**2 - s)
    np.testing.assert_allclose(conserved("exp", z, v, temperature=temperature), z - s / 1.4)
    np.testing.assert_allclose(
        conserved("softmax", z, v, mean_attention=b, temperature=temperature),
        z - (s - b * s.sum(-1, keepdims=True)) / 1.4,
    )
    assert law("exp").subs({SYMBOLS["z"]: 3, SYMBOLS["s"]: 2, SYMBOLS["T"]: 2}) == sp.Rational(5, 2)


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    temperature=st.floats(0.1, 10),
)
def test_prediction_inverts_the_law(kind, seed, shape, temperature):
    random = np.random.default_rng(seed)
    z, v = random.normal(size=(shape[0], shape[2])), random.normal(size=shape)
    options = {"mean_attention": random.dirichlet(np.ones(shape[2])), "temperature": temperature}
    back = predicted_logits(kind, v, conserved(kind, z, v, **options), sign=np.sign(z), **options)
    np.testing.assert_allclose(back, z, atol=1e-6 if kind == "linear" else 1e-11)


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    z, v = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3, 5)
    for dtype, out in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        value = conserved("exp", z.to(dtype), v.to(dtype))
        assert value.dtype == out
        np.testing.assert_allclose(
            value, conserved("exp", z.to(dtype).double().numpy(), v.numpy()), rtol=1e-5
        )
    leaf = v.double().requires_grad_(True)
    conserved("linear", z.double(), leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad, -2 * v)
    sign = predicted_logits("linear", v, conserved("linear", z, v), sign=torch.sign(z))
    np.testing.assert_allclose(sign, z, atol=1e-5)


def test_bad_input_gets_one_sentence():
    z, v = np.zeros(4), np.zeros((3, 4))
    cases = [
        (ValueError, "kind 'tanh'", lambda: conserved("tanh", z, v)),
        (ValueError, "temperature is 0", lambda: conserved("exp", z, v, temperature=0)),
        (ValueError, "temperature is nan", lambda: conserved("exp", z, v, temperature=float("nan"))),
        (TypeError, "temperature is 'hot'", lambda: conserved("exp", z, v, temperature="hot")),
        (ValueError, "mean_attention", lambda: conserved("softmax", z, v)),
        (ValueError, "same number of tokens", lambda: conserved("exp", np.zeros(3), v)),
        (ValueError, "nodes by tokens", lambda: conserved("exp", z, np.zeros(4))),
        (ValueError, "leading dimensions", lambda: conserved("exp", np.zeros((2, 4)), np.zeros((3, 3, 4)))),
        (ValueError, "not finite", lambda: conserved("exp", z * np.nan, v)),
        (TypeError, "real numbers", lambda: conserved("exp", ["a"] * 4, v)),
        (TypeError, "real numbers", lambda: conserved("exp", z + 1j, v)),
        (ValueError, "give sign", lambda: predicted_logits("linear", v, z)),
        (ValueError, "other than 1 and -1", lambda: predicted_logits("linear", v, z, sign=z)),
        (ValueError, "other weights", lambda: predicted_logits("linear", v, z - 1, sign=z + 1)),
        (ValueError, "kind 'relu'", lambda: prove("relu", 2, 2)),
        (ValueError, "tokens is 0", lambda: prove("exp", 0, 2)),
        (TypeError, "nodes is 1.5", lambda: prove("exp", 2, 1.5)),
        (TypeError, "nodes is True", lambda: prove("exp", 2, True)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for error, message, call in cases:
            with pytest.raises(error, match=message) as caught:
                call()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("activation", ["linear", "relu", "gelu", "erf", "tanh"])
@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_finite_steps_obey_an_exact_law(batch, activation, rate):
    """Any step size, any mini-batch: the drift is the sum of squared updates, to 1e-12."""
    pytest.importorskip("torch")
    from joma_lib.block import BlockConfig, train_block

    for kind, temperature in (("linear", 1.0), ("exp", 0.5)):
        config = BlockConfig(
            attention=kind, activation=activation, learning_rate=rate, steps=40, batch_size=batch, temperature=temperature,
            tokens=8, nodes=6, width=10, init_scale=0.3,
        )  # fmt: skip
        run = train_block(config, seeds=[0, 1], record=10, track_updates=True, device="cpu")
        value = conserved(kind, run.z.values, run.v.values, temperature=temperature)
        dz, dv = run.squared_updates_z.values, run.squared_updates_v.sum("node").values
        expected = dz - dv if kind == "linear" else -dv / (2 * temperature)
        np.testing.assert_allclose(value - value[:, :1], expected, atol=1e-12 * max(1, abs(value).max()))
        assert abs(expected[:, -1]).max() > 1e-8  # the drift is there


def test_softmax_conserves_the_sum_of_logits():
    pytest.importorskip("torch")
    from joma_lib.block import BlockConfig, train_block

    run = train_block(BlockConfig(steps=600, activation="relu"), seeds=[0, 1, 2], device="cpu")
    assert float(abs(run.z.sum("token") - run.z.sum("token").isel(step=0)).max()) < 1e-12
    assert float(abs(run.z - run.z.isel(step=0)).max()) > 0.05
