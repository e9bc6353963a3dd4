"""Explorers in a real browser, each from its own HTML, with the network off: their JavaScript against NumPy and SciPy."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import entr, erfinv, softmax
from test_explore import language_runs

from joma_lib import explore
from joma_lib.explore import _tree
from joma_lib.latent_tree import LatentTree

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install Debian's package chromium"),
]
MODELS = ("race", "sparse_then_dense", "latent_tree")
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def browser() -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api")
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with sync_api.sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield instance
        instance.close()


class Page:
    """One HTML file with some explorers, open in the browser; what it asks for and complains about."""

    def __init__(self, browser, folder, blocks, width=1280, scheme="light", script=True):
        file = folder / "page.html"
        dark = "<style>@media (prefers-color-scheme: dark){body{background:#14181e;color:#ced6dd}}</style>"
        head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Explorers</title>{dark}</head>'
        file.write_text(
            f"{head}<body><main><h1>Explorers</h1>{''.join(blocks)}</main></body></html>", encoding="utf-8"
        )
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            java_script_enabled=script,
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on(
            "console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri(), wait_until="load")

    def set(self, values, which=0):
        """Move the controls of an explorer as a script does, and return the exact numbers that it shows."""
        code = """([which, values]) => {
            const root = document.querySelectorAll(".joma-explorer")[which];
            for (const [name, value] of Object.entries(values)) {
                const input = root.querySelector(`[data-control="${name}"]`);
                input.value = value;
                input.dispatchEvent(new Event("input"));
            }
            return [root.dataset.numbers, root.querySelector("[aria-live]").textContent];
        }"""
        numbers, text = self.page.evaluate(code, [which, values])
        return json.loads(numbers), text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


def positions(explorer, count, rng):
    """Corners of the controls, and random positions on their grids."""

    def grid(control):
        if isinstance(control, explore._base.Choice):
            return np.arange(len(control.options))
        return np.round(
            control.low + control.step * np.arange(round((control.high - control.low) / control.step) + 1), 9
        )

    grids = {control.name: grid(control) for control in explorer.controls}
    corners = list(itertools.product(*[(values[0], values[-1]) for values in grids.values()]))
    chosen = [corners[i] for i in rng.permutation(len(corners))[: count // 3]]
    chosen += [tuple(rng.choice(values) for values in grids.values()) for _ in range(count - len(chosen))]
    return [{name: float(value) for name, value in zip(grids, row, strict=True)} for row in chosen]


def close(shown, expected, where):
    assert shown.keys() == expected.keys()
    for name, value in expected.items():
        if (
            name == "lowest_time" and expected["rebound"] < 0.05
        ):  # no sentence shows it, and the minimum is flat
            continue
        if isinstance(value, str):
            assert shown[name] == value
            continue
        got = np.array(shown[name], dtype=object)
        got = np.array([float(str(x).replace("Infinity", "inf")) for x in got.ravel()])
        np.testing.assert_allclose(
            got, np.ravel(value), rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{name} at {where}"
        )


def coordinates(path):
    return np.array([float(number) for number in re.findall(r"-?\d+\.?\d*", path)])


@pytest.mark.parametrize("name", MODELS)
def test_script_agrees_with_python_wherever_the_controls_stand(browser, tmp_path, rng, name):
    explorer = getattr(explore, name)()
    with Page(browser, tmp_path, [explorer._repr_html_()]) as page:
        for values in positions(explorer, 18 if name == "sparse_then_dense" else 48, rng):
            shown, text = page.set(values)
            close(shown, explorer.state(**values).numbers, values)
            assert re.sub(r"[\d.−]+", "#", text) == re.sub(r"[\d.−]+", "#", explorer.sentence(**values))
        assert page.errors == []


def test_race_is_the_solution_of_theorem_2(browser, tmp_path):
    with Page(browser, tmp_path, [explore.race()._repr_html_()]) as page:
        delta = np.array([0.35, -0.9, 0.85, 0.1])
        shown, _ = page.set({f"delta{i + 1}": d for i, d in enumerate(delta)} | {"time": 99})
        end = np.sqrt(np.pi / 2) / 0.9
        assert abs(shown["end"] - end) < TOLERANCE
        path = solve_ivp(
            lambda _, v: delta * np.exp(v * v / 2), (0, 0.99 * end), np.zeros(4), rtol=1e-11, atol=1e-12
        )
        np.testing.assert_allclose(shown["v"], path.y[:, -1], atol=TOLERANCE)
        np.testing.assert_allclose(shown["v"], np.sqrt(2) * erfinv(0.99 * delta / 0.9), atol=TOLERANCE)
        assert shown["winner"] == 2


@pytest.mark.parametrize(("T", "spread", "time"), [(0.7, 3, 3), (2, 3, 2), (1.225, 3, 1.15), (1.0, 1.5, 0.5)])
def test_sparse_is_the_solution_of_its_equation(browser, tmp_path, T, spread, time):
    mu, tau = 2.5 + spread * (np.arange(10) / 9 - 0.5), 2 * T * T
    path = solve_ivp(
        lambda _, v: (mu - v) * softmax(v * v / tau),
        (0, 10**time),
        np.full(10, 0.05),
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
    )
    with Page(browser, tmp_path, [explore.sparse_then_dense()._repr_html_()]) as page:
        shown, _ = page.set({"T": T, "spread": spread, "time": time})
    v = path.y[:, -1]
    np.testing.assert_allclose(shown["v"], v, atol=TOLERANCE)
    assert abs(shown["entropy"] - entr(softmax(v * v / tau)).sum()) < TOLERANCE


@pytest.mark.parametrize(
    ("rho", "rho_0", "L"), [(0.8, 0.4, 4), (-0.65, 0.25, 3), (0.5, -0.8, 2), (1, 0.8, 3)]
)
def test_tree_is_the_enumeration(browser, tmp_path, rho, rho_0, L):
    tree = LatentTree(L, 2, rho, _tree.root_law(rho_0))
    given = tree.enumerate_conditional()[:, 0] if L < 4 else tree.conditional(0)
    with Page(browser, tmp_path, [explore.latent_tree()._repr_html_()]) as page:
        shown, _ = page.set({"rho": rho, "rho_0": rho_0, "L": L, "H": 1})
    np.testing.assert_allclose(shown["p"], [given[2 ** (h - 1)] for h in range(1, L + 1)], atol=TOLERANCE)


def recorded():
    """Explorers of recorded frames: one of runs made up here, and that of the invariant where its module is there."""
    made = {"entropy_by_layer": explore.entropy_by_layer(language_runs())}
    try:
        made["invariant"] = explore.invariant()
    except ImportError as error:
        if "joma_lib.invariants" not in str(error) and "torch" not in str(error):
            raise
    return made


@pytest.fixture(scope="module")
def blocks():
    return {name: getattr(explore, name)() for name in MODELS} | recorded()


def test_recorded_frames_move(browser, tmp_path, rng, blocks):
    chosen = {name: explorer for name, explorer in blocks.items() if name not in MODELS}
    with Page(browser, tmp_path, [explorer._repr_html_() for explorer in chosen.values()]) as page:
        for which, explorer in enumerate(chosen.values()):
            for values in positions(explorer, 9, rng):
                shown, text = page.set(values, which)
                close(shown, explorer.state(**values).numbers, values)
                assert text == explorer.sentence(**values)
                seen = (
                    page.page.locator(".joma-explorer")
                    .nth(which)
                    .locator(".joma-panel:visible path[data-shape]")
                )
                assert all(
                    seen.evaluate_all("nodes => nodes.map(node => node.getAttribute('d').length > 0)")[:1]
                )
        assert page.errors == []


def test_first_picture_is_the_same_with_and_without_javascript(browser, tmp_path, blocks):
    html = [explorer._repr_html_() for explorer in blocks.values()]
    read = "nodes => nodes.map(node => [node.dataset.shape, node.getAttribute('d')])"
    drawn = []
    for script in (False, True):
        with Page(browser, tmp_path, html, script=script) as page:
            if script:
                drawn.append(page.page.eval_on_selector_all("path[data-shape]", read))
                drawn.append(page.page.locator("[aria-live]").all_inner_texts())
            else:
                source = "".join(html)
                drawn.append(
                    [list(pair) for pair in re.findall(r'<path data-shape="(\w+)"[^>]* d="([^"]*)"', source)]
                )
                drawn.append(page.page.locator("[aria-live]").all_inner_texts())
                assert page.page.locator("[data-control]:enabled").count() == 0
                assert page.page.locator("noscript").count() == len(html)
    assert drawn[1] == drawn[3]
    assert [name for name, _ in drawn[0]] == [name for name, _ in drawn[2]]
    for (name, before), (_, after) in zip(drawn[0], drawn[2], strict=True):
        np.testing.assert_allclose(coordinates(after), coordinates(before), atol=0.11, err_msg=name)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_is_clean_and_accessible(browser, tmp_path, blocks, width, scheme):
    """Offline: no request, no complaint, no sideways scrolling, axe at AA; several on one page, one of them twice."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    html = [explorer._repr_html_() for explorer in blocks.values()]
    with Page(browser, tmp_path, [*html, html[0]], width, scheme) as page:
        assert page.page.locator(".joma-explorer[data-ready]").count() == len(html) + 1
        sideways = page.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        options = {
            "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag22aa"]},
            "resultTypes": ["violations"],
            "preload": False,
        }
        found = axe.Axe().run(page.page, options=options).response["violations"]
        assert [f"{item['id']}: {item['nodes'][0]['html'][:150]}" for item in found] == []
        assert sideways <= 0
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith("file:")] == []
        first, _ = page.set({"time": 10})
        again, _ = page.set({}, which=len(html))
        assert first["percent_of_end"] == 10 and again["percent_of_end"] == 90


def test_keyboard_moves_a_slider(browser, tmp_path):
    with Page(browser, tmp_path, [explore.latent_tree()._repr_html_()]) as page:
        before = page.page.locator("[aria-live]").inner_text()
        page.page.locator("[data-control=rho]").focus()
        page.page.keyboard.press("ArrowLeft")
        assert page.page.locator("[aria-live]").inner_text() != before
        assert page.page.locator("[data-control=rho]").get_attribute("aria-valuetext") == "0.75"
