"""Table 1: the generator, the exact trainer, what it measures, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from joma_lib import runs  # noqa: E402
from joma_lib.hierarchy import (  # noqa: E402
    Distinct,
    HierarchyConfig,
    HierarchyModel,
    HierarchyRun,
    best_nodes,
    correlations,
    cross_fitted,
    first_time,
    inside,
    loss_of,
    make_hierarchy,
    ncorr,
    null_ncorr,
    reached_hierarchy,
    scores,
    train_hierarchy,
)

SMALL = HierarchyConfig(
    latents=(6, 8),
    classes=7,
    tokens=30,
    length=12,
    width=24,
    hidden=20,
    steps=12,
    lr=1e-3,
    fresh=12,
    permutations=20,
)
SETTINGS = [
    SMALL,
    replace(SMALL, activation="linear"),
    replace(SMALL, children=3, length=29, tokens=40, latents=(7, 9)),
    replace(SMALL, latents=(6,), length=4),  # no padding left in some sequence
    replace(SMALL, latents=(5, 6, 7), length=16),
]


def _reference(model, tokens):
    """The model written out once more: padded sequences, explicit softmax; also pooled activations and maps."""
    x, pooled, maps = model.embedding.weight[tokens], [], []
    length = tokens.shape[1]
    for layer in model.layers:
        q, k, v = (x @ part.weight.T for part in (layer.query, layer.key, layer.value))
        score = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        score = score.masked_fill(torch.ones(length, length).triu(1) > 0, float("-inf"))
        maps.append(score.softmax(-1))
        f = functional.layer_norm(
            x + maps[-1] @ v, x.shape[-1:], layer.norm_attention.weight, layer.norm_attention.bias
        )
        h = layer.lower(f)
        h = h.clamp_min(0) if layer.relu else h
        pooled.append(h.amax(1))
        x = functional.layer_norm(
            f + layer.upper(h), x.shape[-1:], layer.norm_mlp.weight, layer.norm_mlp.bias
        )
    return model.readout(x[:, -1]), pooled, maps


def _model(config, seed=0, dtype=torch.float64):
    data = make_hierarchy(config, seed)
    model = HierarchyModel(config, torch.Generator().manual_seed(seed)).to(dtype)
    with torch.no_grad():  # attention far from uniform, norms that are not the identity
        for layer in model.layers:
            layer.query.weight *= 4
            for norm in (layer.norm_attention, layer.norm_mlp):
                norm.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed + 1))
                norm.bias.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(seed + 2))
    return data, model, Distinct.of(data.sequences, config.tokens - 1, dtype)


# --- the generator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [HierarchyConfig(), HierarchyConfig(children=3, latents=(20, 30)), *SETTINGS]
)
def test_classes_are_what_their_combinations_say(config):
    data = make_hierarchy(config, 5)
    padding = config.tokens - 1
    assert data.sequences.shape == (config.classes, config.length)
    pools = (padding, *config.latents)
    for rows, number, pool in zip(data.combinations, (*config.latents, config.classes), pools, strict=True):
        assert rows.shape == (number, config.children) and rows.min() >= 0 and rows.max() < pool
        assert len({tuple(row) for row in rows.tolist()}) == number
        assert all(list(row) == sorted(set(row)) for row in rows.tolist())
    for label in range(config.classes):
        active = set(data.combinations[-1][label].tolist())
        for level in reversed(range(len(config.latents))):
            assert set(data.on[level][label].nonzero().flatten().tolist()) == active
            active = {item for node in active for item in data.combinations[level][node].tolist()}
        tokens = data.sequences[label].tolist()
        at = config.length - len(active)
        assert tokens == [padding] * at + sorted(active)
    for level, unused in enumerate(data.unused):
        assert set(unused) == set(range(config.latents[level])) - set(data.on[level].nonzero()[:, 1].tolist())
    seen = {tuple(row) for row in data.sequences.tolist()}
    assert not seen & {tuple(row) for row in data.fresh.tolist()}
    assert len(data.fresh) == len(data.fresh_on[0]) <= config.fresh


def test_combinations_are_uniform():
    config = HierarchyConfig(latents=(4,), classes=3, tokens=6, length=4, fresh=0)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(6)
    for _ in range(600):
        for a, b in make_hierarchy(config, generator).combinations[1].tolist():
            counts[[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].index((a, b))] += 1
    assert ((counts - 300).abs() < 5 * (300 * 0.5) ** 0.5).all()


def test_the_same_tensors_whatever_the_hash_seed():
    code = (
        "import torch; from joma_lib.hierarchy import *; from joma_lib import runs;"
        "d = make_hierarchy(HierarchyConfig(children=3), torch.Generator().manual_seed(3));"
        "print(runs.fingerprint(d.sequences, *d.combinations, *d.on, d.fresh, *d.fresh_on))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert found[0] == found[1] and len(found[0]) > 60


def test_heights_of_pairs_of_positions():
    config = HierarchyConfig(latents=(4, 3), classes=2, tokens=10, length=9, fresh=0)
    data = make_hierarchy(config, 1)
    heights = data.heights(data.sequences, data.on)
    for label, tokens in enumerate(data.sequences.tolist()):
        low = [set(data.combinations[0][n].tolist()) for n in data.on[0][label].nonzero().flatten().tolist()]
        high = [
            set(data.combinations[0][data.combinations[1][n]].flatten().tolist())
            for n in data.on[1][label].nonzero().flatten().tolist()
        ]
        for i, a in enumerate(tokens):
            for j, b in enumerate(tokens):
                if a == b or 9 in (a, b):
                    expected = 0
                elif any({a, b} <= span for span in low):
                    expected = 1
                else:
                    expected = 2 if any({a, b} <= span for span in high) else 3
                assert heights[label, i, j] == expected


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"children": 4}, ValueError, "64 tokens, more than length = 30"),
        ({"length": 7}, ValueError, "8 tokens, more than length = 7"),
        ({"latents": (5, 20)}, ValueError, "only 10"),
        ({"classes": 191}, ValueError, "only 190"),
        ({"latents": (3000, 20), "tokens": 50}, ValueError, "only 1176"),
        ({"latents": ()}, TypeError, "latents"),
        ({"latents": 10}, TypeError, "latents is 10"),
        ({"latents": (10, 0)}, ValueError, r"latents\[1\] is 0"),
        ({"classes": 20.0}, TypeError, "classes is 20.0"),
        ({"batch": 0}, ValueError, "batch is 0"),
        ({"lr": 0.0}, ValueError, "lr is 0.0"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
        ({"activation": "gelu"}, ValueError, "'gelu'"),
        ({"attention": "off"}, ValueError, "'off'"),
        ({"labels": "none"}, ValueError, "'none'"),
        ({"record": (0, 9999)}, ValueError, "steps = 2000"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(change, error, words):
    with pytest.raises(error, match=words) as caught:
        HierarchyConfig(**change)
    assert "\n" not in str(caught.value)


def test_draws_want_an_explicit_generator(global_state_untouched):
    with pytest.raises(TypeError, match="int seed"):
        make_hierarchy(SMALL, None)
    train_hierarchy(replace(SMALL, steps=2))


# --- the exact trainer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", SETTINGS, ids=str)
def test_scores_and_activations_equal_the_padded_model(config):
    data, model, distinct = _model(config)
    expected, pooled, maps = _reference(model, data.sequences)
    torch.testing.assert_close(model(data.sequences), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores(model, distinct), expected, rtol=1e-12, atol=1e-12)
    found, weights = inside(model, distinct)
    most = distinct.grid.shape[1]
    for level in range(config.layers - 1):
        torch.testing.assert_close(found[level], pooled[level], rtol=1e-12, atol=1e-12)
        active = distinct.active
        tail = maps[level][:, -most:, :]
        pads = config.length - active.sum(1)
        for n in range(config.classes):
            start = int(pads[n]) - (config.length - most)
            real = weights[level][n][active[n]]
            torch.testing.assert_close(
                real[:, start:most], tail[n][active[n]][:, config.length - most + start :]
            )
            torch.testing.assert_close(real[:, -1], tail[n][active[n]][:, : int(pads[n])].sum(-1))


@pytest.mark.parametrize("config", [*SETTINGS, replace(SMALL, labels="shuffled")], ids=str)
def test_gradients_equal_plain_training_on_a_padded_batch(config):
    data, model, distinct = _model(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(9)
    sequence = torch.randint(config.classes, (128,), generator=generator)
    label = (
        torch.randint(config.classes, (128,), generator=generator)
        if config.labels == "shuffled"
        else sequence
    )
    plain = functional.cross_entropy(model(data.sequences[sequence]), label)
    expected = torch.autograd.grad(plain, list(model.parameters()))
    counts = torch.bincount(sequence * config.classes + label, minlength=config.classes**2)
    loss = loss_of(scores(model, distinct), counts.reshape(config.classes, -1) / 128)
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    names = [name for name, _ in model.named_parameters()]
    for name, a, b in zip(names, expected, found, strict=True):
        assert a.norm() > 0, name
        assert (a - b).norm() < 1e-5 * a.norm(), name


def test_training_follows_plain_training_step_by_step():
    """The same batches, plain module, plain Adam: the same parameters after twelve steps."""
    run = HierarchyRun(SMALL, 4, dtype=torch.float64)
    plain = HierarchyRun(SMALL, 4, dtype=torch.float64)
    optimizer = torch.optim.Adam(plain.model.parameters(), SMALL.lr, weight_decay=SMALL.weight_decay)
    for _ in range(SMALL.steps):
        sequence = torch.randint(SMALL.classes, (SMALL.batch,), generator=plain.counts)
        optimizer.zero_grad()
        functional.cross_entropy(plain.model(plain.data.sequences[sequence]), sequence).backward()
        optimizer.step()
    run.advance(SMALL.steps)
    for (name, a), b in zip(run.model.named_parameters(), plain.model.parameters(), strict=True):
        assert (a - b).norm() < 1e-8 * b.norm().clamp_min(1e-3), name
    assert run.measured["loss"][-1] < run.measured["loss"][0]


def test_counts_are_drawn_and_their_limit_is_an_option():
    run = HierarchyRun(SMALL, 0)
    drawn = torch.stack([run.draw() for _ in range(400)])
    assert torch.allclose(drawn.sum((1, 2)), torch.ones(400))
    assert (drawn[0] != drawn[1]).any() and (drawn * (1 - torch.eye(7))).sum() == 0
    error = (1 / 7 * 6 / 7 / SMALL.batch / 400) ** 0.5
    assert ((drawn.mean(0).diagonal() - 1 / 7).abs() < 5 * error).all()
    full = HierarchyRun(replace(SMALL, batch=None), 0)
    assert torch.equal(full.draw(), full.limit()) and torch.allclose(
        full.draw().diagonal(), torch.tensor(1 / 7).double()
    )
    shuffled = HierarchyRun(replace(SMALL, labels="shuffled"), 0)
    mean = torch.stack([shuffled.draw() for _ in range(400)]).mean(0)
    assert ((mean - 1 / 49).abs() < 5 * (1 / 49 / SMALL.batch / 400) ** 0.5).all()
    assert torch.allclose(shuffled.limit().sum(), torch.ones(()).double())


def test_variants():
    frozen = HierarchyRun(replace(SMALL, attention="frozen"), 0)
    before = [layer.query.weight.clone() for layer in frozen.model.layers]
    lower = frozen.model.layers[0].lower.weight.clone()
    frozen.advance(5)
    assert all(
        torch.equal(a, layer.query.weight) for a, layer in zip(before, frozen.model.layers, strict=True)
    )
    assert not torch.equal(lower, frozen.model.layers[0].lower.weight)
    main = HierarchyRun(SMALL, 0)
    assert torch.equal(main.data.sequences, frozen.data.sequences)
    assert torch.equal(main.model.layers[0].query.weight, before[0])
    linear = HierarchyRun(replace(SMALL, activation="linear"), 0)
    assert (inside(linear.model, linear.probe.seen)[0][0] < 0).any()


# --- the measures ----------------------------------------------------------------------------------------------------


def test_correlations_are_numpys(rng):
    nodes, latents = rng.normal(size=(20, 6)), rng.integers(0, 2, (20, 4))
    found = correlations(torch.from_numpy(nodes), torch.from_numpy(latents))
    np.testing.assert_allclose(found, np.corrcoef(latents.T, nodes.T)[:4, 4:], atol=1e-12)
    nodes[:, 0], latents[:, 1] = 3.0, 1
    found = correlations(torch.from_numpy(nodes), torch.from_numpy(latents))
    assert found[1].isnan().all() and (found[[0, 2, 3], 0] == 0).all()
    value, node = best_nodes(torch.from_numpy(nodes), torch.from_numpy(latents))
    assert value[1].isnan() and value[0] == found[0].max() == found[0, node[0]]
    used, published = (
        ncorr(torch.from_numpy(nodes), torch.from_numpy(latents), used_only=flag) for flag in (True, False)
    )
    assert published == pytest.approx(used * 3 / 4)


def test_noise_looks_learned_until_it_is_measured_elsewhere():
    """400 nodes of noise: NCorr is high, its null distribution says so, and a second sample shows nothing."""
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randn(400, 400, generator=generator)
    latents = torch.rand(400, 12, generator=generator) < 0.2
    few = slice(0, 20)
    high = ncorr(nodes[few], latents[few])
    null = null_ncorr(nodes[few], latents[few], 200, generator)
    assert high > 0.5 and null.quantile(0.001) < high < null.quantile(0.999)
    assert abs(float(cross_fitted(nodes, latents).nanmean())) < 0.06
    nodes[:, :12] = latents.float()
    assert ncorr(nodes[few], latents[few]) > null.max() and float(
        cross_fitted(nodes, latents).nanmean()
    ) == pytest.approx(1)


def test_more_nodes_score_higher_by_chance():
    generator = torch.Generator().manual_seed(1)
    nodes, latents = torch.randn(20, 4096, generator=generator), torch.rand(20, 20, generator=generator) < 0.2
    values = [ncorr(nodes[:, :few], latents) for few in (10, 100, 400, 4096)]
    assert values == sorted(values) and values[-1] > values[0] + 0.2


def test_recorded_dataset():
    run = train_hierarchy(SMALL, seeds=[3, 1])
    assert run.seed.values.tolist() == [3, 1] and run.step.values.tolist() == [0, 1, 2, 3, 5, 7, 10, 12]
    assert run.correlation.dims == ("seed", "step", "layer", "latent")
    assert set(run.dims) <= {"seed", "step", "layer", "latent"}
    assert run["count"].sel(layer=1).sum("latent").values.tolist() == [14, 14]  # 7 classes of 2
    latents = run.correlation.sel(layer=0)
    assert latents.isel(latent=slice(6, None)).isnull().all() and latents.isel(latent=0).notnull().any()
    unused = run["count"].isin([0, 7])
    assert run.correlation.where(unused).isnull().all()
    np.testing.assert_allclose(
        run.ncorr, run.correlation.fillna(0).sum("latent") / np.array(SMALL.latents), atol=1e-12
    )
    assert (run.attention_shift.sel(step=0) == 0).all() and (run.attention_shift.sel(step=12) > 0).all()
    assert (run.loss.sel(step=12) < run.loss.sel(step=0)).all()
    assert json.loads(run.attrs["config"])["latents"] == [6, 8]
    assert run.identical(
        train_hierarchy(SMALL, seeds=[3, 1]).assign_attrs(wall_seconds=run.attrs["wall_seconds"])
    )
    shuffled = train_hierarchy(replace(SMALL, labels="shuffled", batch=None))
    assert shuffled.loss.min() > np.log(7) - 1e-6


def test_entropy_and_lift_are_those_of_the_padded_maps():
    run = HierarchyRun(replace(SMALL, width=64), 2, dtype=torch.float64)
    with torch.no_grad():
        for layer in run.model.layers:
            layer.query.weight *= 5
    run.measure()
    data = run.data
    _, _, maps = _reference(run.model, data.sequences)
    heights, real = data.heights(data.sequences, data.on), data.sequences != SMALL.tokens - 1
    for level in range(2):
        entropy = torch.special.entr(maps[level]).sum(-1)[real].mean()
        assert float(run.measured["attention_entropy"][0, level]) == pytest.approx(float(entropy), rel=1e-6)
        lift = maps[level] * torch.arange(1, SMALL.length + 1)[None, :, None]
        for height in (1, 2, 3):
            at = (heights == height) & (torch.ones(12, 12).tril(-1) > 0)
            found = float(run.measured[f"lift_{height}"][0, level])
            assert found == pytest.approx(float(lift[at].mean().detach()), rel=1e-6)


def test_first_time():
    run = train_hierarchy(SMALL)
    times = first_time(run, "correlation", -1.0)
    assert set(np.unique(times.values[~np.isnan(times.values)])) == {0.0}
    assert first_time(run, "correlation", 1.1).isnull().all()


# --- going on after a kill -------------------------------------------------------------------------------------------


def test_a_run_goes_on_to_the_same_numbers(tmp_path):
    whole = train_hierarchy(SMALL, seeds=[0, 1])
    for stop in (4, 8):
        folder = tmp_path / str(stop)
        folder.mkdir()
        HierarchyRun(SMALL, 0).advance(stop).save(folder / "seed-0.pt")
        part = reached_hierarchy(SMALL, folder, seeds=[0, 1])
        assert part.seed.values.tolist() == [0] and part.step.max() <= stop
        again = train_hierarchy(SMALL, seeds=[0, 1], folder=folder, every=4)
        assert sorted(os.listdir(folder)) == ["seed-0.nc", "seed-1.nc"]
        for name in whole.data_vars:
            np.testing.assert_array_equal(again[name], whole[name], err_msg=name)
    both = reached_hierarchy(SMALL, folder, seeds=[0, 1])
    np.testing.assert_array_equal(both.loss, whole.loss)
    runs.load_run(runs.save_run(both, tmp_path / "export"))


def test_foreign_and_damaged_states_are_refused(tmp_path):
    HierarchyRun(SMALL, 0).advance(1).save(tmp_path / "seed-0.pt")
    with pytest.raises(ValueError, match="another setting"):
        train_hierarchy(replace(SMALL, lr=1e-4), folder=tmp_path)
    (tmp_path / "seed-0.pt").write_bytes(b"no")
    with pytest.raises(ValueError, match="damaged"):
        train_hierarchy(SMALL, folder=tmp_path)
    with pytest.raises(ValueError, match="holds no seed"):
        reached_hierarchy(SMALL, tmp_path, seeds=[5])
    with pytest.raises(ValueError, match="each once"):
        train_hierarchy(SMALL, seeds=[1, 1])


def test_a_killed_process_goes_on(tmp_path):
    config = replace(SMALL, steps=4000, record=(0, 2000))
    code = (
        "import sys; from dataclasses import replace; from joma_lib.hierarchy import *;"
        f"train_hierarchy(HierarchyConfig(**{json.loads(json.dumps(config.__dict__))!r}), folder=sys.argv[1], every=25)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        for _ in range(600):
            if (tmp_path / "seed-0.pt").is_file() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.wait()
    reached = HierarchyRun(config, 0).load(tmp_path / "seed-0.pt")
    assert 25 <= reached.step < 4000 and reached.step % 25 == 0
    fresh = HierarchyRun(config, 0).advance(reached.step + 10)
    reached.advance(10)
    for a, b in zip(fresh.model.parameters(), reached.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_small_models_compute_on_one_thread_and_leave_the_number_as_it_was(monkeypatch, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seen = []
        draw = HierarchyRun.draw
        monkeypatch.setattr(
            HierarchyRun, "draw", lambda run: seen.append(torch.get_num_threads()) or draw(run)
        )
        config = HierarchyConfig(
            latents=(4, 5), classes=4, tokens=20, width=8, steps=2, fresh=5, permutations=5
        )
        HierarchyRun(config, 0).advance(2)
        assert seen == [1, 1] and torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
