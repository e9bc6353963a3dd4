"""`joma train wikitext` and `joma sweep`: what they train, write, print and refuse."""

from __future__ import annotations

import argparse
import json

import pytest

pytest.importorskip("torch")

from joma_lib import _language_data, runs
from joma_lib.cli import _sweep, _wikitext
from joma_lib.language import synthetic_corpus

SMALL = ["--width=8", "--hidden=8", "--batch=4", "--context=5", "--record-every=2", "--validate-every=4"]


def arguments(module, *words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(list(words))


@pytest.fixture
def source(monkeypatch):
    corpus = synthetic_corpus(tokens=800, words=40, topics=2)
    import joma_lib.language

    monkeypatch.setattr(joma_lib.language, "load_wikitext", lambda *a, **k: corpus)


def test_train_writes_what_it_prints_and_goes_on(source, tmp_path, capsys):
    words = [
        "--folder",
        str(tmp_path),
        "--seeds",
        "1",
        "2",
        "--steps=6",
        "--lr=1e-3",
        "--no-positions",
        *SMALL,
    ]
    assert (
        _wikitext.run(arguments(_wikitext, *words, "--quiet", "--json", "--out", str(tmp_path / "all.nc")))
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == [1, 2] and rows[0]["steps"] == 6
    found = runs.load_run(tmp_path / "all.nc")
    assert rows[1]["lowest"] == float(found.entropy_one_sequence.sel(seed=2).min())
    assert json.loads(found.attrs["config"])["positions"] is False
    command = found.attrs["command"]
    assert "--no-positions" in command and "--seeds 1 2" in command and str(tmp_path) not in command
    again = arguments(_wikitext, *command.split()[3:])
    assert (again.lr, again.steps, again.positions, again.seeds) == (1e-3, 6, False, [1, 2])
    assert _wikitext.run(arguments(_wikitext, *words, "--quiet")) == 0
    out = capsys.readouterr()
    assert out.out.startswith("seed 1, 6 steps: entropy of layer 1 from") and out.err == ""


def test_progress_goes_to_stderr_only(source, tmp_path, capsys):
    _wikitext.run(arguments(_wikitext, "--folder", str(tmp_path), "--steps=2", "--json", *SMALL))
    out = capsys.readouterr()
    json.loads(out.out)
    assert "step/s" in out.err


def test_sweep_makes_a_folder_a_setting_and_a_job_a_seed(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('source = "text"\nseeds = [1, 2]\nsteps = 3\n[grid]\nlr = [1e-4, 1e-3]\nlayers = [1]\n')
    jobs = _sweep.jobs_of(str(file), "out")
    assert len(jobs) == 4 and len({job["folder"] for job in jobs.values()}) == 2
    one = jobs["lr=0.001-layers=1-seed=2"]
    assert (one["lr"], one["seeds"], one["steps"], one["source"]) == (0.001, [2], 3, "text")


def test_sweep_goes_on_after_a_failure(tmp_path, capsys):
    folder = tmp_path / "text"
    folder.mkdir()
    file = tmp_path / "grid.toml"
    file.write_text(f'source = "{folder}"\n[grid]\nlr = [1e-4, 1e-3]\n')
    words = [str(file), "--folder", str(tmp_path / "out"), "--jobs", "2", "--json"]
    assert _sweep.run(arguments(_sweep, *words)) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["job"] for row in rows] == ["lr=0.0001-seed=1", "lr=0.001-seed=1"]
    assert all("lacks train.txt" in row["failed"] for row in rows)


def test_sweep_trains_each_job_once(source, tmp_path, monkeypatch, capsys):
    file = tmp_path / "grid.toml"
    file.write_text(
        "width = 8\nhidden = 8\nbatch = 4\ncontext = 5\nsteps = 4\nrecord_every = 2\nvalidate_every = 4\n"
        "[grid]\nlr = [1e-3, -1.0]\nseeds = [1, 2]\n"
    )

    def job(settings, threads):
        entropy = _wikitext.train(settings).entropy_one_sequence
        return {"lowest": float(entropy.min()), "last": float(entropy[0, -1, 0])}

    monkeypatch.setattr(_sweep, "_job", job)
    assert _sweep.run(arguments(_sweep, str(file), "--folder", str(tmp_path / "out"))) == 1
    out = capsys.readouterr()
    assert "2 of 4 jobs failed: lr=-1.0-seed=1, lr=-1.0-seed=2" in out.err
    assert sorted(p.name for p in (tmp_path / "out" / "lr=0.001").iterdir()) == ["seed-1.nc", "seed-2.nc"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = [", "is no TOML"),
        ("rate = 1", "names 'rate'"),
        ("[grid]\nlr = 1e-4", "lr in .grid. is 0.0001"),
    ],
)
def test_bad_grids_are_refused(tmp_path, text, message):
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        _sweep.jobs_of(str(file), "out")
    with pytest.raises(ValueError, match="cannot be read"):
        _sweep.jobs_of(str(tmp_path / "none.toml"), "out")


def test_the_data_sets_offered_are_those_of_the_loader():
    parser = argparse.ArgumentParser()
    _wikitext.add_arguments(parser)
    (data,) = (action for action in parser._actions if action.dest == "data")
    assert list(data.choices) == list(_language_data._CHECKSUMS)
