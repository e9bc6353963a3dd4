"""Explorers without a browser: self-contained, deterministic HTML; controls that refuse; the same as ipywidgets."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import sympy as sp
import xarray as xr

from joma_lib import explore
from joma_lib.dynamics import right_hand_side
from joma_lib.explore import _drawing, _printed, _race
from joma_lib.explore._frames import decades, fitting, short

LIMIT = 60_000


def language_runs():
    rng = np.random.default_rng(1)
    steps = np.linspace(0, 58_560, 120).astype(int)
    runs = {}
    for label, layers, seeds in (("1 layer", 1, 3), ("5 layers", 5, 3), ("10 layers", 10, 1)):
        dip = 2.5 - (1 + np.arange(layers) / 10)[:, None] * np.exp(-(((steps / 58_560 - 0.2) / 0.2) ** 2))
        values = dip.T[None] + 0.02 * rng.standard_normal((seeds, len(steps), layers))
        runs[label] = xr.Dataset(
            {"attention_entropy": (("seed", "step", "layer"), values)},
            coords={"step": steps, "seed": range(seeds)},
        )
    return runs


def made(name):
    if name == "entropy_by_layer":
        return explore.entropy_by_layer(language_runs())
    if name == "invariant":
        pytest.importorskip("joma_lib.invariants", reason="joma_lib.invariants is not there")
        pytest.importorskip("torch")
    return getattr(explore, name)()


NAMES = ("race", "sparse_then_dense", "latent_tree", "invariant", "entropy_by_layer")
each = pytest.mark.parametrize("name", NAMES)


@each
def test_block_is_self_contained_and_light(name):
    html = made(name)._repr_html_()
    assert len(html.encode()) < LIMIT
    assert not re.search(r"https?:|//\w+\.\w|fetch\(|import\(|XMLHttp|\bsrc=|\bid=", html)
    assert html.count("<script") == html.count("</script>") == 1
    assert "/*" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    assert "<noscript>" in html and 'aria-live="polite"' in html
    assert "nan" not in re.sub(r"<script>.*</script>", "", html, flags=re.S).lower()


@each
def test_every_control_is_labelled_and_every_drawing_described(name):
    html = made(name)._repr_html_()
    controls = re.findall(r"<(?:input|select)[^>]*data-control", html)
    assert len(controls) == len(re.findall(r"<label>(?:(?!</label>).)*data-control", html))
    assert html.count('role="img"') == len(re.findall(r'role="img" aria-label="[^"]{20,}"', html))


@each
def test_only_html_and_text_are_shown(name):
    """Widget views would make a static page load scripts from other hosts."""
    explorer = made(name)
    assert not hasattr(explorer, "_repr_mimebundle_") and not hasattr(explorer, "_ipython_display_")
    assert "0x" not in repr(explorer)


def test_same_bytes_in_another_process():
    code = "from joma_lib import explore; import hashlib; print(hashlib.sha256(explore.race()._repr_html_().encode()).hexdigest())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
            check=True,
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != ""


@each
def test_widget_shows_what_the_page_shows(name):
    pytest.importorskip("ipywidgets")
    explorer = made(name)
    box = explorer.widget()
    *controls, page = box.children[1:]
    assert len(controls) == len(explorer.controls)
    assert explorer.sentence().split(":")[0] in page.value.replace("&#x27;", "'")
    before = page.value
    moved = controls[-1]
    moved.value = moved.min
    assert page.value != before
    assert "<script" not in page.value


def test_widget_names_its_extra_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r"joma_lib\[widgets\]"):
        explore.race().widget()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nothing": 1}, "'nothing' is unknown"),
        ({"time": 120}, "time is 120"),
        ({"delta1": float("nan")}, "delta1 is nan"),
    ],
)
def test_controls_refuse_in_one_sentence(values, message):
    with pytest.raises(ValueError, match=message):
        explore.race().state(**values)


def test_closed_forms_solve_the_equation():
    forms = _race.closed_forms()
    Delta, t = sp.symbols("Delta t", real=True)
    v = forms["growth"]
    rate = right_hand_side("linear", "own")
    symbols = {str(s): s for s in rate.free_symbols}
    rate = rate.subs({symbols["mu"]: Delta, symbols["s"]: v**2, symbols["tau"]: 2})
    assert sp.simplify(sp.diff(v, t) - rate) == 0
    assert v.subs(t, 0) == 0
    assert sp.simplify(forms["end"] - sp.sqrt(sp.pi / 2) / Delta) == 0


def test_printing_refuses_what_the_page_cannot_compute():
    with pytest.raises(ValueError, match="cannot be printed"):
        _printed.model_script("sparse.js", rate=sp.Function("LambertW")(sp.Symbol("v")), weight=sp.Integer(1))
    with pytest.raises(ValueError, match="no mark"):
        _printed.model_script("sparse.js", other=sp.Integer(1))


def test_trace_leaves_gaps():
    panel = _drawing.Panel("p", "", _drawing.Axis("", 0, 1, ()), _drawing.Axis("", 0, 1, ()), (), "")
    assert _drawing.trace(
        "line", panel, [0, 0.5, 1, 1], [0, np.nan, 0, 1]
    ) == "M284.0 170.0L284.0 0.0".replace("M", "M0.0 170.0M", 1)


def test_frames_are_short_and_axes_hold_everything():
    assert short([1e-9, 0.5]) == [0.0, 0.5]
    axis = fitting("x", [-0.37, 2.9])
    assert axis.low <= -0.37 and axis.high >= 2.9
    axis = decades("x", [0, 3e-5, 12])
    assert (axis.low, axis.high, axis.log) == (-5, 2, True)


def test_entropy_refuses_what_holds_none():
    run = xr.Dataset({"loss": ("step", [1.0])})
    with pytest.raises(ValueError, match="'a' holds no entropy"):
        explore.entropy_by_layer({"a": run})


def test_entropy_says_when_nothing_is_recorded(monkeypatch):
    from joma_lib.explore import _entropy

    monkeypatch.setattr(_entropy, "list_runs", lambda: [])
    with pytest.raises(ValueError, match="joma train language"):
        explore.entropy_by_layer()


def test_entropy_shows_the_run():
    runs = language_runs()
    explorer = explore.entropy_by_layer(runs)
    numbers = explorer.state(kind=1, frame=39).numbers
    assert numbers["step"] == 58_560
    expected = runs["5 layers"].attention_entropy.mean("seed").isel(step=-1).values
    np.testing.assert_allclose([numbers["first"], numbers["last"]], expected[[0, -1]], atol=1e-3)


def test_invariant_shows_the_runs():
    invariants = pytest.importorskip("joma_lib.invariants", reason="joma_lib.invariants is not there")
    block = pytest.importorskip("joma_lib.block")
    runs = {
        kind: block.train_block(
            block.BlockConfig(attention=kind, steps=200, learning_rate=0.02), record=20, device="cpu"
        )
        for kind in ("linear", "exp", "softmax")
    }
    explorer = explore.invariant(runs)
    for kind, name in enumerate(runs):
        numbers = explorer.state(kind=kind, frame=10).numbers
        assert numbers["step"] == 200 and numbers["kind"] == name
        if name == "exp":
            kept = invariants.conserved(
                "exp", runs[name].z.values[0], runs[name].v.values[0], temperature=0.5
            )
            z = runs[name].z.values[0]
            drift = np.abs(kept[-1] - kept[0]).max() / np.abs(z - z[0]).max()
            assert abs(numbers["drift"] - 100 * drift) < 1e-3 * 100 * drift
    with pytest.raises(ValueError, match="runs lack exp"):
        explore.invariant({"linear": runs["linear"], "softmax": runs["softmax"]})
