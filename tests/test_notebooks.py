"""The chapters and the notebooks beside them: in step, executed, clean, and runnable alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import chapters
import export
import nbformat
import pytest
import summary
from nbformat import NotebookNode

CHAPTERS = chapters.chapters()
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=[chapter.name for chapter in CHAPTERS])
_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|Users|mnt)/\w")
_BAR = re.compile(r"\d+%\|.*\|| it/s\]|[█▉▊▋▌▍▎▏]")
_MYST = re.compile(r"```+ *\{|:::|\{[a-z:]+\}`|^\([\w:-]+\)= *$", re.MULTILINE)


def shape(notebook: NotebookNode) -> list[tuple]:
    return [(cell.cell_type, cell.id, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def faults(chapter: chapters.Chapter, notebook: NotebookNode) -> list[str]:
    """What is wrong with the notebook beside a chapter: empty when they are in step and every cell was run."""
    found = []
    if shape(notebook) != shape(export.convert(chapter, chapter.read())):
        found.append("differs from its source")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if _MYST.search(re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)):
                found.append(f"MyST left in {cell.id}")
            continue
        if not cell.execution_count:
            found.append(f"{cell.id} was never executed")
        for output in cell.outputs:
            text = json.dumps(output, ensure_ascii=False)
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"{cell.id} holds stderr or an error")
            text = re.sub(r'"image/png": "[^"]*"', "", text)
            if _PATH.search(text):
                found.append(f"{cell.id} holds an absolute path")
            if _BAR.search(text):
                found.append(f"{cell.id} holds a progress bar")
    return found


def test_there_are_chapters():
    assert len(CHAPTERS) >= 3


@each_chapter
def test_notebook_is_in_step_with_its_source(chapter):
    assert chapter.notebook.exists(), f"run `make notebooks` and commit {chapter.notebook.name}"
    assert faults(chapter, nbformat.read(chapter.notebook, as_version=4)) == []


@each_chapter
def test_enough_cells_are_compared(chapter):
    """A cell without stored output is compared with nothing: most chapters print something everywhere."""
    notebook = nbformat.read(chapter.notebook, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= 2


def test_the_check_sees_each_fault():
    chapter = CHAPTERS[0]
    good = nbformat.read(chapter.notebook, as_version=4)
    index = next(i for i, cell in enumerate(good.cells) if cell.cell_type == "code" and cell.outputs)

    def broken(change) -> list[str]:
        notebook = nbformat.reads(nbformat.writes(good), as_version=4)
        change(notebook.cells[index])
        return faults(chapter, notebook)

    def stream(name: str, text: str):
        return lambda cell: cell.outputs.append(nbformat.v4.new_output("stream", name=name, text=text))

    assert broken(lambda cell: cell.update(source=cell.source + "\n# edited")) == ["differs from its source"]
    assert "never executed" in broken(lambda cell: cell.update(execution_count=None))[0]
    assert "stderr" in broken(stream("stderr", "warning"))[0]
    assert "path" in broken(stream("stdout", "/home/me/x"))[0]
    assert "progress bar" in broken(stream("stdout", " 40%|####  | 4/10 [00:01, 3 it/s]"))[0]


def test_editing_the_source_is_seen(monkeypatch):
    chapter = CHAPTERS[0]
    text = chapter.text
    monkeypatch.setattr(chapters.Chapter, "text", property(lambda self: text.replace("import", "import ", 1)))
    assert "differs from its source" in faults(chapter, nbformat.read(chapter.notebook, as_version=4))


def test_set_up_cell_is_the_same_everywhere():
    first = {next(c.source for c in chapter.read().cells if c.cell_type == "code") for chapter in CHAPTERS}
    assert len(first) == 1
    assert "JOMA_REPOSITORY" in first.pop()


def test_ledger_is_what_the_chapters_say():
    notebooks = [nbformat.read(chapter.notebook, as_version=4) for chapter in CHAPTERS]
    assert chapters.ledger_text(notebooks) == chapters.LEDGER.read_text(encoding="utf-8")
    assert {row["chapter"] for row in chapters.ledger_rows()} <= {chapter.name for chapter in CHAPTERS}
    for chapter, notebook in zip(CHAPTERS, notebooks, strict=True):
        assert {row["chapter"] for row in chapters.claims_of(notebook)} <= {chapter.name}


def test_readme_shows_the_ledger_as_it_is():
    assert summary.readme() == summary.README.read_text(encoding="utf-8")


def jupyter_execute(notebook: Path, python: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    code = (
        "import nbformat, sys; from nbclient import NotebookClient; nb = nbformat.read(sys.argv[1], 4);"
        "NotebookClient(nb, timeout=600, kernel_name='python3').execute()"
    )
    command = [python, "-c", code, notebook.name]
    return subprocess.run(command, cwd=notebook.parent, env=environment, capture_output=True, text=True)


def test_a_notebook_runs_alone_in_an_empty_folder(tmp_path):
    """Where the package is installed. The shortest chapter stands for all; the others run weekly."""
    copy = shutil.copy(chapters.Chapter("block").notebook, tmp_path)
    done = jupyter_execute(Path(copy), sys.executable, dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@each_chapter
def test_every_notebook_runs_alone(chapter, tmp_path):
    copy = shutil.copy(chapter.notebook, tmp_path)
    done = jupyter_execute(Path(copy), sys.executable, dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]


def test_set_up_cell_installs_the_package_where_it_is_missing(tmp_path):
    """As on Colab: torch and the rest are there, joma_lib is not; a local clone stands for the repository, no index."""
    clone, fresh = tmp_path / "clone", tmp_path / "fresh"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "_build", "__pycache__", "*.egg-info", "build", ".*_cache", "book"
    )
    shutil.copytree(chapters.ROOT, clone, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    python = fresh / "bin" / "python"
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    # The packages of this environment, less the .pth file that makes the package importable from its source.
    (Path(site.strip()) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_FIND_LINKS")}
    environment |= {
        "JOMA_REPOSITORY": clone.as_uri(),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    absent = [
        str(python),
        "-c",
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('joma_lib') is not None)",
    ]
    assert subprocess.run(absent, cwd=tmp_path, env=environment).returncode == 0, (
        "the package must be absent first"
    )
    setup = next(c.source for c in CHAPTERS[0].read().cells if c.cell_type == "code")
    before = subprocess.check_output(
        [python, "-c", "import torch, numpy; print(torch.__version__, numpy.__version__)"]
    )
    code = setup + "\nimport joma_lib; print(joma_lib.__file__)"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(fresh) in done.stdout
    assert done.stderr.strip() == ""
    after = subprocess.check_output(
        [python, "-c", "import torch, numpy; print(torch.__version__, numpy.__version__)"]
    )
    assert before == after
    again = subprocess.run(
        [python, "-c", setup], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
