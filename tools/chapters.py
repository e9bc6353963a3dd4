"""The book as data: its chapters, its configuration, its executed notebooks. What the other tools share."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import read_myst_markdown_notebook
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
BUILD = ROOT / "_build"
HTML = BUILD / "html"
LEDGER = ROOT / "joma_lib" / "data" / "ledger.json"
MIME = "application/vnd.joma.claim+json"
CELL_TIMEOUT = 600


def config() -> dict[str, Any]:
    """The book's configuration, as written in `_config.yml`."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def version() -> str:
    """The version of the package, which is the version of the book."""
    text = (ROOT / "joma_lib" / "__init__.py").read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].split('"')[0]


def pages() -> list[str]:
    """Names of all pages, in the order of `_toc.yml`."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [toc["root"]] + [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [Path(file).name for file in files]


@dataclass(frozen=True)
class Chapter:
    """One page of the book. `is_notebook` tells whether it is executed."""

    name: str

    @property
    def source(self) -> Path:
        return BOOK / f"{self.name}.md"

    @property
    def notebook(self) -> Path:
        return BOOK / f"{self.name}.ipynb"

    @property
    def html(self) -> Path:
        return HTML / "book" / f"{self.name}.html"

    @property
    def text(self) -> str:
        return self.source.read_text(encoding="utf-8")

    @property
    def is_notebook(self) -> bool:
        return "\nkernelspec:" in self.text[:1000]

    def read(self) -> NotebookNode:
        """The source as a notebook without outputs."""
        return read_myst_markdown_notebook(self.text, path=str(self.source))


def chapters() -> list[Chapter]:
    """Every page that is a notebook, in the order of the book."""
    return [chapter for chapter in map(Chapter, pages()) if chapter.source.exists() and chapter.is_notebook]


def _digest(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def cache_path() -> Path:
    """Folder of the execution cache. Its name hashes all of `joma_lib` (the ledger aside) and the lock file,
    so that a change there executes the chapters again: the cache alone looks at the cells only."""
    package = [p for p in (ROOT / "joma_lib").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    files = sorted(p for p in package if p != LEDGER)
    return BUILD / f".jupyter_cache-{_digest([*files, ROOT / 'requirements.lock'])[:16]}"


_CACHE = threading.Lock()  # the cache is one SQLite file, and chapters may run side by side


class ChapterFailed(Exception):
    """A chapter raised; the message is its traceback."""


def executed(chapter: Chapter) -> tuple[NotebookNode, float, bool]:
    """Return (notebook with outputs, seconds, came from the cache). A chapter that fails is never cached.

    Raises
    ------
    ChapterFailed : with the traceback of the failing cell.
    """
    source = chapter.read()
    with _CACHE:
        cache = get_cache(str(cache_path()))
        try:
            record = cache.match_cache_notebook(source)
            return cache.merge_match_into_notebook(source)[1], record.data["execution_seconds"], True
        except KeyError:
            pass
    notebook = nbformat.from_dict(source)
    result = single_nb_execution(notebook, cwd=str(BOOK), timeout=CELL_TIMEOUT, allow_errors=False)
    if result.err is not None:
        raise ChapterFailed(f"{chapter.source.relative_to(ROOT)} failed:\n{result.err}")
    bundle = CacheBundleIn(notebook, str(chapter.source), data={"execution_seconds": result.time})
    with _CACHE:
        cache = get_cache(str(cache_path()))
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
        return cache.merge_match_into_notebook(source)[1], result.time, False


def claims_of(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claim records that the cells of an executed notebook emitted."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [dict(output["data"][MIME]) for output in outputs if MIME in output.get("data", {})]


def ledger_rows() -> list[dict[str, Any]]:
    """The claims as the ledger file holds them."""
    return json.loads(LEDGER.read_text(encoding="utf-8"))


def ledger_text(notebooks: list[NotebookNode]) -> str:
    """The ledger file's content for these executed notebooks, in the order given.

    Raises
    ------
    ValueError : two claims share an id.
    """
    rows = [row for notebook in notebooks for row in claims_of(notebook)]
    ids = [row["id"] for row in rows]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"claim ids must be unique; used more than once: {', '.join(twice)}")
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
