"""`joma measure`, `joma audit`, `joma check-adapter`, `joma figure 7`: tables, exit codes, refusals in a sentence."""

from __future__ import annotations

import csv
import io
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_decoders import tiny, tokens

from joma_lib import runs
from joma_lib.cli import main
from joma_lib.pretrained import check_adapter, measure


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    root = tmp_path_factory.mktemp("suite")
    for step in (0, 2, 10):
        tiny("gpt_neox", seed=step).save_pretrained(root / f"step{step}")
    (root / "ids.json").write_text(json.dumps([row.tolist() for row in tokens()] + [[1, 2, 3]]))
    return root


def test_a_model_is_measured(series, capsys):
    assert main(["measure", str(series / "step2"), "--ids", str(series / "ids.json"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    ids = torch.nn.functional.pad(tokens(), (0, 0, 0, 1))
    ids[3, :3] = torch.tensor([1, 2, 3])
    mask = torch.ones_like(ids)
    mask[3, 3:] = 0
    found = measure(tiny("gpt_neox", seed=2), ids, mask)
    np.testing.assert_allclose(
        [row["entropy"] for row in rows], found.attention_entropy.mean("head"), rtol=1e-6
    )
    np.testing.assert_allclose(
        [row["stable_rank_lower"] for row in rows], found.stable_rank.sel(matrix="lower"), rtol=1e-6
    )


def test_a_series_is_measured_kept_and_drawn(series, tmp_path, capfd):
    words = [
        "measure",
        str(series),
        "--ids",
        str(series / "ids.json"),
        "--steps",
        "10",
        "0",
        "--folder",
        str(tmp_path / "k"),
    ]
    assert main([*words, "--csv", "--out", str(tmp_path / "run.nc")]) == 0
    out, err = capfd.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["step"], row["layer"]) for row in rows] == [("0", "0"), ("0", "1"), ("10", "0"), ("10", "1")]
    assert "measure" in err  # progress, on stderr only
    assert main([*words, "--quiet"]) == 0
    quiet = capfd.readouterr()
    assert "step/s" not in quiet.err and quiet.out.splitlines()[0].split()[:2] == ["step", "layer"]
    assert runs.load_run(tmp_path / "run.nc").step.values.tolist() == [0, 10]
    assert main(["figure", "7", "--run", str(tmp_path / "run.nc"), "--out", str(tmp_path / "7.png")]) == 0
    assert (tmp_path / "7.png").stat().st_size > 10_000


def test_text_is_cut_by_the_tokenizer(series, tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(40)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="w0").save_pretrained(tmp_path / "t")
    ids = tokens(3, 8)
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in ids.flatten().tolist()) + " w1 w2")
    call = [
        "measure",
        str(series / "step0"),
        "--text",
        str(tmp_path / "text.txt"),
        "--tokenizer",
        str(tmp_path / "t"),
    ]
    assert main([*call, "--length", "8", "--no-weights", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = measure(tiny("gpt_neox", seed=0), ids, weights=False).attention_entropy.mean("head")
    np.testing.assert_allclose([row["entropy"] for row in rows], found, rtol=1e-6)
    assert main([*call, "--length", "100"]) == 2 and "fewer than the 100" in capsys.readouterr().err
    assert main([*call, "--length", "1"]) == 2 and "at least 2 and 1" in capsys.readouterr().err
    assert main(call[:-2]) == 2 and "no tokenizer that loads here" in capsys.readouterr().err


def test_an_audit_sets_the_exit_code(series, tmp_path, capsys):
    assert main(["audit", str(series), "--quiet"]) == 0
    assert "0 finding(s) in 3 steps" in capsys.readouterr().out
    shutil.copytree(series, tmp_path / "s")
    shutil.copy(series / "step2" / "model.safetensors", tmp_path / "s" / "step10" / "model.safetensors")
    assert main(["audit", str(tmp_path / "s"), "--quiet"]) == 1
    assert "all weights equal step 2" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "s"), "--quiet", "--json"]) == 1
    assert [row["repeats"] for row in json.loads(capsys.readouterr().out)] == [
        "",
        "",
        "all weights equal step 2",
    ]


ADAPTER = """
import torch
from test_pretrained import Own, own_maps as attention_maps, own_matrices as matrices
model = Own()
input_ids = torch.tensor([[1, 2, 3, 4]])
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", None),
        ("def attention_maps(m, i, a): return [m.maps(i, a)[:, 0]]", "shape"),
        ("def attention_maps(m, i, a): return [m.maps(i, a) * 2]", "rows sum to 1"),
        ("def attention_maps(m, i, a): return [m.maps(i, a, causal=False)]", "future"),
        ("def attention_maps(m, i, a): return [m.maps(i, torch.ones_like(i))]", "padding on the left"),
        ("def attention_maps(m, i, a): return [m.maps(i[:1, :4], a[:1, :4])]", "padding on the left"),
        ("def matrices(m): return []", "as many mappings"),
        ("def matrices(m): return [{'lower': m.up, 'upper': m.down, 'query': m.q.T.reshape(2, 3, 6), 'key': m.k.T.reshape(2, 3, 6)}]", "outputs, inputs"),
        ("def matrices(m): return [{'lower': m.up, 'upper': m.down}]", "outputs, inputs"),
        ("def matrices(m): return [{'lower': m.up.T}]", "names its matrices"),
        ("def matrices(m): return [{'lower': m.up.T, 'upper': m.down.T, 'query': m.q[None], 'key': m.k[None]}]", "head width"),
        ("def matrices(m): return [{'lower': m.up.T * 0, 'upper': m.down.T}]", "measure runs"),
    ],
)  # fmt: skip
def test_adapters_are_checked(change, said, tmp_path, capsys):
    file = tmp_path / "adapter.py"
    file.write_text(ADAPTER + change)
    assert main(["check-adapter", str(file), "--json"]) == int(said is not None)
    rows = json.loads(capsys.readouterr().out)
    wrong = [row["name"] for row in rows if not row["passed"]]
    assert wrong == [] if said is None else said in wrong[0]
    assert main(["check-adapter", str(file)]) == int(said is not None)
    assert ("WRONG" in capsys.readouterr().out) == (said is not None)


def test_a_checked_adapter_may_see_both_sides():
    from test_pretrained import Own

    both = lambda m, i, a: [m.maps(i, a, causal=False)]  # noqa: E731
    assert all(check.passed for check in check_adapter(Own(), [[1, 2, 3]], attention_maps=both, causal=False))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure", "nowhere", "--ids", "IDS"], "neither a folder nor a hub repository"),
        (["measure", "SERIES"], "required"),
        (["measure", "EleutherAI/pythia-70m", "--ids", "IDS"], "cannot be loaded by transformers"),
        (["measure", "SERIES", "--ids", "BAD"], "JSON list of lists"),
        (["measure", "SERIES", "--ids", "IDS", "--steps", "one"], "'one' is no number"),
        (["measure", "SERIES", "--ids", "IDS", "--steps", "7"], "not among"),
        (["audit", "EleutherAI/pythia-70m"], "say which steps"),
        (["audit", "EleutherAI/pythia-70m", "--steps", "pythia", "--quiet"], "cannot be reached"),
        (["check-adapter", "nothing.py"], "no Python file"),
        (["check-adapter", "EMPTY"], "does not define model, input_ids, attention_maps"),
        (["figure", "7"], "joma measure EleutherAI/pythia-70m"),
    ],
)
def test_bad_input_is_exit_2(words, said, series, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "empty.py").write_text("")
    names = {
        "SERIES": series,
        "IDS": series / "ids.json",
        "BAD": tmp_path / "bad.json",
        "EMPTY": tmp_path / "empty.py",
    }
    assert main([str(names.get(word, word)) for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
