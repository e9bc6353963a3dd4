"""joma_lib.language: the loader, the model against PyTorch's own, the trainer, its measures, and kills at any moment."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from joma_lib import _language_data, _language_model, runs  # noqa: E402
from joma_lib.language import (  # noqa: E402
    LanguageConfig,
    LanguageModel,
    LanguageRun,
    linear_cross_entropy,
    load_wikitext,
    make_corpus,
    published_entropy,
    reached_language,
    synthetic_corpus,
    tokenize,
    train_language,
)

WIKITEXT = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikitext-2"
with_wikitext = pytest.mark.skipif(not WIKITEXT.is_dir(), reason="WikiText-2 is not part of the project")
SMALL = LanguageConfig(
    layers=2, width=8, hidden=12, steps=23, batch=8, context=5, lr=1e-2, record_every=2, validate_every=6
)


@pytest.fixture(scope="module")
def corpus():
    return synthetic_corpus(tokens=800, words=40, topics=2, seed=3)


# --- text ------------------------------------------------------------------------------------------------------------


def test_tokens_follow_the_rules():
    text = 'The "U.S." <unk> ship (1912) ; it\'s: 3 @,@ 000 ! Really ?<br />End\n'
    expected = "the u . s . <unk> ship ( 1912 ) it ' s 3 @ , @ 000 ! really ? end"
    assert tokenize(text) == expected.split()


def test_vocabulary_is_ordered_and_unknown_words_are_zero():
    found = make_corpus({"train": "b a b <unk> c a d", "valid": "z a d", "test": "b"})
    assert found.vocabulary == ("<unk>", "a", "b", "c", "d")
    assert found.train.tolist() == [2, 1, 2, 0, 3, 1, 4]
    assert found.valid.tolist() == [0, 1, 4] and found.test.tolist() == [2]


def test_vocabulary_does_not_depend_on_the_process():
    code = "from joma_lib._language_data import synthetic_corpus as s; print(s(tokens=300, words=30, topics=2).fingerprint)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A folder with three small splits whose checksums count as those of wikitext-2."""
    texts = {
        "train": " = A = \n \n a b , c . a\n",
        "valid": " a b <unk> .\n",
        "test": " b . c , a b\n",
    }
    folder = tmp_path / "text"
    folder.mkdir()
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text)
    sums = {split: _language_data._checksum(text) for split, text in texts.items()}
    monkeypatch.setitem(_language_data._CHECKSUMS, "wikitext-2", sums)
    return folder


def test_folder_tokens_files_and_zip_give_the_same(little, tmp_path):
    first = load_wikitext("wikitext-2", little)
    other = tmp_path / "other"
    other.mkdir()
    archive = tmp_path / "whole.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for split in ("train", "valid", "test"):
            text = (little / f"{split}.txt").read_text()
            (other / f"wiki.{split}.tokens").write_text(text.replace(" \n", "\n"))  # the hub's blank lines
            file.writestr(f"wikitext-2/wiki.{split}.tokens", text)
    assert load_wikitext("wikitext-2", other).fingerprint == first.fingerprint
    assert load_wikitext("wikitext-2", archive).fingerprint == first.fingerprint
    (tmp_path / "broken.zip").write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"broken\.zip is neither a folder nor a whole zip"):
        load_wikitext("wikitext-2", tmp_path / "broken.zip")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "foreign"])
def test_text_that_is_not_the_published_one_is_refused(little, split, damage):
    path = little / f"{split}.txt"
    text = path.read_text()
    path.write_text(
        {"truncated": text[:-3], "changed": text.replace("a", "b", 1), "foreign": "x y\n"}[damage]
    )
    with pytest.raises(ValueError, match=f"the {split} split is not that of wikitext-2") as error:
        load_wikitext("wikitext-2", little)
    assert "\n" not in str(error.value)


def test_missing_splits_bytes_and_names_are_refused(little):
    (little / "valid.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"valid\.txt of text is no UTF-8"):
        load_wikitext("wikitext-2", little)
    (little / "valid.txt").unlink()
    with pytest.raises(ValueError, match=r"text lacks valid\.txt"):
        load_wikitext("wikitext-2", little)
    with pytest.raises(ValueError, match="name is 'wikitext-3'"):
        load_wikitext("wikitext-3", little)


def test_cache_is_keyed_by_content_and_a_damaged_one_is_named(little, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load_wikitext("wikitext-2", little, cache=cache)
    monkeypatch.setattr(_language_data, "make_corpus", lambda *a, **k: pytest.fail("not from the cache"))
    assert load_wikitext("wikitext-2", little, cache=cache).fingerprint == first.fingerprint
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{re.escape(kept.name)} are damaged"):
        load_wikitext("wikitext-2", little, cache=cache)


def test_offline_without_a_source_says_what_to_do():
    datasets = pytest.importorskip("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("no")))
        with pytest.raises(ValueError, match="connect to the network, or name a folder or zip"):
            load_wikitext("wikitext-2")


# --- model -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2])
def test_forward_is_that_of_pytorchs_encoder(heads):
    config = LanguageConfig(layers=2, width=8, hidden=12, heads=heads, context=7)
    model = LanguageModel(config, 30, seed=5).eval()
    tokens = torch.randint(30, (7, 3), generator=torch.Generator().manual_seed(0))
    x = model.embedding(tokens) * math.sqrt(8) + model.table
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7)
    with torch.no_grad():
        hidden, maps = model(tokens)
        torch.testing.assert_close(hidden, model.encoder(x, mask), rtol=1e-5, atol=1e-6)
        _, weights = model.encoder.layers[0].self_attn(x, x, x, attn_mask=mask)
    torch.testing.assert_close(maps[0].mean(1), weights)
    assert model.table[3, 0, 4] == pytest.approx(math.sin(3 * 10_000 ** (-4 / 8)))
    assert model.table[3, 0, 5] == pytest.approx(math.cos(3 * 10_000 ** (-4 / 8)))


def test_weights_come_from_the_seed_in_the_published_order(global_state_untouched):
    config = LanguageConfig(layers=2, width=8, hidden=8)
    model = LanguageModel(config, 30, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        layer = torch.nn.TransformerEncoderLayer(8, 1, 8, 0.2)
    for copy in model.encoder.layers:
        assert torch.equal(copy.linear1.weight, layer.linear1.weight)
    assert model.decoder.bias.abs().max() == 0 and 0.09 < model.decoder.weight.abs().max() <= 0.1


@pytest.mark.parametrize("at_once", [1 << 23, 900])  # one block, several with a short last one
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cross_entropy_and_its_gradient(monkeypatch, at_once, precision):
    monkeypatch.setattr(_language_model, "_LOGITS_AT_ONCE", at_once)
    draws = torch.Generator().manual_seed(1)
    hidden = torch.randn(64, 20, generator=draws, requires_grad=True)
    decoder = torch.nn.Linear(20, 90)
    with torch.no_grad():
        decoder.weight.normal_(generator=draws)
        decoder.bias.normal_(generator=draws)
    target = torch.randint(90, (64,), generator=draws)
    parameters = (hidden, decoder.weight, decoder.bias)
    plain = torch.nn.functional.cross_entropy(decoder(hidden), target)
    expected = torch.autograd.grad(plain, parameters)
    space: dict = {}
    for _ in range(2):  # the second time in memory that the first has used
        found = linear_cross_entropy(hidden, decoder, target, precision, space) / 64
        grads = torch.autograd.grad(found, parameters)
    exact = precision == "float32"
    assert found.item() == pytest.approx(plain.item(), abs=5e-6 if exact else 0.02)
    for one, other in zip(grads, expected, strict=True):
        assert (one - other).norm() <= (1e-6 if exact else 0.02) * other.norm()
    with torch.no_grad():
        assert linear_cross_entropy(hidden, decoder, target).item() == pytest.approx(
            64 * plain.item(), rel=1e-6
        )


def test_dropout_acts_in_training_only_and_keeps_the_mean(global_state_untouched):
    model = LanguageModel(LanguageConfig(width=8, hidden=8), 30, seed=1)
    tokens = torch.zeros(5, 2, dtype=torch.long)
    with torch.no_grad():
        assert torch.equal(model(tokens)[0], model(tokens)[0])
        assert not torch.equal(model(tokens, torch.Generator().manual_seed(0))[0], model(tokens)[0])
    draws = torch.Generator().manual_seed(0)
    assert model._drop(torch.ones(100_000), draws).mean() == pytest.approx(1, abs=0.01)


# --- trainer ---------------------------------------------------------------------------------------------------------


def test_one_step_is_adam_on_the_clipped_mean_cross_entropy(corpus):
    config = LanguageConfig(width=8, hidden=8, steps=1, batch=4, context=5, dropout=0.0, clip=0.05)
    run = LanguageRun(corpus, config, 1)
    plain = LanguageModel(config, len(corpus.vocabulary), 1)
    run.advance(1)
    tokens = torch.as_tensor(corpus.train).long()[: len(corpus.train) // 4 * 4].view(4, -1).T
    score = plain.decoder(plain(tokens[:5])[0])
    optimizer = torch.optim.Adam(plain.parameters(), 1e-4)
    torch.nn.functional.cross_entropy(score.flatten(0, 1), tokens[1:6].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
    optimizer.step()
    for one, other in zip(run.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-6)


def test_validation_covers_every_token_once(corpus):
    run = LanguageRun(corpus, SMALL, 1)
    valid = torch.as_tensor(corpus.valid).long()
    valid = valid[: len(valid) // 10 * 10].view(10, -1).T
    pairs = [
        (t.flatten(), y.flatten(), torch.arange(len(t)).repeat_interleave(t.shape[1]))
        for t, y in run._validation()
    ]
    tokens, targets, _ = (torch.cat(column) for column in zip(*pairs, strict=True))
    assert sorted(zip(tokens.tolist(), targets.tolist(), strict=True)) == sorted(
        zip(valid[:-1].flatten().tolist(), valid[1:].flatten().tolist(), strict=True)
    )
    with torch.no_grad():
        total = sum(
            torch.nn.functional.cross_entropy(
                run.model.decoder(run.model(t)[0]).flatten(0, 1), y.flatten(), reduction="sum"
            )
            for t, y in run._validation()
        )
    assert run.loss() == pytest.approx(float(total) / len(tokens), rel=1e-6)


def test_first_entropies_are_near_uniform_and_the_first_query_has_none(corpus):
    run = LanguageRun(corpus, SMALL, 1)
    entropies = run.entropies()
    assert entropies.shape[0] == 2 and entropies.shape[2] == 5
    assert float(entropies[..., 0].abs().max()) == 0
    assert (entropies <= torch.arange(1, 6).double().log() + 1e-6).all()
    valid = run.valid[:5, :1]
    with torch.no_grad():
        _, maps = run.model(valid)
    by_hand = [-(m[0, 0] * (m[0, 0] + 1e-8).log()).sum(-1).mean() for m in maps]
    torch.testing.assert_close(published_entropy(run.model, run.valid), torch.stack(by_hand))


def test_record_has_named_dimensions_provenance_and_survives_saving(corpus, tmp_path):
    found = train_language(corpus, SMALL, seeds=[2, 1], folder=tmp_path)
    assert dict(found.sizes) == {"seed": 2, "step": 13, "layer": 2, "head": 1, "query": 5}
    assert found.step.values.tolist() == [*range(0, 23, 2), 23]
    measured = found.validation_loss.sel(seed=1).notnull()
    assert found.step.values[measured].tolist() == [0, 6, 12, 18, 23]
    assert found.train_loss.isel(seed=0, step=-1) < found.train_loss.isel(seed=0, step=1)
    assert found.stable_rank_lower.min() >= 1 and found.stable_rank_query_key.max() <= 8
    xr.testing.assert_identical(
        runs.load_run(runs.save_run(found, tmp_path / "all")).drop_attrs(), found.drop_attrs()
    )
    assert found.attrs["data_fingerprint"] == corpus.fingerprint
    again = train_language(corpus, SMALL, seeds=[2, 1], folder=tmp_path)
    xr.testing.assert_identical(again.drop_attrs(), found.drop_attrs())


def test_adam_restarts_each_epoch_only_if_asked(corpus):
    kept = LanguageRun(corpus, SMALL, 1)
    assert kept.epoch == -(-(len(corpus.train) // 8 - 1) // 5) == 18
    kept.advance(19)
    state = kept.optimizer.state_dict()["state"][0]["step"]
    assert float(state) == 1
    other = LanguageRun(corpus, replace(SMALL, restart=False), 1).advance(19)
    assert float(other.optimizer.state_dict()["state"][0]["step"]) == 19


def test_linear_activation_and_no_positions_change_the_run(corpus):
    losses = {
        float(LanguageRun(corpus, replace(SMALL, **change), 1).advance(4).measured["train_loss"][-1])
        for change in ({}, {"activation": "linear"}, {"positions": False}, {"dropout": 0.0})
    }
    assert len(losses) == 4


def test_global_state_is_left_alone(corpus, global_state_untouched):
    LanguageRun(corpus, SMALL, 1).advance(3)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 0},
        {"width": 7},
        {"heads": 3},
        {"dropout": 1.0},
        {"lr": 0.0},
        {"validate_every": 75},
        {"activation": "tanh"},
        {"precision": "float16"},
    ],
)
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        LanguageConfig(**change)


def test_short_splits_bad_seeds_and_divergence_are_refused(corpus):
    with pytest.raises(ValueError, match="the train split has 720 tokens"):
        LanguageRun(corpus, LanguageConfig(context=36), 1)
    with pytest.raises(ValueError, match="seeds are"):
        train_language(corpus, SMALL, seeds=[1, 1])
    with pytest.raises(TypeError, match=r"seed is 1\.5"):
        train_language(corpus, SMALL, seeds=[1.5])
    run = LanguageRun(corpus, SMALL, 1)
    with torch.no_grad():
        run.model.decoder.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="loss of seed 1 is not finite at step 2; lower lr"):
        run.advance(2)


# --- killed and started again ----------------------------------------------------------------------------------------


def test_stopped_at_twenty_points_it_ends_with_the_same_numbers(corpus, tmp_path):
    whole = LanguageRun(corpus, SMALL, 1).advance(23)
    chooser = random.Random(0)
    for case in range(20):
        path = tmp_path / f"{case}.pt"
        LanguageRun(corpus, SMALL, 1).advance(chooser.randrange(23)).save(path)
        other = LanguageRun(corpus, SMALL, 1).load(path)
        other.advance(23 - other.step)
        xr.testing.assert_identical(other.dataset().drop_attrs(), whole.dataset().drop_attrs())
        for one, two in zip(whole.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(one, two)


_KILLED = """
import sys
from joma_lib.language import LanguageConfig, synthetic_corpus, train_language
corpus = synthetic_corpus(tokens=800, words=40, topics=2, seed=3)
config = LanguageConfig(layers=2, width=8, hidden=12, steps=400, batch=8, context=5, lr=1e-2, record_every=20,
                        validate_every=100)
print("ready", flush=True)
train_language(corpus, config, folder=sys.argv[1], every=3)
print("done", flush=True)
"""


def _kill_and_finish(folder: Path, delays: list[float]) -> xr.Dataset:
    for delay in [*delays, None]:
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        if delay is None:
            assert process.communicate()[0] == "done\n"
        else:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        for path in folder.glob("seed-*"):
            (torch.load if path.suffix == ".pt" else runs.load_run)(path)  # never a half-written file
    return runs.load_run(folder / "seed-1.nc")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_with_the_same_numbers(tmp_path, kills):
    chooser = random.Random(kills)
    killed = _kill_and_finish(tmp_path / "a", [chooser.uniform(0.02, 0.5) for _ in range(kills)])
    whole = _kill_and_finish(tmp_path / "b", [])
    xr.testing.assert_identical(killed.drop_attrs(), whole.drop_attrs())


def test_states_that_are_damaged_or_of_another_setting_are_refused(corpus, tmp_path):
    path = tmp_path / "seed-1.pt"
    LanguageRun(corpus, SMALL, 1).advance(4).save(path)
    assert reached_language(tmp_path, seeds=[1]).step.values.tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="of another seed"):
        LanguageRun(corpus, SMALL, 2).load(path)
    other = synthetic_corpus(tokens=800, words=40, topics=2, seed=4)
    with pytest.raises(ValueError, match="of another data_fingerprint"):
        LanguageRun(other, SMALL, 1).load(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"seed-1\.pt is damaged"):
        train_language(corpus, SMALL, folder=tmp_path)
    with pytest.raises(ValueError, match="holds no seed"):
        reached_language(tmp_path, seeds=[7])


# --- the published facts ---------------------------------------------------------------------------------------------


@with_wikitext
def test_counts_and_first_entropies_are_the_published_ones():
    corpus = load_wikitext("wikitext-2", WIKITEXT)
    assert len(corpus.train) == 2_049_990 and len(corpus.vocabulary) == 28_782
    published = {1: 2.4952304, 2: 2.4949343, 3: 2.5417387}
    valid = torch.as_tensor(corpus.valid).long()
    valid = valid[: len(valid) // 10 * 10].view(10, -1).T
    for seed, entropy in published.items():
        for lr in (1e-4, 1e-2):
            model = LanguageModel(LanguageConfig(lr=lr), len(corpus.vocabulary), seed)
            assert abs(float(published_entropy(model, valid)) - entropy) < 2e-7
    assert -(-(len(corpus.train) // 20 - 1) // 35) == 2929


@pytest.mark.cuda
def test_trains_on_a_gpu(corpus):
    found = train_language(corpus, SMALL, device="cuda")
    expected = train_language(corpus, SMALL)
    start = [run.entropy_one_sequence.isel(step=0).values for run in (found, expected)]
    np.testing.assert_allclose(*start, rtol=1e-4)
