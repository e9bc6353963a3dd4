"""Sphinx extension of the book: what a page says about itself, taken from the build, never from a cell's output.

Under each title: reading time, running time of the live cells, versions. In the head: a description for previews.
Directives `ledger-head` (the counts and the claims named in its body) and `ledger` (all claims, chapter by chapter).
"""

from __future__ import annotations

import platform
import re
from html import escape
from importlib.metadata import version
from typing import Any

import chapters
import summary
from docutils import nodes
from docutils.statemachine import StringList
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WORDS_A_MINUTE = 180


def _facts(app: Sphinx, page: str, doctree: nodes.document) -> str:
    words = len(re.findall(r"\w+", doctree.astext()))
    facts = [f"Reading: about {max(1, round(words / WORDS_A_MINUTE))} min"]
    data = NbMetadataCollector.get_exec_data(app.env, page)
    if data and data.get("runtime") is not None:
        facts.append(f"running: {max(1, round(data['runtime']))} s on the machine that built this page")
        names = ("torch", "numpy", "sympy")
        facts.append(
            "with Python " + ", ".join([platform.python_version(), *(f"{n} {version(n)}" for n in names)])
        )
    return " · ".join(facts)


def _summary(doctree: nodes.document) -> str:
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text) > 60:
            return text[:297] + ("..." if len(text) > 297 else "")
    return ""


def drop_thebe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Leave out the scripts of the live-kernel extension, which Jupyter Book always loads and this book does not use."""
    scripts = context.get("script_files", [])
    context["script_files"] = [file for file in scripts if "thebe" not in repr(vars(file)).lower()]


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put the facts under the title and the description into the head."""
    if doctree is None:
        return
    line = f'<p class="joma-facts">{escape(_facts(app, page, doctree))}</p>'
    body = context["body"].replace(
        'role="doc-biblioentry"', 'role="listitem"'
    )  # the former role is deprecated
    context["body"] = body.replace("</h1>", f"</h1>\n{line}", 1)
    title, summary = escape(context.get("title", "")), escape(_summary(doctree), quote=True)
    context["metatags"] = context.get("metatags", "") + (
        f'\n<meta name="description" content="{summary}">'
        f'\n<meta property="og:title" content="{re.sub("<[^>]+>", "", title)}">'
        f'\n<meta property="og:description" content="{summary}">'
        '\n<meta property="og:type" content="article">'
    )


class Ledger(SphinxDirective):
    """All claims of the book, chapter by chapter."""

    def lines(self) -> list[str]:
        return [summary.counts(), *summary.by_chapter()]

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(chapters.LEDGER))
        container = nodes.container(classes=["joma-ledger"])
        self.state.nested_parse(StringList(self.lines(), str(chapters.LEDGER)), 0, container)
        return [container]


class LedgerHead(Ledger):
    """The counts, and the claims whose names stand in the body."""

    has_content = True

    def lines(self) -> list[str]:
        return summary.head("\n".join(self.content).split())


def plain_docstrings(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are text for people: |δ| and v_ are mathematics there, not markup."""
    for at, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ":", "..")):
            lines[at] = re.sub(r"_(?=[^\w`]|$)", r"\\_", line.replace("|", r"\|"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("ledger", Ledger)
    app.add_directive("ledger-head", LedgerHead)
    app.connect("autodoc-process-docstring", plain_docstrings, priority=400)  # before napoleon
    app.connect("html-page-context", describe)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
