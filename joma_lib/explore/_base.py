"""What every explorer is made of: controls, panels, a model in Python and the same model in JavaScript.

An `Explorer` shows itself as one block of HTML that holds its own style, drawing and script and asks nobody for
anything: no kernel, no network, no element ids, the same bytes every time. The first picture is drawn here, in Python, so
that the block says something without JavaScript too; the script then redraws it as a control moves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

from joma_lib._lazy import require
from joma_lib.explore._drawing import SIZE, STYLE, Panel, fill, panel_html, written

__all__ = ["Choice", "Explorer", "Range", "State"]


@dataclass(frozen=True)
class Range:
    """A slider. `digits` are shown; with `log` the slider moves the exponent of ten; `label` may hold HTML."""

    name: str
    label: str
    low: float
    high: float
    step: float
    value: float
    digits: int = 2
    log: bool = False

    def check(self, value: Any) -> float:
        value = float(value)
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.name} is {value:g}; the slider goes from {self.low:g} to {self.high:g}")
        return value

    def html(self, shown: str) -> str:
        return (
            f'<label>{self.label} <b>{shown}</b><input type="range" data-control="{self.name}" min="{self.low:g}" max="{self.high:g}" '
            f'step="{self.step:g}" value="{self.value:g}" aria-valuetext="{shown}" autocomplete="off" disabled></label>'
        )


@dataclass(frozen=True)
class Choice:
    """A list to choose from; its value is the index of an option."""

    name: str
    label: str
    options: tuple[str, ...]
    value: int = 0

    def check(self, value: Any) -> int:
        if value not in range(len(self.options)):
            raise ValueError(
                f"{self.name} is {value!r}; give 0 to {len(self.options) - 1}, the index of an option"
            )
        return int(value)

    def html(self, shown: str) -> str:
        options = "".join(
            f'<option value="{i}"{" selected" * (i == self.value)}>{escape(option)}</option>'
            for i, option in enumerate(self.options)
        )
        return f'<label>{self.label} <select data-control="{self.name}" autocomplete="off" disabled>{options}</select></label>'


@dataclass(frozen=True)
class State:
    """What one position of the controls shows: numbers for the sentence and for checks, shapes {name: (xs, ys)}."""

    numbers: dict[str, Any]
    shapes: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    sentence: int = 0


@dataclass(frozen=True, eq=False)
class Explorer:
    """One interactive figure: shows itself as self-contained HTML; `widget()` gives the same as ipywidgets.

    Parameters
    ----------
    name, title : a short name, and the heading
    controls : sliders and choices
    panels : the drawings
    sentences : templates of the text below, "{number:digits}"; a state says which one applies
    evaluate : the model in Python: values of the controls by name in, `State` out
    script : the model in JavaScript, the body of a function that returns one
    data : what the script reads as `spec.data`
    frames : name of the slider that counts recorded frames, whose steps are shown instead of its value
    """

    name: str
    title: str
    controls: tuple[Range | Choice, ...]
    panels: tuple[Panel, ...]
    sentences: tuple[str, ...]
    evaluate: Callable[..., State]
    script: str
    data: dict[str, Any] = field(default_factory=dict)
    frames: str = ""

    def state(self, **values: float) -> State:
        """Return what the explorer shows, computed in Python; controls that are not named stay at their start.

        Raises
        ------
        ValueError : no such control, or a value that it cannot take.
        """
        known = {control.name: control for control in self.controls}
        for name in values:
            if name not in known:
                raise ValueError(f"control {name!r} is unknown; this explorer has {', '.join(known)}")
        chosen = {name: control.check(values.get(name, control.value)) for name, control in known.items()}
        return self.evaluate(**chosen)

    def sentence(self, **values: float) -> str:
        """Return the text below the drawings for these values."""
        state = self.state(**values)
        return fill(self.sentences[state.sentence], state.numbers)

    def _shown(self, control: Range | Choice, value: float, state: State) -> str:
        if isinstance(control, Choice):
            return control.options[int(value)]
        if control.name == self.frames:
            return written(state.numbers["step"], "0")
        return written(10**value if control.log else value, str(control.digits))

    def _panels(self, values: dict[str, float]) -> str:
        state = self.state(**values)
        return "".join(
            panel_html(
                panel, state.shapes, hidden=panel.when is not None and values[panel.when[0]] != panel.when[1]
            )
            for panel in self.panels
        )

    def _key(self, spec: dict[str, Any]) -> str:
        text = json.dumps(spec, sort_keys=True) + self.script
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def _spec(self) -> dict[str, Any]:
        panels = [
            {
                "name": panel.name,
                "when": panel.when,
                "x": panel.x.extent,
                "y": panel.y.extent,
                "bar": panel.bar,
                "shapes": [(shape.name, shape.kind) for shape in panel.shapes],
            }
            for panel in self.panels
        ]
        ranges = {c.name: {"digits": c.digits, "log": c.log} for c in self.controls if isinstance(c, Range)}
        return {
            "size": SIZE,
            "panels": panels,
            "controls": ranges,
            "frames": self.frames,
            "sentences": self.sentences,
            "data": self.data,
        }

    def _repr_html_(self) -> str:
        spec = self._spec()
        spec["key"] = self._key(spec)
        values = {control.name: control.value for control in self.controls}
        state = self.state()
        controls = "".join(c.html(self._shown(c, c.value, state)) for c in self.controls)
        runtime = (resources.files(__package__) / "runtime.js").read_text(encoding="utf-8")
        script = runtime.replace("/*MODEL*/", self.script).replace("</", "<\\/")
        constant = json.dumps(spec, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
        return (
            f'<div class="joma-explorer tex2jax_ignore mathjax_ignore" role="group" aria-label="Explorer: {escape(self.title)}" '
            f'data-explorer="{spec["key"]}">\n<style>{STYLE}</style>\n<p class="joma-explorer-title">{escape(self.title)}</p>\n'
            f'<div class="joma-controls">{controls}</div>\n<div class="joma-panels">{self._panels(values)}</div>\n'
            f'<p class="joma-says" aria-live="polite">{escape(self.sentence())}</p>\n'
            "<noscript>Without JavaScript the controls rest; the drawing shows their start.</noscript>\n"
            f'<script>(() => {{ "use strict";\nconst spec = {constant};\n{script}}})();</script>\n</div>'
        )

    def __repr__(self) -> str:
        return f"<Explorer: {self.title}; needs a page that shows HTML>"

    def widget(self) -> Any:
        """Return the same explorer as core ipywidgets, computed in Python as a control moves.

        Raises
        ------
        ImportError : ipywidgets is not installed (extra "widgets").
        """
        widgets = require("ipywidgets", extra="widgets")
        layout = widgets.Layout(width="min(100%, 36rem)")
        wide = {"description_width": "11rem"}
        made: dict[str, Any] = {}
        for control in self.controls:
            label = _plain(control.label)
            if isinstance(control, Choice):
                options = [(option, i) for i, option in enumerate(control.options)]
                made[control.name] = widgets.Dropdown(
                    options=options, value=control.value, description=label, layout=layout, style=wide
                )
                continue
            whole = float(control.step).is_integer() and float(control.low).is_integer()
            kind = widgets.IntSlider if whole else widgets.FloatSlider
            number: Callable[[float], float] = int if whole else float
            made[control.name] = kind(
                min=number(control.low),
                max=number(control.high),
                step=number(control.step),
                value=number(control.value),
                description=f"log10 {label}" if control.log else label,
                layout=layout,
                style=wide,
                continuous_update=False,
            )
        page = widgets.HTML()

        def update(_: Any = None) -> None:
            values = {name: one.value for name, one in made.items()}
            for control in self.controls:  # a slider's sum of steps may miss its end by a rounding error
                if isinstance(control, Range):
                    values[control.name] = min(max(values[control.name], control.low), control.high)
            page.value = (
                f'<div class="joma-explorer"><style>{STYLE}</style><div class="joma-panels">{self._panels(values)}</div>'
                f"<p>{escape(self.sentence(**values))}</p></div>"
            )

        for one in made.values():
            one.observe(update, names="value")
        update()
        return widgets.VBox([widgets.HTML(f"<b>{escape(self.title)}</b>"), *made.values(), page])


def _plain(label: str) -> str:
    """Drop the tags of a label, for widgets that show text alone."""
    out, inside = "", False
    for character in label:
        inside = character == "<" or (inside and character != ">")
        out += "" if inside or character == ">" else character
    return out
