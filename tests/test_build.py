"""The build in a project of its own: failing chapters fail it every time, the library is part of the cache's key."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import chapters
import pytest

HEADER = (
    "---\njupytext:\n  text_representation:\n    extension: .md\n    format_name: myst\n"
    "kernelspec:\n  display_name: Python 3\n  language: python\n  name: python3\n---\n\n"
)


def cell(code: str) -> str:
    return f"```{{code-cell}} ipython3\n{code}\n```\n\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the tools around a book of one chapter and a library of one line."""
    shutil.copytree(chapters.ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("book", "joma_lib/data"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(chapters.ROOT / "_config.yml", tmp_path)
    shutil.copy(chapters.ROOT / "joma_lib" / "claims.py", tmp_path / "joma_lib")
    (tmp_path / "requirements.lock").write_text("numpy==1\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/demo\nparts: []\n")
    (tmp_path / "joma_lib" / "__init__.py").write_text('__version__ = "0"\n')
    (tmp_path / "joma_lib" / "figures.py").write_text("")
    (tmp_path / "joma_lib" / "number.py").write_text("VALUE = 1\n")
    (tmp_path / "joma_lib" / "data" / "ledger.json").write_text("[]\n")
    return tmp_path


def run(project: Path, chapter: str, *step: str) -> subprocess.CompletedProcess:
    (project / "book" / "demo.md").write_text(HEADER + "# Demo\n\n" + chapter)
    command = [sys.executable, str(project / "tools" / "build.py"), *(step or ("execute",))]
    return subprocess.run(command, cwd=project, env=_environment(project), capture_output=True, text=True)


def _environment(project: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(project)}


def test_a_failing_chapter_fails_the_build_every_time(project):
    for _ in range(2):
        done = run(project, cell("value = 0") + cell("1 / value"))
        assert done.returncode == 1
        assert (
            "demo.md failed" in done.stderr
            and "ZeroDivisionError" in done.stderr
            and "1 / value" in done.stderr
        )
    assert run(project, cell("1 / 1")).returncode == 0


def test_a_chapter_is_executed_once_and_again_when_the_library_changes(project):
    text = cell("from joma_lib.number import VALUE\nprint(VALUE)")
    first, second = run(project, text), run(project, text)
    assert first.returncode == second.returncode == 0, first.stderr
    assert "(cached)" not in first.stdout and "(cached)" in second.stdout
    (project / "joma_lib" / "data" / "ledger.json").write_text("[ ]\n")
    assert "(cached)" in run(project, text).stdout, "the ledger is no part of the key"
    (project / "joma_lib" / "number.py").write_text("VALUE = 2\n")
    assert "(cached)" not in run(project, text).stdout
    (project / "requirements.lock").write_text("numpy==2\n")
    assert "(cached)" not in run(project, text).stdout


def test_an_unknown_chapter_is_named(project):
    done = run(project, "", "execute", "nonsense")
    assert done.returncode == 1
    assert "no such chapter: nonsense" in done.stderr


def test_claims_are_collected_and_must_be_unique(project):
    def claim(name: str) -> str:
        line = f'Claim("{name}", "s", chapter="demo", evidence="e", value=1, verdict="holds")'
        return cell(f"from joma_lib.claims import Claim\n{line}")

    code = (
        "import chapters; print(chapters.ledger_text([chapters.executed(c)[0] for c in chapters.chapters()]))"
    )

    def collect(text: str) -> subprocess.CompletedProcess:
        run(project, text)
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=project / "tools", env=_environment(project), capture_output=True, text=True
        )

    done = collect(claim("a") + claim("b"))
    assert '"id": "a"' in done.stdout and '"id": "b"' in done.stdout
    done = collect(claim("a") + claim("a"))
    assert "claim ids must be unique; used more than once: a" in done.stderr


def test_nbval_sees_a_changed_number(tmp_path):
    """What CI compares: one stored digit changed in a notebook of the book makes it fail."""
    import nbformat

    notebook = nbformat.read(chapters.Chapter("block").notebook, as_version=4)
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    index = next(
        i
        for i, c in enumerate(cells)
        if c.outputs
        and c.outputs[0].output_type in ("stream", "execute_result")
        and any(character.isdigit() for character in _text(c.outputs[0]))
        and "nbval-ignore-output" not in c.metadata.get("tags", [])
    )
    output = cells[index].outputs[0]
    text = _text(output)
    changed = "".join("7" if character.isdigit() and character != "7" else character for character in text)
    assert changed != text
    if output.output_type == "stream":
        output.text = changed
    else:
        output.data["text/plain"] = changed
    notebook.cells = cells[: index + 1]
    nbformat.write(notebook, tmp_path / "changed.ipynb")
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *options,
        "-c",
        "/dev/null",
        str(tmp_path / "changed.ipynb"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout


def _text(output) -> str:
    return output.text if output.output_type == "stream" else output.data.get("text/plain", "")
