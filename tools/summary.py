"""The ledger in words and tables: for the book's pages, and for the block of the README that `write` keeps in step."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

import chapters

from joma_lib.claims import VERDICTS, Claim

README = chapters.ROOT / "README.md"
BEGIN, END = "<!-- ledger: begin -->", "<!-- ledger: end -->"
_WORDS = {
    "proved": "proved symbolically",
    "holds": "measured to hold",
    "reproduced": "figures or tables reproduced",
    "caveat": "true with a restriction the paper does not state",
    "not supported": "not supported by the evidence",
}


def counts() -> str:
    """One sentence: how many claims, how many with each verdict."""
    number = Counter(row["verdict"] for row in chapters.ledger_rows())
    parts = [f"{number[verdict]} {_WORDS[verdict]}" for verdict in VERDICTS if number[verdict]]
    return f"{sum(number.values())} claims: {', '.join(parts)}."


def table(rows: list[dict[str, Any]], link: bool) -> list[str]:
    """Markdown lines: claim, verdict, evidence. With `link`, each claim leads to its place in the built book."""
    lines = ["| | claim | what it rests on |", "|---|---|---|"]
    for row in rows:
        claim = Claim(**row)
        statement = claim.statement.replace("|", "\\|")
        evidence = f"{claim.evidence}: {claim.value}".replace("|", "\\|")
        verdict = f"{claim.mark} {claim.verdict}"
        if link:
            verdict = f'<a href="{claim.chapter}.html#claim-{escape(claim.id)}">{verdict}</a>'
        lines.append(f"| {verdict} | {statement} | {evidence} |")
    return lines


def by_chapter() -> list[str]:
    """The whole ledger: a heading line and a table for each chapter."""
    lines: list[str] = []
    for page in chapters.pages():
        rows = [row for row in chapters.ledger_rows() if row["chapter"] == page]
        if rows:
            lines += ["", f"**[](/book/{page}.md)**", "", *table(rows, link=True), ""]
    return lines


def head(names: list[str], link: bool = True) -> list[str]:
    """The counts and the rows of the claims named.

    Raises
    ------
    ValueError : a name that no chapter emits.
    """
    rows = {row["id"]: row for row in chapters.ledger_rows()}
    missing = [name for name in names if name not in rows]
    if missing:
        raise ValueError(
            f"no chapter emits the claims {', '.join(missing)}; mend the list or run `make notebooks`"
        )
    return [counts(), "", *table([rows[name] for name in names], link)]


def head_names() -> list[str]:
    """The claims that the front page shows, as listed there."""
    lines = chapters.Chapter("index").text.split("```{ledger-head}\n")[1].split("```")[0]
    return lines.split()


def readme() -> str:
    """The README with its ledger block brought up to date."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    block = "\n".join(head(head_names(), link=False))
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def write() -> None:
    """Bring the README's ledger block up to date."""
    README.write_text(readme(), encoding="utf-8")
