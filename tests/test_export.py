"""MyST in, plain Markdown out."""

from __future__ import annotations

import chapters
import export
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def plain(text: str) -> str:
    return export._Page("index", text).plain(text)


def test_theorems_and_admonitions_become_quotations():
    text = "```{prf:theorem} Invariant\n:label: thm-x\n:class: paper\n\nIt is $z^2$.\n```"
    assert plain(text) == "> **The paper's theorem (Invariant).**\n>\n> It is $z^2$."
    assert plain(":::{note}\nMind {math}`x`.\n:::") == "> **Note.**\n>\n> Mind $x$."
    nested = "````{admonition} Comment\n:class: comment\n\n```{math}\n:label: eq-a\nx = 1\n```\n````"
    assert "> $$\n> x = 1\n> \\tag{1}\n> $$" in plain(nested)


def test_roles_labels_and_equations():
    text = (
        "(sec-a)=\n\n$$\na = b\n$$ (eq-b)\n\nBy {eq}`eq-b` and {cite:t}`tian2024joma`, see {doc}`invariant`."
    )
    out = plain(text)
    assert "(sec-a)=" not in out
    assert "\\tag{1}\n$$" in out
    assert "By (1) and [Tian et al. (2024)](https://arxiv.org/abs/2310.00535)" in out


def test_code_is_left_alone():
    text = "```python\nx = {note}`y`\n```"
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```{unknown} a\nb\n```", "directive 'unknown'"),
        ("see {foo}`bar`", "role 'foo'"),
        ("{cite:t}`nobody1900`", "references.bib"),
        ("{ref}`sec-nowhere`", "unknown"),
        ("```{note}\nnever closed", "never closed"),
    ],
)
def test_what_it_does_not_know_is_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        plain(text)


def test_a_table():
    text = "```{list-table} T\n:header-rows: 1\n\n* - a\n  - b\n* - 1\n  - x\n    y\n```"
    assert plain(text) == "**T**\n\n| a | b |\n|---|---|\n| 1 | x y |"


def executed() -> nbformat.NotebookNode:
    setup = new_code_cell("source = 'BOOK_REPOSITORY@BOOK_TAG'", execution_count=7)
    setup.metadata["execution"] = {"iopub.execute_input": "2026-01-01"}
    data = {"text/plain": "2"}
    value = new_code_cell(
        "1 + 1", execution_count=9, outputs=[new_output("execute_result", data, execution_count=9)]
    )
    return new_notebook(cells=[new_markdown_cell("# T"), setup, value], metadata={"x": 1})


def test_export_is_deterministic_and_names_the_repository(tmp_path, monkeypatch):
    chapter = chapters.Chapter("index")
    first, second = export.convert(chapter, executed()), export.convert(chapter, executed())
    assert nbformat.writes(first) == nbformat.writes(second)
    assert first.cells[1].source == f"source = '{export.repository()}'"
    assert [cell.get("execution_count") for cell in first.cells] == [None, 1, 2]
    assert first.cells[1].metadata == {}
    assert first.metadata.kernelspec.name == "python3"


def test_the_repository_address_has_one_place():
    assert export.repository().startswith("git+" + chapters.config()["repository"]["url"])
    assert export.repository().endswith("@v" + chapters.version())
