"""Export a chapter as a notebook that reads well where MyST is not understood (Colab, GitHub).

`convert` turns an executed source into that notebook; the same chapter gives the same bytes every time. `plain` turns MyST into
plain Markdown: theorem blocks and admonitions become quotations, roles become text or links, labels go.
Syntax that it does not know is an error, so that none reaches a reader raw.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import chapters
import nbformat
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pybtex.database import parse_file

_FENCE = re.compile(r"^( *)(`{3,}|:{3,})\{([\w:.-]+)\} *(.*?) *$")
_ROLE = re.compile(r"\{([a-z:]+)\}`([^`]+)`")
_TARGET = re.compile(r"^\(([\w:.-]+)\)= *$")
_OPTION = re.compile(r"^:([\w-]+): *(.*)$")
_TITLED = re.compile(r"^(.*?) *<([^<>]+)>$", re.DOTALL)
_NAMES = {"seealso": "See also", "dropdown": "Details"}
_QUOTES = {"note", "warning", "tip", "important", "hint", "caution", "seealso", "admonition", "dropdown"}


def repository() -> str:
    """Where the set-up cell installs the package from: the book's repository, at the tag of this version."""
    return f"git+{chapters.config()['repository']['url']}@v{chapters.version()}"


def _split_options(lines: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    if lines and lines[0].strip() == "---":
        end = lines.index("---", 1)
        return yaml.safe_load("\n".join(lines[1:end])) or {}, lines[end + 1 :]
    while lines and (match := _OPTION.match(lines[0].strip())):
        options[match[1]] = match[2]
        lines = lines[1:]
    return options, lines


@functools.cache
def _labels() -> dict[str, tuple[str, str]]:
    """Every label of the book: label -> (page, words to show for it)."""
    found: dict[str, tuple[str, str]] = {}
    for page in (page for page in chapters.pages() if chapters.Chapter(page).source.exists()):
        waiting: list[str] = []
        kind = title = ""
        for line in chapters.Chapter(page).text.splitlines():
            if match := _TARGET.match(line):
                waiting.append(match[1])
            elif match := re.match(r"^#+ +(.*)$", line):
                found |= {label: (page, match[1]) for label in waiting}
                waiting = []
            elif match := _FENCE.match(line):
                kind, title = match[3].split(":")[-1].removesuffix("-start"), match[4]
            elif match := re.match(r"^:(?:label|name): *(\S+)$", line):
                found[match[1]] = (page, title or kind)
            for name in re.findall(r"figure: *\{ *name: *([\w:-]+)", line):
                found[name] = (page, "figure")
    return found


@functools.cache
def _title(page: str) -> str:
    return next(
        line[2:].strip() for line in chapters.Chapter(page).text.splitlines() if line.startswith("# ")
    )


@functools.cache
def _citations() -> dict[str, tuple[str, str, str]]:
    """BibTeX key -> (authors, year, address)."""
    found = {}
    for key, entry in parse_file(str(chapters.BOOK / "references.bib")).entries.items():
        persons = entry.persons.get("author", [])
        names = [" ".join(person.last_names) for person in persons]
        authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names) or entry.fields["title"]
        found[key] = (authors, entry.fields.get("year", "n.d."), entry.fields.get("url", ""))
    return found


class _Page:
    """Turns the Markdown of one chapter into plain Markdown; counts its equations."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        labels = re.findall(r"^```\{math\}\n(?:.*\n)*?:label: *(\S+)$", text, re.MULTILINE)
        labels += [m for m in re.findall(r"^\$\$ *\(([\w:.-]+)\)$", text, re.MULTILINE)]
        self.equations = {label: number for number, label in enumerate(dict.fromkeys(labels), 1)}

    def address(self, page: str) -> str:
        return f"{page}.ipynb" if chapters.Chapter(page).is_notebook else f"{page}.md"

    def role(self, match: re.Match[str]) -> str:
        role, body = match[1], match[2]
        titled = _TITLED.match(body)
        words, target = (titled[1], titled[2]) if titled else ("", body)
        if role.startswith("cite"):
            return self.cite(role, body)
        if role == "math":
            return f"${body}$"
        if role in ("term", "abbr"):
            return words or target
        if role == "eq":
            return f"({self.equations[target]})" if target in self.equations else f"({target})"
        if role == "doc":
            page = Path(target).name
            return f"[{words or _title(page)}]({self.address(page)})"
        if role in ("ref", "numref", "prf:ref"):
            if target not in _labels():
                raise ValueError(
                    f"book/{self.name}.md: label {target!r} is unknown; define it or mend the reference"
                )
            page, shown = _labels()[target]
            shown = (words or shown).replace("%s", "").strip()
            return f"[{shown}]({self.address(page)})" if page != self.name else f"“{shown}”"
        raise ValueError(f"book/{self.name}.md: role {role!r} has no plain form; teach it to tools/export.py")

    def cite(self, role: str, body: str) -> str:
        parts = []
        for key in (part.strip() for part in body.split(",")):
            if key not in _citations():
                raise ValueError(
                    f"book/{self.name}.md: citation {key!r} is not in references.bib; add it there"
                )
            authors, year, url = _citations()[key]
            text = f"{authors} ({year})" if role == "cite:t" else f"{authors}, {year}"
            parts.append(f"[{text}]({url})" if url else text)
        joined = ", ".join(parts) if role == "cite:t" else "; ".join(parts)
        return joined if role == "cite:t" else f"({joined})"

    def inline(self, text: str) -> str:
        text = _ROLE.sub(self.role, text)
        return re.sub(r"\]\(([\w-]+)\.md(#[\w-]+)?\)", lambda m: f"]({self.address(m[1])})", text)

    def plain(self, text: str) -> str:
        """MyST in, plain Markdown out."""
        out: list[str] = []
        lines = text.splitlines()
        while lines:
            line = lines.pop(0)
            if _TARGET.match(line) or line.startswith("% "):
                continue
            if match := re.match(r"^\$\$ *\(([\w:.-]+)\)$", line):
                out.append(f"\\tag{{{self.equations[match[1]]}}}\n$$")
            elif match := _FENCE.match(line):
                body = self._body(lines, match[2], len(match[1]))
                out += self.directive(match[3], match[4], body).splitlines()
            elif match := re.match(r"^ *(`{3,})", line):
                out.append(line)
                while lines:
                    out.append(lines.pop(0))
                    if out[-1].strip() == match[1]:
                        break
            else:
                out.append(self.inline(line))
        return "\n".join(out).strip("\n")

    def _body(self, lines: list[str], fence: str, indent: int) -> list[str]:
        body: list[str] = []
        while lines:
            line = lines.pop(0)
            if line.strip() == fence[0] * len(line.strip()) and len(line.strip()) >= len(fence):
                return body
            body.append(line[min(indent, len(line) - len(line.lstrip())) :])
        raise ValueError(f"book/{self.name}.md: a {fence} block is never closed; close it")

    def directive(self, name: str, argument: str, body: list[str]) -> str:
        options, body = _split_options(body)
        text = "\n".join(body).strip("\n")
        known: dict[str, Callable[[], str]] = {
            "math": lambda: self.math(text, options),
            "figure": lambda: f"![{options.get('alt', '')}]({argument})\n\n*{self.plain(text)}*",
            "image": lambda: f"![{options.get('alt', '')}]({argument})",
            "list-table": lambda: self.table(argument, body),
            "exercise-end": lambda: "",
            "solution-end": lambda: "",
            "code-block": lambda: f"```{argument}\n{text}\n```",
        }
        if name in known:
            return known[name]()
        if name.startswith("prf:"):
            heading = name.removeprefix("prf:").capitalize()
            if "paper" in str(options.get("class", "")):
                heading = f"The paper's {heading.lower()}"
            return self.quote(f"{heading} ({argument})" if argument else heading, text)
        if name in ("exercise", "exercise-start"):
            return self.quote(f"Exercise ({argument})" if argument else "Exercise", text)
        if name in ("solution", "solution-start"):
            return self.quote("Solution", text) if text else "**Solution**"
        if name in _QUOTES:
            return self.quote(argument or _NAMES.get(name, name.capitalize()), text)
        raise ValueError(
            f"book/{self.name}.md: directive {name!r} has no plain form; teach it to tools/export.py"
        )

    def math(self, text: str, options: dict[str, str]) -> str:
        tag = (
            f"\\tag{{{self.equations[options['label']]}}}\n" if options.get("label") in self.equations else ""
        )
        return f"$$\n{text}\n{tag}$$"

    def quote(self, heading: str, text: str) -> str:
        inner = f"**{self.inline(heading)}.**\n\n{self.plain(text)}"
        return "\n".join(f"> {line}".rstrip() for line in inner.splitlines())

    def table(self, title: str, body: list[str]) -> str:
        rows: list[list[str]] = []
        for line in body:
            if match := re.match(r"^\* - ?(.*)$", line):
                rows.append([match[1]])
            elif match := re.match(r"^  - ?(.*)$", line):
                rows[-1].append(match[1])
            elif line.strip():
                rows[-1][-1] += " " + line.strip()
        cells = [[self.inline(cell).replace("|", "\\|") for cell in row] for row in rows]
        head = "| " + " | ".join(cells[0]) + " |\n|" + "---|" * len(cells[0])
        table = "\n".join([head, *("| " + " | ".join(row) + " |" for row in cells[1:])])
        return f"**{self.inline(title)}**\n\n{table}" if title else table


def _clean(output: NotebookNode) -> NotebookNode:
    output = nbformat.from_dict(output)
    if "metadata" in output:
        output["metadata"] = {}
    if "execution_count" in output:
        output.pop("execution_count")
        output["execution_count"] = None
    return output


def convert(chapter: chapters.Chapter, source: NotebookNode) -> NotebookNode:
    """The notebook to ship for `source`, which may or may not hold outputs."""
    page = _Page(chapter.name, chapter.text)
    cells: list[NotebookNode] = []
    count = 0
    for cell in source.cells:
        name = f"{chapter.name.replace('_', '-')}-{len(cells):03d}"
        if cell.cell_type == "markdown":
            text = page.plain(cell.source)
            if text:
                cells.append(new_markdown_cell(text, id=name))
            continue
        count += 1
        code = cell.source.replace("BOOK_REPOSITORY@BOOK_TAG", repository())
        tags = list(cell.metadata.get("tags", []))
        new = new_code_cell(code, id=name, metadata={"tags": tags} if tags else {})
        if cell.get("execution_count"):
            new.execution_count = count
            new.outputs = [_clean(output) for output in cell.get("outputs", [])]
            for output in new.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
        cells.append(new)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def write(chapter: chapters.Chapter, executed: NotebookNode) -> None:
    """Write book/NAME.ipynb; an unchanged chapter changes no byte."""
    text = nbformat.writes(convert(chapter, executed), version=4) + "\n"
    nbformat.validate(nbformat.reads(text, as_version=4))
    if not chapter.notebook.exists() or chapter.notebook.read_text(encoding="utf-8") != text:
        chapter.notebook.write_text(text, encoding="utf-8")
