"""Axes, panels and shapes as SVG: the frame of each drawing, drawn once, and the paths that move inside it.

`trace`, `written` and `fill` do in Python what functions of the same names do in runtime.js; a test compares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["SIZE", "STYLE", "Axis", "Panel", "Shape", "fill", "panel_html", "trace", "written"]

SIZE = (284, 170)
"""Width and height of a plot area, in the units of the drawing."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 26, 12, 38

COLORS = ("currentColor", "#d55e00", "#1f83c2", "#00916a", "#b85c94")
"""Each has a contrast of at least 3 on the page's white and on its dark ground; dashes and markers tell them apart too."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2")

STYLE = (
    ".joma-explorer{border:1px solid var(--pst-color-border,#8a8a8a);border-radius:.4rem;padding:.8rem;margin:1rem 0;"
    "color:var(--pst-color-text-base,inherit);background:var(--pst-color-background,transparent);font-size:.95rem;line-height:1.4}"
    ".cell_output .text_html:has(.joma-explorer){background:none!important;color:inherit!important;padding:0}"
    ".joma-explorer p{margin:.3rem 0}.joma-explorer .joma-explorer-title{font-weight:700;margin:0 0 .5rem}"
    ".joma-explorer .joma-says{min-height:3em}"
    ".joma-controls{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.3rem 1.2rem;align-items:end}"
    ".joma-controls label{display:block;margin:0}"
    ".joma-controls input{display:block;width:100%;height:1.6rem;accent-color:#1f83c2}"
    ".joma-controls select{font:inherit;min-height:1.8rem;max-width:100%;color:inherit;background:var(--pst-color-surface,transparent)}"
    ".joma-controls select option{color:#222;background:#fff}"
    ".joma-controls :focus-visible{outline:2px solid #1f83c2;outline-offset:2px}"
    ".joma-panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.4rem 1rem;margin-top:.6rem;align-items:end}"
    ".joma-panel{min-width:0;max-width:30rem}.joma-panel[hidden]{display:none}"
    ".joma-panel>svg{display:block;width:100%;height:auto;overflow:visible;background:none}"
    ".joma-panel .joma-caption{font-weight:600;font-size:.9rem}.joma-key{display:flex;flex-wrap:wrap;gap:0 .9rem;font-size:.85rem}"
    ".joma-key span{white-space:nowrap}.joma-key svg{display:inline-block;width:2.2em;height:.8em;margin-right:.3em;vertical-align:baseline}"
    ".joma-panel text{fill:currentColor;font-size:12px;font-family:inherit}"
)


@dataclass(frozen=True)
class Axis:
    """An axis with fixed ends, so that what moves is the data. With `log`, ends and ticks are powers of ten."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    @property
    def extent(self) -> tuple[float, float, bool]:
        return (self.low, self.high, self.log)

    def place(self, size: float, value: float, flip: bool = False) -> float:
        """Return where a value stands along `size` units; from the other end with `flip`."""
        at = (math.log10(value) if value > 0 else -math.inf) if self.log else value
        part = (at - self.low) / (self.high - self.low)
        return size * (1 - part if flip else part)


@dataclass(frozen=True)
class Shape:
    """One path: `kind` is line, pairs (separate strokes), dots, squares, bars or cursor; `key` its entry in the legend."""

    name: str
    kind: str
    key: str = ""
    color: int = 0
    dash: int = 0
    width: float = 1.8
    opacity: float = 1.0

    def attributes(self) -> str:
        color = COLORS[self.color % len(COLORS)]
        faint = f' opacity="{self.opacity:g}"' if self.opacity < 1 else ""
        if self.kind in ("line", "pairs", "cursor"):
            dash = f' stroke-dasharray="{DASHES[self.dash]}"' if DASHES[self.dash] else ""
            return f'fill="none" stroke="{color}" stroke-width="{self.width:g}"{dash}{faint}'
        return f'fill="{color}"{faint}'


@dataclass(frozen=True)
class Panel:
    """One drawing. `alt` describes it; `when` = (control, value) shows it for that value alone; `bar`: half a bar's width."""

    name: str
    title: str
    x: Axis
    y: Axis
    shapes: tuple[Shape, ...]
    alt: str
    when: tuple[str, int] | None = None
    bar: float = 4


def _rounded(value: float) -> str:
    return f"{value:.1f}"


def trace(kind: str, panel: Panel, xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return the path through points in the units of the axes; points that are not finite are left out."""
    width, height = SIZE
    floor = (
        _rounded(panel.y.place(height, max(0.0, panel.y.low), flip=True)) if not panel.y.log else str(height)
    )
    pieces, before = [], False
    for i, (x_value, y_value) in enumerate(zip(xs, ys, strict=True)):
        at = panel.x.place(width, x_value), panel.y.place(height, y_value, flip=True)
        if not (math.isfinite(x_value) and math.isfinite(y_value) and all(map(math.isfinite, at))):
            before = False
            continue
        x, y = _rounded(at[0]), _rounded(at[1])
        if kind in ("line", "pairs"):
            joined = before if kind == "line" else bool(i % 2)
            pieces.append(f"{'L' if joined else 'M'}{x} {y}")
        elif kind == "dots":
            pieces.append(f"M{x} {y}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0")
        elif kind == "squares":
            pieces.append(f"M{x} {y}m-4-4h8v8h-8z")
        elif kind == "bars":
            pieces.append(f"M{x} {floor}m-{panel.bar:g} 0V{y}h{2 * panel.bar:g}V{floor}z")
        else:
            pieces.append(f"M{x} 0V{height}")
        before = True
    return "".join(pieces)


def _ticks(panel: Panel) -> str:
    width, height = SIZE
    parts = []
    for value, text in panel.x.ticks:
        x = _rounded(_LEFT + panel.x.place(width, 10.0**value if panel.x.log else value))
        parts.append(f'<path d="M{x} {_TOP + height}v4" stroke="currentColor"/>')
        parts.append(f'<text x="{x}" y="{_TOP + height + 17}" text-anchor="middle">{escape(text)}</text>')
    for value, text in panel.y.ticks:
        y = _TOP + panel.y.place(height, 10.0**value if panel.y.log else value, flip=True)
        parts.append(f'<path d="M{_LEFT} {_rounded(y)}h{width}" stroke="currentColor" stroke-opacity=".18"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{_rounded(y + 4)}" text-anchor="end">{escape(text)}</text>')
    return "".join(parts)


def _sample(shape: Shape) -> str:
    drawn = {
        "dots": "M9 5m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
        "squares": "M6 1h8v8h-8z",
        "bars": "M7 0h6v10h-6z",
    }
    path = drawn.get(shape.kind, "M0 5H28")
    svg = f'<svg viewBox="0 0 28 10" aria-hidden="true"><path d="{path}" {shape.attributes()}/></svg>'
    return f"<span>{svg}{escape(shape.key)}</span>"


def panel_html(panel: Panel, shapes: Mapping[str, Any], hidden: bool = False) -> str:
    """Return one drawing with its title and legend; `shapes` maps names to (xs, ys)."""
    width, height = SIZE
    paths = "".join(
        f'<path data-shape="{shape.name}" {shape.attributes()} d="{"" if hidden else trace(shape.kind, panel, *shapes[shape.name])}"/>'
        for shape in panel.shapes
    )
    key = "".join(_sample(shape) for shape in panel.shapes if shape.key)
    return (
        f'<div class="joma-panel" data-panel="{panel.name}"{" hidden" * hidden}><div class="joma-caption">{escape(panel.title)}</div>'
        f'<div class="joma-key">{key}</div>'
        f'<svg viewBox="0 0 {_LEFT + width + _RIGHT} {_TOP + height + _BOTTOM}" role="img" aria-label="{escape(panel.alt)}">'
        f'<text x="0" y="12">{escape(panel.y.label)}</text>'
        f'<text x="{_LEFT + width}" y="{_TOP + height + 33}" text-anchor="end">{escape(panel.x.label)}</text>'
        f'{_ticks(panel)}<path d="M{_LEFT} {_TOP}v{height}h{width}" fill="none" stroke="currentColor"/>'
        f'<svg x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}">{paths}</svg></svg></div>'
    )


def written(value: Any, digits: str) -> str:
    """Return a number with so many decimals, "s" for text as it is; no minus before a zero.

    >>> written(-0.001, "2"), written(-1.5, "1"), written(float("inf"), "1"), written("exp", "s")
    ('0.00', '−1.5', '∞', 'exp')
    """
    if digits == "s":
        return str(value)
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else "−∞" if value < 0 else "∞"
    text = f"{value:.{digits}f}"
    return (f"{0:.{digits}f}" if float(text) == 0 else text).replace("-", "−")


def fill(template: str, numbers: Mapping[str, Any]) -> str:
    """Put numbers into a template: "{name:digits}", "{list.index:digits}".

    >>> fill("v = {v.1:2}", {"v": [1.0, 2.0]})
    'v = 2.00'
    """

    def one(match: re.Match[str]) -> str:
        value: Any = numbers
        for key in match[1].split("."):
            value = value[int(key)] if isinstance(value, (list, tuple)) else value[key]
        return written(value, match[2])

    return re.sub(r"\{([\w.]+):(\w)\}", one, template)
