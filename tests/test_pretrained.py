"""`measure`: values against NumPy in float64, and each way in which such numbers are known to go wrong."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_decoders import KINDS, tiny, tokens

from joma_lib import _measure, runs
from joma_lib._numpy_decoder import numpy_attention
from joma_lib.pretrained import measure


def entropies(model, ids):
    """Row entropies [layers, heads, queries] of one sequence, in NumPy and float64."""
    maps = numpy_attention(model, ids)
    return -np.where(maps > 0, maps * np.log(np.where(maps > 0, maps, 1)), 0).sum(-1)


def numpy_stable_rank(matrix):
    matrix = np.asarray(matrix, dtype=np.float64)
    return (matrix**2).sum() / np.linalg.norm(matrix, 2) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_opinion_agrees_with_the_models_own_maps(kind):
    model = tiny(kind).double().eval()
    model.set_attn_implementation("eager")
    ids = tokens()
    theirs = torch.stack(model(ids, output_attentions=True).attentions).detach().numpy()
    for at, one in enumerate(ids):
        np.testing.assert_allclose(
            numpy_attention(model, one), theirs[:, at], atol=2e-6
        )  # their softmax is float32


@pytest.mark.parametrize("kind", KINDS)
def test_entropies_are_those_of_numpy(kind):
    model, ids = tiny(kind), tokens()
    found = measure(model, ids, weights=False)
    rows = np.stack([entropies(model, one) for one in ids])  # [sequences, layers, heads, queries]
    assert rows.mean((0, 3)).std() > 0.02  # the heads differ, so that a mix-up would show
    np.testing.assert_allclose(found.attention_entropy, rows.mean((0, 3)), atol=1e-5)
    normalized = rows[..., 1:] / np.log(np.arange(2, 10))
    np.testing.assert_allclose(found.attention_entropy_normalized, normalized.mean((0, 3)), atol=1e-5)
    by_sequence = rows.mean(3)
    np.testing.assert_allclose(found.attention_entropy_se, by_sequence.std(0, ddof=1) / 3**0.5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_those_of_numpy(kind):
    model = tiny(kind)
    found = measure(model, tokens())
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    for at in range(2):

        def get(text, at=at):
            (one,) = (v for k, v in state.items() if f".{at}." in k and k.endswith(text + ".weight"))
            return one

        if kind == "opt":
            parts = {"lower": get("fc1"), "upper": get("fc2")}
            query, key = (get(f"self_attn.{one}_proj").reshape(4, 8, 32) for one in "qk")
        elif kind == "gpt_neox":
            parts = {"lower": get("dense_h_to_4h"), "upper": get("dense_4h_to_h")}
            query, key, _ = get("query_key_value").reshape(4, 3, 8, 32).transpose(1, 0, 2, 3)
        elif kind == "gpt2":
            parts = {"lower": get("c_fc").T, "upper": get("mlp.c_proj").T}
            query, key, _ = get("c_attn").T.reshape(3, 4, 8, 32)
        else:
            parts = {"gate": get("gate_proj"), "up": get("up_proj"), "upper": get("down_proj")}
            query, key = get("q_proj").reshape(4, 8, 32), get("k_proj").reshape(2, 8, 32).repeat(2, 0)
        assert found.matrix.values.tolist() == list(parts)
        for name, matrix in parts.items():
            ours = found.sel(layer=at, matrix=name)
            np.testing.assert_allclose(ours.stable_rank, numpy_stable_rank(matrix), rtol=1e-5)
            norms = np.linalg.norm(matrix, axis=0 if name == "upper" else 1)
            np.testing.assert_allclose(ours.neuron_norm, norms, rtol=1e-5)
        products = [numpy_stable_rank(q.T @ k) for q, k in zip(query, key, strict=True)]
        np.testing.assert_allclose(found.query_key_stable_rank.sel(layer=at), products, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_batches_and_context_change_nothing(kind):
    model, ids = tiny(kind), tokens(4, 7)
    alone = measure(model, ids, weights=False)
    for left, right in ((5, 0), (0, 5), (2, 3)):
        filled = torch.nn.functional.pad(ids, (left, right), value=3)
        mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
        for size in (1, 3, 8):
            padded = measure(model, filled, mask, weights=False, batch_size=size)
            for name in ("attention_entropy", "attention_entropy_normalized", "attention_entropy_se"):
                np.testing.assert_allclose(
                    padded[name], alone[name], atol=2e-6, err_msg=f"{name} {left} {right}"
                )


def test_sequences_of_several_lengths_are_pooled_over_queries():
    model, ids = tiny("gpt_neox"), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    found = measure(model, ids, mask, weights=False)
    rows = np.concatenate([entropies(model, ids[0]), entropies(model, ids[1, :4])], -1)
    np.testing.assert_allclose(found.attention_entropy, rows.mean(-1), atol=1e-5)
    sums, counts = np.stack([rows[..., :9].sum(-1), rows[..., 9:].sum(-1)]), np.array([9, 4])[:, None, None]
    error = np.sqrt(2 * ((sums - counts * rows.mean(-1)) ** 2).sum(0)) / 13
    np.testing.assert_allclose(found.attention_entropy_se, error, atol=1e-5)


def test_one_sequence_has_no_standard_error():
    assert measure(tiny("opt"), tokens(1), weights=False).attention_entropy_se.isnull().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(kind, dtype):
    model, ids = tiny(kind).to(dtype), tokens()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure(model, ids)
    exact = measure(tiny(kind).to(dtype).double(), ids)  # the same rounded weights, everything in float64
    assert (
        found.attrs["dtype"] == str(dtype).removeprefix("torch.")
        and found.attrs["compute_dtype"] == "float32"
    )
    for name in ("attention_entropy", "stable_rank", "query_key_stable_rank", "neuron_norm"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-5, atol=1e-5)
    assert all(value.dtype == dtype for value in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_large_half_precision_weights_do_not_overflow():
    model = tiny("opt").half()
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.mul_(500)
    assert np.isfinite(measure(model, tokens()).stable_rank).all()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_comes_back_as_it_was(implementation, global_state_untouched):
    model = tiny("gpt_neox")
    model.set_attn_implementation(implementation)
    model.config.attention_dropout = 0.5
    model.train()
    model.gpt_neox.layers[1].eval()
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    torch.set_float32_matmul_precision("medium")
    try:
        found = measure(model, tokens())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = measure(model, tokens())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found.equals(again) and found.equals(measure(tiny("gpt_neox"), tokens()))
    assert modes == [module.training for module in model.modules()]
    assert hooks == [
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    ]
    assert model.config._attn_implementation == implementation
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_the_model_comes_back_after_an_error_too(global_state_untouched):
    model = tiny("gpt_neox").half().train()
    model.gpt_neox.layers[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure(model, tokens())
    assert model.training and all(p.dtype == torch.float16 for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert all(not layer.attention._forward_hooks for layer in model.gpt_neox.layers)


def test_one_layers_maps_at_a_time(monkeypatch):
    """Every map that a layer made is gone when the next one's arrives."""
    import gc
    import weakref

    alive, most = [], []
    original = _measure.attention_entropy

    def spy(found, **options):
        alive.append(weakref.ref(found))
        gc.collect()
        most.append(sum(one() is not None for one in alive))
        return original(found, **options)

    monkeypatch.setattr(_measure, "attention_entropy", spy)
    measure(tiny("opt", layers=4), tokens(), weights=False)
    assert len(most) == 4 and max(most) == 1


def test_chosen_layers_and_queries():
    model, ids = tiny("gpt2", layers=3), tokens(4, 30)
    whole = measure(model, ids)
    part = measure(model, ids, layers=[2])
    assert part.equals(whole.sel(layer=[2]))
    drawn = [measure(model, ids, weights=False, queries=8, seed=seed).attention_entropy for seed in range(30)]
    assert not drawn[0].equals(drawn[1])
    assert drawn[0].equals(measure(model, ids, weights=False, queries=8, seed=0).attention_entropy)
    gaps = np.stack([one - whole.attention_entropy for one in drawn])
    assert (abs(gaps.mean(0)) < 4 * gaps.std(0, ddof=1) / 30**0.5).all()  # unbiased
    assert measure(model, ids, weights=False, queries=30).attention_entropy.equals(whole.attention_entropy)


def test_attributes_say_what_was_measured(tmp_path):
    model, ids = tiny("opt"), tokens()
    found = measure(model, ids)
    definitions = json.loads(found.attrs["definitions"])
    assert set(definitions) == set(found.data_vars)
    assert "OPTForCausalLM" in found.attrs["model"] and found.attrs["dtype"] == "float32"
    assert {"torch", "transformers", "joma_lib"} <= set(json.loads(found.attrs["versions"]))
    assert found.attrs["weights_sha256"][:16] in found.attrs["citation"]
    with torch.no_grad():
        model.model.decoder.layers[1].fc2.weight[0, 0] += 1
    assert measure(model, ids).attrs["weights_sha256"] != found.attrs["weights_sha256"]
    assert runs.load_run(runs.save_run(found, tmp_path / "one")).identical(runs.load_run(tmp_path / "one.nc"))


class Own(torch.nn.Module):
    """A block in nobody's layout: attention over embeddings, weights as [inputs, outputs]."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table, self.q, self.k = (
            torch.nn.Parameter(torch.randn(*shape, generator=generator))
            for shape in ((40, 6), (6, 6), (6, 6))
        )
        self.up, self.down = (
            torch.nn.Parameter(torch.randn(*s, generator=generator)) for s in ((6, 10), (10, 6))
        )

    def maps(self, ids, mask, causal=True):
        x = self.table[ids]
        q, k = ((x @ w).unflatten(-1, (2, 3)).transpose(1, 2) for w in (self.q, self.k))
        logits = (q @ k.mT).masked_fill(~mask[:, None, None].bool(), -1e9)
        if causal:
            logits = logits.masked_fill(~torch.ones(ids.shape[1], ids.shape[1]).tril().bool(), -1e9)
        return logits.softmax(-1)


def own_maps(model, ids, mask):
    yield model.maps(ids, mask)


def own_matrices(model):
    yield {
        "lower": model.up.T, "upper": model.down.T,
        "query": model.q.T.reshape(2, 3, 6), "key": model.k.T.reshape(2, 3, 6),
    }  # fmt: skip


def test_any_module_through_two_callables():
    model, ids = Own(), tokens()
    found = measure(model, ids, attention_maps=own_maps, matrices=own_matrices)
    maps = model.maps(ids, torch.ones_like(ids)).detach().double().numpy()
    rows = -np.where(maps > 0, maps * np.log(np.where(maps > 0, maps, 1)), 0).sum(-1)
    np.testing.assert_allclose(found.attention_entropy[0], rows.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose(found.stable_rank[0, 0], numpy_stable_rank(model.up.detach()), rtol=1e-5)
    q, k = (w.detach().double().numpy() for w in (model.q, model.k))
    products = [numpy_stable_rank(q[:, at : at + 3] @ k[:, at : at + 3].T) for at in (0, 3)]
    np.testing.assert_allclose(found.query_key_stable_rank[0], products, rtol=1e-5)
    both = lambda m, i, a: [m.maps(i, a, causal=False)]  # noqa: E731
    wide = measure(model, ids, weights=False, attention_maps=both, causal=False)
    ratio = wide.attention_entropy / wide.attention_entropy_normalized
    np.testing.assert_allclose(ratio, math.log(9), rtol=1e-6)
    with pytest.raises(ValueError, match="more positions than its queries should see"):
        measure(model, ids, weights=False, attention_maps=both)


def uniform(model, ids, mask):
    n = ids.shape[1]
    return [torch.full((len(ids), 1, n, n), 1 / n)]


IDS = [[1, 2, 3]]
REFUSALS = {
    "float ids": (lambda m: measure(m, [[1.0, 2.0]]), "integers"),
    "ragged": (lambda m: measure(m, [[1, 2], [3]]), "pad the sequences"),
    "one dimension": (lambda m: measure(m, [1, 2]), "shape \\(2,\\)"),
    "negative ids": (lambda m: measure(m, [[-1, 2]]), "not negative"),
    "vocabulary": (lambda m: measure(m, [[1, 99]]), "vocabulary has 40"),
    "context": (lambda m: measure(m, [[1] * 65]), "64 positions"),
    "mask shape": (lambda m: measure(m, IDS, [[1, 1]]), "attention_mask has shape"),
    "mask values": (lambda m: measure(m, IDS, [[1, 2, 1]]), "other than 0 and 1"),
    "mask gap": (lambda m: measure(m, IDS, [[1, 0, 1]]), "has a gap"),
    "empty sequence": (lambda m: measure(m, IDS, [[0, 0, 0]]), "no real token"),
    "one token": (lambda m: measure(m, [[1]]), "longer sequences"),
    "layers": (lambda m: measure(m, IDS, layers=[2]), "choose from 0 to 1"),
    "batch size": (lambda m: measure(m, IDS, batch_size=0), "batch_size is 0"),
    "queries": (lambda m: measure(m, IDS, queries=0), "queries is 0"),
    "no module": (lambda m: measure("gpt2", IDS), "load it first"),
    "another kind": (lambda m: measure(torch.nn.Linear(2, 2), IDS), "no Hugging Face decoder"),
    "maps without matrices": (lambda m: measure(Own(), IDS, attention_maps=own_maps), "matrices too"),
    "uniform over the future": (
        lambda m: measure(Own(), IDS, weights=False, attention_maps=uniform), "more positions",
    ),
    "logits for maps": (
        lambda m: measure(m, IDS, weights=False, attention_maps=lambda *_: [torch.ones(1, 1, 3, 3)]), "sums to 3",
    ),
    "no maps": (lambda m: measure(m, IDS, weights=False, attention_maps=lambda *_: []), "no map"),
    "None for a map": (lambda m: measure(m, IDS, weights=False, attention_maps=lambda *_: [None]), "NoneType"),
    "shape of a map": (
        lambda m: measure(m, IDS, weights=False, attention_maps=lambda *_: [torch.eye(2)[None, None]]), "give \\[batch",
    ),
    "transposed matrix": (
        lambda m: measure(Own(), IDS, attention_maps=own_maps, matrices=lambda n: [{"lower": n.up.T, "upper": n.down}]),
        "outputs, inputs",
    ),
    "missing matrix": (
        lambda m: measure(Own(), IDS, attention_maps=own_maps, matrices=lambda n: [{"lower": n.up}]), "give lower and upper",
    ),
    "too few mappings": (
        lambda m: measure(Own(), IDS, attention_maps=own_maps, matrices=lambda n: []), "0 of the 1 layers",
    ),
    "heads": (
        lambda m: measure(
            Own(), IDS, attention_maps=own_maps,
            matrices=lambda n: [{"lower": n.up.T, "upper": n.down.T, "query": n.q[None], "key": n.k[None]}],
        ),
        "2 heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, said = REFUSALS[name]
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        call(tiny("opt"))
    assert "\n" not in str(caught.value)


def _poison(model):
    model.model.decoder.layers[1].fc1.weight.data[0, 0] = float("nan")


def _poison_last(model):
    model.model.decoder.layers[1].fc2.bias.data[0] = float("inf")


def _zero(model):
    model.model.decoder.layers[0].fc1.weight.data.zero_()


def _quantise(model):
    model.model.decoder.layers[0].fc1.weight = torch.nn.Parameter(torch.ones(48, 32, dtype=torch.int8), False)


def _wrap(model):
    model.model.decoder.layers[0].fc1 = torch.nn.Sequential(model.model.decoder.layers[0].fc1)


def _meta(model):
    model.to("meta")


def _no_map(model):
    layer = model.model.decoder.layers[1].self_attn
    layer.forward = lambda hidden_states, **_: (hidden_states, None)


def _skip(model):
    model.model.decoder.layers[0].self_attn.forward = lambda hidden_states, **_: hidden_states
    model.model.decoder.layers[0].forward = lambda hidden_states, **_: hidden_states


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_poison, "not finite"), (_poison_last, "not finite"), (_zero, "lower of layer 0.*is zero"),
        (_quantise, "quantised"), (_wrap, "Sequential, no plain linear map"), (_meta, "load the whole model"),
        (_no_map, "returned no attention map"), (_skip, r"ran layers \[1\]"),
    ],
)  # fmt: skip
def test_damaged_models_are_refused(damage, said):
    model = tiny("opt")
    damage(model)
    with pytest.raises(ValueError, match=said) as caught:
        measure(model, tokens())
    assert "\n" not in str(caught.value)


def test_models_of_other_kinds_are_refused():
    import transformers

    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    bert = transformers.BertModel(transformers.BertConfig(intermediate_size=32, **small))
    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=4)
    )
    t5 = transformers.T5Model(
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4)
    )
    for model, said in ((bert, "none of OPT"), (bloom, "laid out as none of"), (t5, "encoder-decoder")):
        with pytest.raises(ValueError, match=said):
            measure(model, tokens())
    qwen = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(intermediate_size=32, num_key_value_heads=2, head_dim=4, **small)
    )
    with pytest.raises(ValueError, match="normalises queries or keys"):
        measure(qwen, tokens())
    assert measure(qwen, tokens(), weights=False).sizes["layer"] == 2


def test_sliding_windows_count_what_is_seen():
    import transformers

    config = transformers.MistralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.MistralForCausalLM(config)
    model.model.layers[
        0
    ].self_attn.q_proj.weight.data.zero_()  # uniform attention: each row has the most entropy
    found = measure(model, tokens(), weights=False)
    np.testing.assert_allclose(found.attention_entropy_normalized, 1, atol=1e-6)
    np.testing.assert_allclose(found.attention_entropy, (math.log(2) + 7 * math.log(3)) / 9, atol=1e-6)


def test_compiled_and_parallel_wrappers_are_opened():
    model, ids = tiny("opt"), tokens()
    wrapped = torch.nn.DataParallel(model, device_ids=[]) if not torch.cuda.is_available() else model
    assert measure(wrapped, ids).equals(measure(model, ids))
    assert _measure.unwrap(SimpleNamespace(_orig_mod=model)) is model
