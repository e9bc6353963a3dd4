"""The claim ledger: what the book says, what it rests on, and the verdict.

A chapter ends each claim with a `Claim` as the last expression of the cell that asserts it. The build collects those
records from the executed chapters into `joma_lib/data/ledger.json`, which `ledger` reads back.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from html import escape
from importlib import resources
from typing import Any

__all__ = ["MIME", "VERDICTS", "Claim", "ledger"]

VERDICTS = ("proved", "holds", "reproduced", "caveat", "not supported")
"""proved: symbolically; holds: measured, no figure of the paper to meet; reproduced: the paper's figure or table is met;
caveat: true with a restriction that the paper does not state; not supported: the evidence speaks against it."""

MIME = "application/vnd.joma.claim+json"
_MARKS = {"proved": "■", "holds": "●", "reproduced": "◆", "caveat": "▲", "not supported": "✕"}


def _typeset(text: str) -> str:
    r"""Turn `$...$` into `\(...\)`, which notebooks and the book typeset inside HTML."""
    return re.sub(r"\$([^$]+)\$", r"\\(\1\\)", text)


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Parameters
    ----------
    id : short, unique, lower-case name, such as "thm1-exp"
    statement : what is claimed, in one sentence; `$...$` holds mathematics
    chapter : name of the chapter that settles it
    evidence : kind of evidence, such as "SymPy, any M and K" or "10 seeds, float64"
    value : the number it rests on, rounded so that it is the same on every machine
    verdict : one of `VERDICTS`

    Raises
    ------
    ValueError : an unknown verdict, or an empty field.

    >>> Claim("demo", "one is one", chapter="index", evidence="arithmetic", value=0, verdict="proved")
    demo | proved | one is one | arithmetic | 0
    """

    id: str
    statement: str
    chapter: str
    evidence: str
    value: str | float
    verdict: str

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is unknown; use one of {', '.join(VERDICTS)}")
        for name in ("id", "statement", "chapter", "evidence"):
            if not str(getattr(self, name)).strip():
                raise ValueError(f"{name} is empty; a claim needs a text there")

    def __repr__(self) -> str:
        return " | ".join((self.id, self.verdict, self.statement, self.evidence, str(self.value)))

    @property
    def mark(self) -> str:
        """A sign for the verdict that needs no colour."""
        return _MARKS[self.verdict]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        kind = self.verdict.replace(" ", "-")
        words = _typeset(escape(self.statement))
        html = (
            f'<div class="joma-claim joma-{kind} tex2jax_process mathjax_process" id="claim-{escape(self.id)}">'
            f'<span class="joma-verdict">{self.mark} {escape(self.verdict)}</span> {words} '
            f'<span class="joma-evidence">{escape(self.evidence)}: {escape(str(self.value))}</span></div>'
        )
        return {"text/plain": repr(self), "text/html": html, MIME: asdict(self)}


def ledger() -> list[Claim]:
    """Return every claim of the book, in the order of its chapters.

    Raises
    ------
    ValueError : the shipped file is damaged.

    >>> all(isinstance(claim, Claim) for claim in ledger())
    True
    """
    source = resources.files("joma_lib") / "data" / "ledger.json"
    try:
        return [Claim(**row) for row in json.loads(source.read_text(encoding="utf-8"))]
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"the ledger {source.name} cannot be read ({error}); run `make book` to rebuild it"
        ) from error
