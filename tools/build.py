"""Build the book: execute each chapter once, collect the ledger, export notebooks, render HTML.

python tools/build.py execute [NAME ...]   run chapters (through the cache); a failure prints its traceback
python tools/build.py notebooks            execute, then write book/NAME.ipynb and the ledger
python tools/build.py html                 execute, then render _build/html and check it
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chapters
import export
import summary
import yaml
from nbformat import NotebookNode

from joma_lib import figures


def execute(names: list[str], jobs: int = 1) -> dict[str, NotebookNode]:
    """Execute the named chapters (all when none is named); exit with the tracebacks of those that fail."""
    known = {chapter.name: chapter for chapter in chapters.chapters()}
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"no such chapter: {', '.join(unknown)}; chapters are {', '.join(known)}")
    results: dict[str, NotebookNode] = {}
    failures: list[str] = []

    def run(name: str) -> None:
        try:
            notebook, seconds, cached = chapters.executed(known[name])
        except chapters.ChapterFailed as failure:
            failures.append(str(failure))
            print(f"{name:28s} FAILED", flush=True)
        else:
            results[name] = notebook
            print(f"{name:28s} {seconds:6.1f} s{' (cached)' if cached else ''}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, names or list(known)))
    if failures:
        sys.exit("\n\n".join(failures))
    return {name: results[name] for name in known if name in results}


def notebooks(jobs: int) -> None:
    """Write every executed chapter as a notebook beside its source, and the ledger that they add up to."""
    results = execute([], jobs)
    chapters.LEDGER.write_text(chapters.ledger_text(list(results.values())), encoding="utf-8")
    summary.write()
    figures.idea().savefig(chapters.BOOK / "_static" / "idea.png", dpi=150, metadata={"Software": None})
    for name, notebook in results.items():
        export.write(chapters.Chapter(name), notebook)
    print(f"wrote {len(results)} notebooks")


def html(jobs: int) -> None:
    """Render the book; warnings are errors, and every page must be there with its outputs."""
    results = execute([], jobs)
    if chapters.ledger_text(list(results.values())) != chapters.LEDGER.read_text(encoding="utf-8"):
        sys.exit(
            "the claims of the chapters differ from the ledger; run `make notebooks` and commit what it writes"
        )
    settings = chapters.config()
    settings["execute"]["cache"] = str(chapters.cache_path())
    local = settings["sphinx"]["local_extensions"]
    settings["sphinx"]["local_extensions"] = {name: str(chapters.ROOT / path) for name, path in local.items()}
    chapters.BUILD.mkdir(exist_ok=True)
    derived = chapters.BUILD / "config.yml"
    text = yaml.safe_dump(settings, allow_unicode=True)
    if not derived.exists() or derived.read_text(encoding="utf-8") != text:
        derived.write_text(text, encoding="utf-8")
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        str(chapters.ROOT),
        "-W",
        "-n",
        "--keep-going",
    ]
    status = subprocess.run(
        [*command, "--config", str(derived), "--toc", str(chapters.ROOT / "_toc.yml")]
    ).returncode
    if status:
        sys.exit(status)
    missing = [page for page in chapters.pages() if not chapters.Chapter(page).html.exists()]
    if missing:
        sys.exit(f"pages missing from the book: {', '.join(missing)}")
    for old in chapters.BUILD.glob(".jupyter_cache-*"):
        if old != chapters.cache_path():
            shutil.rmtree(old)
    print(f"book: {(chapters.HTML / 'index.html').relative_to(chapters.ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["execute", "notebooks", "html"])
    parser.add_argument("names", nargs="*", help="chapters to execute (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="chapters executed at the same time")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # chapters reach no hub
    if arguments.step == "execute":
        execute(arguments.names, arguments.jobs)
    elif arguments.step == "notebooks":
        notebooks(arguments.jobs)
    else:
        html(arguments.jobs)


if __name__ == "__main__":
    main()
