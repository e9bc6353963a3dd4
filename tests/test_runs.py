"""Recorded runs survive a round trip and refuse what is not one."""

from __future__ import annotations

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
import xarray as xr

from joma_lib import runs

ATTRIBUTES = {
    "schema_version",
    "config",
    "seeds",
    "device",
    "versions",
    "wall_seconds",
    "git_commit",
    "git_dirty",
    "data_fingerprint",
    "sha256",
}


@pytest.fixture
def run() -> xr.Dataset:
    rng = np.random.default_rng(0)
    dataset = xr.Dataset(
        {
            "loss": (("seed", "step"), rng.normal(size=(2, 3)), {"units": "nats"}),
            "v": (("seed", "node", "token"), rng.normal(size=(2, 4, 5)).astype(np.float32)),
            "kept": ("token", np.array([True, False, True, True, False])),
            "name": ("node", np.array(["a", "b", "c", "δ"])),
            "gap": ("step", np.array([np.nan, np.inf, -0.0])),
            "total": ((), 3.5),
        },
        coords={"seed": [7, 9], "step": [0, 10, 20]},
    )
    dataset.attrs.update(runs.provenance({"eta": 0.1}, seeds=[7, 9], device="cpu", wall_seconds=1.5))
    return dataset


def test_round_trip_keeps_values_types_and_attributes(run, tmp_path):
    path = runs.save_run(run, tmp_path / "demo")
    back = runs.load_run(path)
    xr.testing.assert_equal(run, back)
    for name in ("loss", "v", "kept", "seed", "step"):
        assert back[name].dtype == run[name].dtype
    assert set(back.attrs) == ATTRIBUTES
    assert json.loads(back.attrs["config"]) == {"eta": 0.1}
    assert json.loads(back.attrs["seeds"]) == [7, 9]
    assert back.loss.attrs["units"] == "nats"
    assert back.attrs["sha256"] == runs.content_hash(run)
    assert "sha256" not in run.attrs  # the caller's object is left alone
    again = runs.load_run(runs.save_run(back, tmp_path / "again.nc"))
    assert again.attrs == back.attrs


def test_missing_provenance_is_filled_in(tmp_path):
    bare = xr.Dataset({"loss": ("seed", [1.0, 2.0])}, coords={"seed": [3, 4]})
    back = runs.load_run(runs.save_run(bare, tmp_path / "bare.nc"))
    assert set(back.attrs) == ATTRIBUTES
    assert (back.attrs["device"], back.attrs["seeds"]) == ("unknown", "[3, 4]")
    assert "numpy" in json.loads(back.attrs["versions"])


def test_a_file_that_is_no_run_is_refused_in_one_sentence(run, tmp_path):
    path = runs.save_run(run, tmp_path / "demo.nc")
    whole = path.read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.nc").write_text("not a run")
    (tmp_path / "empty.nc").write_bytes(b"")
    run.drop_attrs().to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    for name in ("cut.nc", "text.nc", "empty.nc", "foreign.nc", "absent.nc", "."):
        with pytest.raises(ValueError) as caught:
            runs.load_run(tmp_path / name)
        assert "\n" not in str(caught.value) and ". " not in str(caught.value).removeprefix(str(tmp_path))


@pytest.mark.parametrize("change", ["value", "attribute", "name", "units", "version"])
def test_a_changed_file_is_refused(run, tmp_path, change):
    path = runs.save_run(run, tmp_path / "demo.nc")
    with h5py.File(path, "r+") as file:
        if change == "value":
            file["loss"][0, 0] += 1e-12
        elif change == "attribute":
            file.attrs["device"] = "cuda"
        elif change == "name":
            file.move("loss", "gain")
        elif change == "units":
            file["loss"].attrs["units"] = "bits"
        else:
            file.attrs["schema_version"] = 99
    with pytest.raises(ValueError, match=r"changed|newer"):
        runs.load_run(path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # h5netcdf's half-open file
def test_single_flipped_bytes_never_pass_silently(run, tmp_path):
    path = runs.save_run(run, tmp_path / "demo.nc")
    whole, good = bytearray(path.read_bytes()), runs.load_run(path)
    for at in np.random.default_rng(1).integers(0, len(whole), 60):
        broken = whole.copy()
        broken[at] ^= 0x10
        path.write_bytes(broken)
        try:
            back = runs.load_run(path)
        except ValueError:
            continue
        xr.testing.assert_identical(back, good)  # only bytes that carry nothing may change unnoticed


def test_an_older_file_survives_a_failed_save(run, tmp_path):
    path = runs.save_run(run, tmp_path / "demo.nc")
    before = path.read_bytes()
    for bad in (run.assign(half=("step", np.zeros(3, np.float16))), run.assign_attrs(note=None)):
        with pytest.raises(ValueError):
            runs.save_run(bad, path)
    with pytest.raises(TypeError):
        runs.save_run(run.loss, path)
    with pytest.raises(ValueError, match="does not exist"):
        runs.save_run(run, tmp_path / "nowhere" / "demo.nc")
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["demo.nc"]


def test_list_runs(run, tmp_path):
    runs.save_run(run, tmp_path / "b")
    runs.save_run(run, tmp_path / "a")
    assert runs.list_runs(tmp_path) == [str(tmp_path / "a.nc"), str(tmp_path / "b.nc")]
    for name in runs.list_runs():
        runs.load_run(name)
    with pytest.raises(ValueError, match="not a folder"):
        runs.list_runs(tmp_path / "a.nc")


def test_provenance_of_arrays_and_dataclasses():
    torch = pytest.importorskip("torch")
    x = np.arange(6.0).reshape(2, 3)
    attributes = runs.provenance({"x": x}, data=x)
    assert attributes["data_fingerprint"] == runs.fingerprint(torch.from_numpy(x)) == runs.fingerprint(x)
    assert json.loads(attributes["config"])["x"] == {"shape": [2, 3], "sha256": runs.fingerprint(x)}
    assert runs.fingerprint(x) != runs.fingerprint(x.T.copy()) != runs.fingerprint(x.reshape(3, 2))
    with pytest.raises(TypeError, match="mapping"):
        runs.provenance("eta=0.1")


def test_commit_is_unknown_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "site-packages" / "joma_lib" / "runs.py"))
    assert runs.provenance({})["git_commit"] == "unknown"


def test_import_brings_no_torch():
    code = "import sys, joma_lib.runs; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
