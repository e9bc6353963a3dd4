"""Series of checkpoints: laid out as the public suites are, measured one at a time, audited for copies."""

from __future__ import annotations

import json
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_decoders import tiny, tokens

from joma_lib import _checkpoints, _series
from joma_lib.pretrained import audit_series, measure, measure_series

STEPS = (0, 1, 2, 512, 1000, 10_000)


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


def save_bin(model, folder):
    """The older layout: a pickle of the state dict beside the config."""
    folder.mkdir(parents=True)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    root = tmp_path_factory.mktemp("suite")
    for step in STEPS:
        save(tiny("gpt_neox", seed=step), root / f"step{step}")
    return root


def plant(series, tmp_path, **tensors):
    """A copy of the series in which step 1000 has the tensors of step 512 whose names hold `part`."""
    from safetensors.torch import load_file, save_file

    root = tmp_path / "planted"
    shutil.copytree(series, root)
    mine, other = (load_file(root / f"step{step}" / "model.safetensors") for step in (1000, 512))
    part = tensors["part"]
    mine |= {name: value for name, value in other.items() if part in name}
    save_file(mine, root / "step1000" / "model.safetensors", metadata={"format": "pt"})
    return root


def test_a_clean_series_has_no_findings(series):
    audit = audit_series(series)
    assert audit.steps == STEPS and audit.repeats == () and "0 finding(s) in 6 steps" in str(audit)
    assert all(row["repeats"] == "" for row in audit.rows())
    names = set(audit.fingerprints[0])
    assert len(names) == sum(p.numel() > 0 for p in tiny("gpt_neox").parameters())


def test_a_copied_step_is_named(series, tmp_path):
    audit = audit_series(plant(series, tmp_path, part=""))
    assert [str(one) for one in audit.findings] == ["step 1000: all weights equal step 512"]


def test_a_copied_layer_and_a_copied_tensor_are_named(series, tmp_path):
    (one,) = audit_series(plant(series, tmp_path / "a", part="layers.1.")).findings
    assert (one.step, one.same_as, one.parts) == (1000, 512, ("layer 1",))
    (one,) = audit_series(plant(series, tmp_path / "b", part="embed_in")).findings
    assert one.parts == ("gpt_neox.embed_in.weight",)
    (one,) = audit_series(plant(series, tmp_path / "c", part="layers.0.mlp")).findings
    assert one.parts == ("layer 0 (4 of 12 tensors)",)


def test_one_wrong_shard_is_found(tmp_path):
    for step in (0, 5, 9):
        save(tiny("opt", seed=step, layers=4), tmp_path / f"step{step}", max_shard_size="30KB")
    shards = sorted((tmp_path / "step0").glob("*.safetensors"))
    assert len(shards) > 2 and audit_series(tmp_path).findings == ()
    shutil.copy(tmp_path / "step9" / shards[1].name, tmp_path / "step5" / shards[1].name)
    (found,) = audit_series(tmp_path).findings
    assert (found.step, found.same_as) == (9, 5) and any(part.startswith("layer") for part in found.parts)


def test_pythias_first_steps_are_reported_and_no_finding(series, tmp_path):
    root = tmp_path / "pythia-tiny"
    shutil.copytree(series, root)
    for step in (1, 2):
        shutil.copy(root / "step0" / "model.safetensors", root / f"step{step}" / "model.safetensors")
    audit = audit_series(root)
    assert audit.findings == () and [(one.step, one.same_as) for one in audit.repeats] == [(1, 0), (2, 0)]
    shutil.copy(root / "step512" / "model.safetensors", root / "step1000" / "model.safetensors")
    assert [one.step for one in audit_series(root).findings] == [1000]  # later copies are findings there too
    shutil.copytree(root, tmp_path / "other", ignore=shutil.ignore_patterns("step1000"))
    assert len(audit_series(tmp_path / "other").findings) == 2


def test_constants_buffers_and_tied_copies_do_not_count(tmp_path):
    from safetensors.torch import save_file

    for step in (0, 1):
        w = torch.randn(3, 2, generator=torch.Generator().manual_seed(step))
        state = {
            "layers.0.w": w, "layers.0.bias": torch.zeros(3), "layers.0.norm": torch.ones(3, dtype=torch.bfloat16),
            "tied.w": w.clone(), "rotary_emb.inv_freq": torch.arange(3.0), "h.0.attn.bias": torch.eye(3),
            "mask": torch.eye(3, dtype=torch.bool),
        }  # fmt: skip
        (tmp_path / f"step{step}").mkdir()
        save_file(state, tmp_path / f"step{step}" / "model.safetensors")
    audit = audit_series(tmp_path)
    assert audit.repeats == () and [list(one) for one in audit.fingerprints.values()] == [["layers.0.w"]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pickles_give_the_same_fingerprints_and_numbers(dtype, tmp_path):
    model = tiny("opt").to(dtype)
    one, two = save(model, tmp_path / "step0"), save_bin(model, tmp_path / "step1")
    assert _checkpoints.fingerprint_folder(one) == {
        name: value
        for name, value in _checkpoints.fingerprint_folder(two).items()
        if name != "lm_head.weight"
    }
    with pytest.warns(UserWarning, match="step 1: all weights equal step 0"):
        found = measure_series(tmp_path, tokens())
    assert found.isel(step=0).drop_vars("step").equals(found.isel(step=1).drop_vars("step"))
    expected = measure(model, tokens())
    assert found.attrs["dtype"] == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(found.attention_entropy[0], expected.attention_entropy)


def test_a_series_is_measured_as_its_models_are(series, tmp_path, capfd):
    found = measure_series(series, tokens(), steps=[512, 0, 10_000], folder=tmp_path / "kept")
    assert found.step.values.tolist() == [0, 512, 10_000]  # by number, not by name
    for step in found.step.values:
        expected = measure(tiny("gpt_neox", seed=int(step)), tokens())
        for name in ("attention_entropy", "stable_rank", "query_key_stable_rank"):
            np.testing.assert_array_equal(found[name].sel(step=step), expected[name])
    assert len(set(found.weights_sha256.values.tolist())) == 3 and json.loads(found.attrs["audit"]) == []
    assert capfd.readouterr().out == ""


def test_half_precision_checkpoints_stay_near_their_originals(series, tmp_path):
    for step in STEPS[:3]:
        save(tiny("gpt_neox", seed=step).half(), tmp_path / f"step{step}")
    halves, exact = (measure_series(root, tokens(), steps=STEPS[:3]) for root in (tmp_path, series))
    for name in ("attention_entropy", "stable_rank"):
        gap = float(abs(halves[name] - exact[name]).max())
        assert 0 < gap < 1e-2, name


def test_an_interrupted_series_goes_on(series, tmp_path, monkeypatch):
    loaded = []

    def load(path):
        if len(loaded) == 2:
            raise KeyboardInterrupt
        loaded.append(path.name)
        return _series.load_model(path)

    options = {"steps": STEPS[:4], "folder": tmp_path / "kept"}
    with pytest.raises(KeyboardInterrupt):
        measure_series(series, tokens(), load=load, **options)
    assert loaded == ["step0", "step1"]
    whole = measure_series(series, tokens(), steps=STEPS[:4])
    resumed = measure_series(series, tokens(), **options)
    assert resumed.equals(whole)
    monkeypatch.setattr(_series, "load_model", lambda path: pytest.fail("loaded again"))
    assert measure_series(series, tokens(), **options).equals(whole)
    with pytest.raises(ValueError, match="another folder"):
        measure_series(series, tokens(seed=2), **options)
    with pytest.raises(ValueError, match="another folder"):
        measure_series(series, tokens(), weights=False, **options)


def test_one_model_at_a_time(series):
    import gc
    import weakref

    alive, most = [], []

    def load(path):
        gc.collect()
        most.append(sum(one() is not None for one in alive))
        model = _series.load_model(path)
        alive.append(weakref.ref(model))
        return model

    measure_series(series, tokens(), load=load)
    assert most == [0] * len(STEPS)


def test_kept_fingerprints_follow_the_files(series, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(series, root)
    before = audit_series(root, folder=tmp_path / "kept")
    assert audit_series(root, folder=tmp_path / "kept") == before == audit_series(root)
    shutil.copyfile(root / "step2" / "model.safetensors", root / "step1" / "model.safetensors")
    assert [one.same_as for one in audit_series(root, folder=tmp_path / "kept").findings] == [1]
    (tmp_path / "kept" / "step0.fingerprints.json").write_text("{")
    assert len(audit_series(root, folder=tmp_path / "kept").findings) == 1


def test_lists_mappings_and_trainer_folders(series, tmp_path):
    listed = [series / "step512", series / "step1"]
    assert audit_series(listed).steps == (1, 512)
    assert audit_series({7: series / "step1", 3: series / "step2"}).steps == (3, 7)
    shutil.copytree(series / "step1", tmp_path / "checkpoint-500")
    assert audit_series(tmp_path).steps == (500,)


def _cut(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-10])


def _garble(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def _evil(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"w": SimpleNamespace()}, folder / "pytorch_model.bin")


def _nothing(folder):
    (folder / "model.safetensors").unlink()


def _index(folder):
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "gone.safetensors"}})
    )


def _broken_index(folder):
    (folder / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "damaged or cut short"), (_garble, "damaged or cut short"), (_evil, "plain weights"),
        (_nothing, "no model.safetensors"), (_index, "lacks its shard gone.safetensors"), (_broken_index, "index.json of step1 is damaged"),
    ],
)  # fmt: skip
def test_damaged_checkpoints_are_refused(damage, said, series, tmp_path):
    shutil.copytree(series / "step1", tmp_path / "step1")
    damage(tmp_path / "step1")
    for call in (audit_series, lambda root: measure_series(root, tokens())):
        with pytest.raises(ValueError, match=said) as caught:
            call(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "steps", "said"),
    [
        ("EleutherAI/pythia-70m", None, "say which steps"),
        ("EleutherAI/pythia-70m", [0], "cannot be reached"),
        ("nonsense", None, "neither a folder nor a hub repository"),
        ({0: "nowhere"}, None, "not a folder"),
        (["a/final"], None, "does not end in its step"),
        (["a/step1", "b/step1"], None, "both claim step 1"),
        ([], None, "leave them out"),
        ({0: "."}, [-1], "none negative"),
        ({0: "."}, [3], r"step\(s\) \[3\] are not among"),
    ],
)
def test_series_that_are_not_there(source, steps, said, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=said):
        audit_series(source, steps)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no folders such as step0"):
        audit_series(tmp_path)


class Hub:
    """What is used of the hub's client: file hashes by revision, and downloads to a cache."""

    def __init__(self, root):
        import huggingface_hub

        self.root, self.errors, self.asked = root, huggingface_hub.errors, []

    def HfApi(self):
        return self

    def model_info(self, repository, revision, files_metadata):
        import hashlib

        files = sorted((self.root / revision).glob("*.safetensors"))
        lfs = [SimpleNamespace(sha256=hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
        files = [SimpleNamespace(rfilename=f.name, lfs=one) for f, one in zip(files, lfs, strict=True)]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename="config.json", lfs=None), *files])

    def snapshot_download(self, repository, revision, allow_patterns):
        self.asked.append((repository, revision))
        return str(self.root / revision)


def test_the_hub_is_audited_without_a_download_and_measured_with_one(series, tmp_path, monkeypatch):
    hub = Hub(plant(series, tmp_path, part=""))
    original = _checkpoints.require
    monkeypatch.setattr(
        _checkpoints, "require", lambda n, **k: hub if n == "huggingface_hub" else original(n, **k)
    )
    audit = audit_series("owner/model", STEPS)
    assert [str(one) for one in audit.findings] == ["step 1000: all weights equal step 512"] and not hub.asked
    assert audit.origins[0] == "owner/model@step0"
    assert audit_series("owner/model", STEPS, download=True).repeats == audit.repeats
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure_series("owner/model", tokens(), steps=[0, 512])
    assert found.attrs["series"] == '["owner/model@step0", "owner/model@step512"]'
    assert ("owner/model", "step512") in hub.asked
