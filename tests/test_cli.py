"""The `joma` command: exit codes, one sentence for bad input, machine-readable tables."""

from __future__ import annotations

import csv
import io
import json

import pytest

pytest.importorskip("torch")

from joma_lib import runs
from joma_lib.cli import _figure as figure_command
from joma_lib.cli import main


def test_runs_are_listed_and_checked(capsys, tmp_path):
    assert main(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == runs.list_runs() and {row["state"] for row in rows} <= {"ok"}
    assert main(["runs", "--csv"]) == 0
    assert [row["name"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == runs.list_runs()
    (tmp_path / "broken.nc").write_bytes(b"nothing")
    assert main(["runs", "--folder", str(tmp_path)]) == 1
    assert "broken.nc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["figure", "99"], "figure '99' is unknown"),
        (["figure", "8", "--run", "x"], "leave it out"),
        (["figure", "6", "--run", "nothing.nc"], "nothing.nc"),
        (["runs", "--folder", "/no/such"], "not a folder"),
        (["train", "hierarchy", "--folder", "F", "--children", "0"], "children"),
        (["train"], "required"),
        (["nonsense"], "invalid choice"),
    ],
)
def test_bad_input_is_exit_2_and_one_sentence(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_figures_are_written(tmp_path, capsys):
    for number in ("4", "6", "8"):
        target = tmp_path / f"{number}.png"
        assert main(["figure", number, "--out", str(target)]) == 0
        assert target.stat().st_size > 10_000
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_hierarchy_trains_and_resumes(tmp_path, capsys):
    words = [
        "train",
        "hierarchy",
        "--folder",
        str(tmp_path / "h"),
        "--latents",
        "4",
        "5",
        "--classes",
        "4",
        "--width",
        "8",
    ]
    words += ["--steps", "2", "--quiet", "--json"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "run.nc")]) == 0
    assert capsys.readouterr().out == first and len(json.loads(first)) == 2
    assert runs.load_run(str(tmp_path / "run.nc")).sizes["seed"] == 1


def test_an_interrupt_is_130(monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(figure_command._FIGURES, "2", stop)
    assert main(["figure", "2"]) == 130
    assert "interrupted" in capsys.readouterr().err
