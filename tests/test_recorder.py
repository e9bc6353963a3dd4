"""`Recorder` and `JomaCallback`: what they see is what `measure` says, and training does not notice them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_decoders import tiny, tokens

from joma_lib import runs
from joma_lib.pretrained import measure
from joma_lib.recorder import JomaCallback, Recorder


def train(model, steps, watch=None):
    """A few steps with dropout, so that the random stream matters."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        ids = torch.randint(0, 40, (4, 8))
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        if watch is not None:
            watch.step()
    return model


def dropout(kind="opt"):
    model = tiny(kind, scale=1.0)
    for module in model.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.2
    return model


def test_a_recorder_sees_what_measure_says_and_changes_nothing(tmp_path):
    model = dropout()
    watch = Recorder(model, tokens(), every=2)
    with torch.random.fork_rng():
        train(model, 5, watch)
        found = watch.dataset()
        assert found.step.values.tolist() == [0, 2, 4]
        for step in (0, 2, 4):
            expected = measure(train(dropout(), step), tokens())
            for name in ("attention_entropy", "attention_entropy_se", "stable_rank", "query_key_stable_rank"):
                np.testing.assert_array_equal(found[name].sel(step=step), expected[name])
        alone = train(dropout(), 5)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert runs.load_run(runs.save_run(found, tmp_path / "r")).attention_entropy.equals(
        found.attention_entropy
    )
    assert json.loads(found.attrs["recorder"]) == {"every": 2, "steps": [0, 2, 4]}
    assert len(watch.plot().axes) == 2


def test_probes_of_every_form():
    model, ids = tiny("gpt2"), tokens()
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    expected = measure(model, ids, mask, layers=[1], weights=False).attention_entropy.values
    for probe in ((ids, mask), {"input_ids": ids, "attention_mask": mask}):
        found = Recorder(model, probe, 1, [1], weights=False).dataset()
        np.testing.assert_array_equal(found.attention_entropy[0], expected)


class Block(torch.nn.Module):
    """The paper's block: free logits z, weights v; a quadratic loss in h."""

    def __init__(self, kind):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.kind = kind
        self.z, self.v = (
            torch.nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) / 2)
            for shape in ((4,), (3, 4))
        )
        self.x = torch.rand(6, 4, generator=generator, dtype=torch.float64)
        self.y = torch.randn(6, 3, generator=generator, dtype=torch.float64)

    def forward(self):
        b = self.x * (self.z if self.kind == "linear" else (self.z / 2).exp())
        return ((torch.relu(b @ self.v.T) - self.y) ** 2).mean()

    def parts(self, other=None):
        return {
            "kind": self.kind,
            "z": self.z,
            "v": self.v,
            "temperature": other or (1 if self.kind == "linear" else 2),
        }


def drift(kind, lr, temperature=None):
    block = Block(kind)
    watch = Recorder(block, None, every=10, free_logits=lambda model: model.parts(temperature))
    optimizer = torch.optim.SGD(block.parameters(), lr=lr)
    for _ in range(round(2 / lr)):
        optimizer.zero_grad()
        block().backward()
        optimizer.step()
        watch.step()
    return watch


@pytest.mark.parametrize("kind", ["exp", "linear"])
def test_the_invariants_drift_halves_with_the_step(kind):
    coarse, fine = (drift(kind, lr).dataset().isel(step=-1) for lr in (0.02, 0.01))
    assert float(fine.logit_change) > 0.05
    watch = drift(kind, 0.02)
    start, end = Block(kind).z.detach(), watch.model.z.detach()
    moved = (end - start if kind == "exp" else end**2 - start**2).abs().max()
    assert float(watch.dataset().logit_change[-1]) == pytest.approx(float(moved))
    assert float(coarse.invariant_drift / fine.invariant_drift) == pytest.approx(2, rel=0.1)
    if kind == "exp":  # with a wrong temperature nothing is conserved
        assert float(drift(kind, 0.01, 1).dataset().invariant_drift[-1]) > 20 * float(fine.invariant_drift)
    assert len(drift(kind, 0.02).plot().axes) == 1


def language_data(count=24):
    return [{"input_ids": row, "labels": row} for row in tokens(count, 8)]


def trainer_for(callbacks, folder, **arguments):
    import transformers

    options = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, **arguments,
    )  # fmt: skip
    return transformers.Trainer(
        model=tiny("gpt_neox"), args=options, train_dataset=language_data(), callbacks=callbacks
    )


def test_transformers_trainer(tmp_path):
    pytest.importorskip("accelerate")
    callback = JomaCallback(tokens(), every=4)
    with pytest.raises(RuntimeError, match="nothing is recorded yet"):
        callback.dataset()
    trainer = trainer_for([callback], tmp_path)
    trainer.train()
    found = callback.dataset()
    assert found.step.values.tolist() == [0, 4, 6]
    for step, model in ((0, tiny("gpt_neox")), (6, trainer.model)):
        np.testing.assert_array_equal(
            found.attention_entropy.sel(step=step), measure(model, tokens(), weights=False).attention_entropy
        )
    assert trainer.model.config._attn_implementation == "sdpa"
    plain = trainer_for([], tmp_path)
    plain.train()
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), trainer.model.parameters(), strict=True)
    )


def test_lightning_trainer(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny("opt")

        def training_step(self, batch, _):
            return self.model(batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = JomaCallback(tokens(), 4)
    module = Module()
    trainer = lightning.Trainer(
        max_steps=6, callbacks=[callback], logger=False, enable_checkpointing=False, accumulate_grad_batches=2,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(tokens(48, 8), batch_size=4))
    found = callback.dataset()
    assert found.step.values.tolist() == [0, 4, 6]
    np.testing.assert_array_equal(
        found.attention_entropy[-1], measure(module.model, tokens()).attention_entropy
    )
    assert not np.array_equal(found.attention_entropy[0], found.attention_entropy[-1])


def test_frameworks_load_late():
    code = (
        "import sys, torch, joma_lib.recorder as r\n"
        "assert not {'transformers', 'lightning', 'accelerate'} & set(sys.modules)\n"
        "try: r.JomaCallback([[1, 2]])\n"
        "except ImportError as error: print(error)"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.startswith("neither transformers nor lightning.pytorch is imported")


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((tokens(), 0), {}, "every is 0"),
        ((None, 1), {}, "nothing to record"),
        (({"ids": 1}, 1), {}, "needs input_ids"),
        (((1, 2, 3), 1), {}, "tuple of 3"),
        ((tokens(), 1), {"free_logits": lambda m: {}}, "products of query and key"),
        ((tokens(), 1, [9]), {}, "choose from 0 to 1"),
    ],
)
def test_refusals(arguments, options, said):
    with pytest.raises(ValueError, match=said):
        Recorder(tiny("opt"), *arguments, **options)


@pytest.mark.parametrize("kind", ["softmax", None])
def test_softmax_has_no_conserved_quantity(kind):
    with pytest.raises(ValueError, match="only exp and linear"):
        Recorder(Block("exp"), None, 1, free_logits=lambda m: m.parts() | {"kind": kind})
