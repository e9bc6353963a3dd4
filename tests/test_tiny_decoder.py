"""The tiny suites: files as the public ones have them, the same from run to run, learnable."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from joma_lib import runs
from joma_lib.cli import main
from joma_lib.pretrained import audit_series
from joma_lib.tiny_decoder import FAMILIES, new_decoder, phrases, saved_steps, train_decoder, train_suite


def test_a_phrase_is_said_twice_with_zipfs_frequencies(global_state_untouched):
    ids = phrases(4000, torch.Generator().manual_seed(0))
    assert ids.shape == (4000, 32) and torch.equal(ids[:, :16], ids[:, 16:])
    share = np.bincount(ids.flatten().numpy(), minlength=64) / ids.numel()
    expected = np.append(0, 1 / np.arange(1, 64)) / (1 / np.arange(1, 64)).sum()
    np.testing.assert_allclose(share, expected, atol=0.005)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_series_is_kept_once_and_repeats_itself(family, tmp_path, global_state_untouched):
    losses = train_decoder(family, tmp_path / "a", steps=6, keep=[0, 1, 6])
    assert losses == pytest.approx(train_decoder(family, tmp_path / "b", steps=6, keep=[0, 1, 6]), abs=1e-5)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "step0",
        "step1",
        "step6",
        "trained.json",
    ]
    first, second = (audit_series(tmp_path / one) for one in "ab")
    assert first.fingerprints[0] == second.fingerprints[0] and first.repeats == ()
    before = (tmp_path / "a" / "step6" / "model.safetensors").stat().st_mtime_ns
    assert train_decoder(family, tmp_path / "a", steps=6, keep=[0, 1, 6]) == pytest.approx(losses, abs=1e-6)
    assert (tmp_path / "a" / "step6" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds another training"):
        train_decoder(family, tmp_path / "a", steps=7)


def test_training_lowers_the_loss(tmp_path):
    losses = train_decoder("opt", tmp_path, steps=40, keep=[40])
    assert losses[-1] < losses[0] - 0.3 and len(losses) == 41


def test_the_command_makes_a_run(tmp_path, capsys):
    words = [
        "train",
        "decoder",
        "--family",
        "opt",
        "--folder",
        str(tmp_path / "f"),
        "--seeds",
        "0",
        "1",
        "--steps",
        "2",
    ]
    assert main([*words, "--quiet", "--json", "--out", str(tmp_path / "run.nc")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["seed"], row["step"]) for row in rows] == [(s, t) for s in (0, 1) for t in (0, 1, 2)]
    run = runs.load_run(tmp_path / "run.nc")
    assert run.sizes["seed"] == 2 and run.attrs["command"].startswith("joma train decoder --family opt")
    assert float(run.stable_rank.sel(seed=0, step=0, matrix="lower").mean()) == pytest.approx(
        rows[0]["stable_rank_lower"]
    )
    assert main(["train", "decoder", "--folder", str(tmp_path / "g"), "--family", "bert"]) == 2
    assert "use one of gpt_neox, opt" in capsys.readouterr().err
    assert main([*words, "--steps", "0"]) == 2


def test_refusals_and_steps():
    assert saved_steps(1) == [0, 1] and saved_steps(1000)[-3:] == [500, 750, 1000]
    with pytest.raises(ValueError, match="family is 'gpt2'"):
        new_decoder("gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_suites_are_what_the_command_makes(family, tmp_path):
    name = f"decoder-{family}"
    if name not in runs.list_runs():
        pytest.fail(f"{name} is missing from the package")
    recorded = runs.load_run(name)
    suite = train_suite(family, tmp_path, seeds=[0], steps=4)
    for step in (0, 1, 2, 4):
        for variable in ("attention_entropy", "stable_rank", "train_loss"):
            ours, theirs = (one[variable].sel(seed=0, step=step) for one in (suite, recorded))
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, err_msg=variable)
