"""The built book in a real browser, from disk, with the network off: what a reader meets."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chapters
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BUILT = (chapters.HTML / "index.html").exists()
PAGES = chapters.pages()
WEIGHT_LIMIT = 1_500_000

pytestmark = pytest.mark.skipif(not BUILT, reason="the book is not built: run `make book`")
browser_needed = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: install Debian's package chromium"
)
each_page = pytest.mark.parametrize("name", PAGES)


class Links(HTMLParser):
    """Collects what a page loads, where it links to, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if values.get("id"):
            self.anchors.add(values["id"])
        if tag in ("script", "img", "iframe", "source", "video") and values.get("src"):
            self.loads.append(values["src"])
        elif (
            tag == "link"
            and values.get("href")
            and values.get("rel") not in ("index", "search", "next", "prev", "canonical")
        ):
            self.loads.append(values["href"])
        elif tag == "a" and values.get("href"):
            self.links.append(values["href"])


def parsed(path: Path) -> Links:
    parser = Links()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


@each_page
def test_page_asks_no_other_host(name):
    page = parsed(chapters.Chapter(name).html)
    assert [address for address in page.loads if urlsplit(address).scheme in ("http", "https")] == []


def test_styles_ask_no_other_host():
    for style in chapters.HTML.rglob("*.css"):
        text = style.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), style.name


def test_internal_links_lead_somewhere():
    anchors: dict[Path, set[str]] = {}
    broken = []
    for name in PAGES:
        source = chapters.Chapter(name).html
        for address in parsed(source).links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (source.parent / unquote(parts.path)).resolve() if parts.path else source
            if not target.exists():
                broken.append(f"{name}: {address}")
            elif parts.fragment and target.suffix == ".html":
                if target not in anchors:
                    anchors[target] = parsed(target).anchors
                if unquote(parts.fragment) not in anchors[target]:
                    broken.append(f"{name}: {address}")
    assert broken == []


@each_page
def test_page_weight(name):
    html = chapters.Chapter(name).html
    images = {address for address in parsed(html).loads if re.search(r"\.(png|jpe?g|svg|webp)$", address)}
    figures = [html.parent / unquote(address) for address in images]
    total = html.stat().st_size + sum(file.stat().st_size for file in figures if file.exists())
    assert total < WEIGHT_LIMIT, f"{name} weighs {total / 1e6:.2f} MB with its figures"


@each_page
def test_launch_buttons_are_on_notebooks_only(name):
    chapter = chapters.Chapter(name)
    links = [link for link in parsed(chapter.html).links if "colab.research" in link]
    assert bool(links) == chapter.is_notebook
    assert all(link.endswith(f"/book/{name}.ipynb") for link in links)
    assert not links or chapter.notebook.exists()


@each_page
def test_outputs_are_on_the_page(name):
    chapter = chapters.Chapter(name)
    if not chapter.is_notebook:
        pytest.skip("not a notebook")
    import nbformat

    notebook = nbformat.read(chapter.notebook, as_version=4)
    shown = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    hidden = [cell for cell in shown if {"remove-output", "remove-cell"} & set(cell.metadata.get("tags", []))]
    assert chapter.html.read_text(encoding="utf-8").count('class="cell_output') >= len(shown) - len(hidden)


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


@browser_needed
@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")]
)
@each_page
def test_page_in_a_browser(browser, name, width, scheme):
    """From disk, offline: no console error, no request elsewhere, no sideways scrolling, mathematics set, axe AA."""
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(chapters.Chapter(name).html.as_uri(), wait_until="load")
    if page.locator("article .math").count():
        page.wait_for_selector("article mjx-container", state="attached", timeout=20_000)
        page.evaluate("async () => { await MathJax.startup.promise }")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    sideways = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    raw = page.locator("text=/\\{(ref|numref|eq|doc|cite:[tp]|prf:ref|term)\\}/").count()
    options = {
        "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]},
        "resultTypes": ["violations"],
        "preload": False,
    }
    found = Axe().run(page, options=options).response["violations"]
    violations = [f"{item['id']}: {item['nodes'][0]['html'][:150]} ({len(item['nodes'])}x)" for item in found]
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    assert sideways <= 0
    assert raw == 0
    assert violations == []
