"""Plots of the report: figures, a sentence on their content, and their numbers.

Figures are Vega-Lite charts made by Altair, the same in the page and as files. Charts name their data. A page
has each data set once, however many charts use it. The JavaScript of charts is inlined (`library`), so a page
makes no requests.
"""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import escape
from importlib.resources import files
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from automl.base.escape import printable
from automl.report import style

VERSION = "6.4"  # of Vega-Lite, whose grammar the charts are written in
WHEEL = "wheel![event.ctrlKey || event.metaKey]"  # without a key, the wheel scrolls the page
ZOOM = "Ctrl and the wheel zoom, dragging moves, a double click resets."  # below a figure with `zoom`
DRAG = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"

Chart = alt.Chart | alt.LayerChart
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Charts that belong together.

    Attributes:
        data: The rows of each data set that the charts name.
        zoom: True if the axes can be zoomed and moved.
        wide: True if the figure takes a whole row.
    """

    charts: Sequence[Chart]
    data: Mapping[str, Rows]
    zoom: bool = False
    wide: bool = False

    def specs(self) -> list[dict[str, Any]]:
        """Return the specification of each chart for a browser, without its data."""
        specs = []
        for chart in self.charts:
            spec = {**_dict(chart), "config": style.CONFIG, "background": "transparent"}
            if self.zoom:
                first = spec["layer"][0] if "layer" in spec else spec
                types = {axis: first.get("encoding", {}).get(axis, {}).get("type") for axis in ("x", "y")}
                axes = [axis for axis, kind in types.items() if kind == "quantitative"]
                select = {"type": "interval", "encodings": axes, "zoom": WHEEL, "translate": DRAG}
                if axes:
                    first["params"] = [{"name": "zoom", "select": select, "bind": "scales"}]
            specs.append(spec)
        return specs

    def svg(self) -> str:
        """Return all charts as one static SVG."""
        columns = 2 if len(self.charts) > 3 else 1
        wide = style.WIDTH if len(self.charts) == 1 or columns == 1 else style.WIDTH // 2 + 40
        parts = [{**_dict(chart), "width": wide} for chart in self.charts]
        whole = parts[0] if len(parts) == 1 else {"concat": parts, "columns": columns}
        spec = _visible({**whole, "datasets": dict(self.data), "config": style.CONFIG, "background": "white"})
        return _numbered(str(vl_convert.vegalite_to_svg(spec, vl_version=VERSION)))

    def element(self, label: str = "figure") -> str:
        """Return the element of a page that the script fills with the charts."""
        charts = "".join(
            f'<div class="chart" style="min-height: {spec.get("height", style.HEIGHT)}px">'
            f'<script type="application/json">{inline(spec)}</script></div>'
            for spec in self.specs()
        )
        return f'<div class="charts" role="img" aria-label="{escape(label)}">{charts}</div>'


@dataclass(frozen=True, kw_only=True)
class Pictures(Figure):
    """Figure of pictures with captions, which only the page has.

    Attributes:
        kind: What they show, as a class of the style sheet.
        pictures: The HTML and the caption of each.
    """

    kind: str
    pictures: Sequence[tuple[str, str]]
    charts: Sequence[Chart] = ()
    data: Mapping[str, Rows] = field(default_factory=dict)
    wide: bool = True

    def element(self, label: str = "figure") -> str:
        """Return the pictures as HTML. Screen readers read only the label, and the table of the plot."""
        cells = "".join(
            f'<figure class="map">{html}<figcaption>{escape(printable(caption))}</figcaption></figure>'
            for html, caption in self.pictures
        )
        return f'<div class="maps {self.kind}" role="img" aria-label="{escape(label)}">{cells}</div>'


def save(figure: Figure, folder: Any, name: str) -> None:
    """Write a figure as SVG and PNG."""
    svg = figure.svg()
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    (folder / f"{name}.png").write_bytes(vl_convert.svg_to_png(svg, scale=2))


def scripts(data: Mapping[str, Rows]) -> str:
    """Return the elements at the end of a page that draw its charts: data, library and script."""
    return (
        f'<script type="application/json" id="data">{inline(data)}</script>'
        f"<script type='module'>{library()}</script><script type='module'>{_file('figures.js')}</script>"
    )


def stylesheet() -> str:
    """Return the style sheet of charts and tooltips."""
    return _file("figures.css")


def inline(value: Any) -> str:
    """Return JSON that cannot end the script element that contains it."""
    text = json.dumps(_visible(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _visible(value: Any) -> Any:
    """Return the value without control characters in texts, which neither SVG nor UTF-8 allow."""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, Mapping):
        return {key: _visible(item) for key, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _numbered(svg: str) -> str:
    """Number clip paths and gradients from 1, since Vega continues the numbers of the last figure."""
    ids = dict.fromkeys(re.findall(r'\bid="((?:clip|gradient_)\d+)"', svg))
    new = {old: f"{old.rstrip('0123456789')}{i}" for i, old in enumerate(ids, start=1)}
    return re.sub(r"\b(?:clip|gradient_)\d+\b", lambda match: new.get(match[0], match[0]), svg)


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from vl-convert."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return str(bundle).replace("</script", "<\\/script")


@cache
def _file(name: str) -> str:
    return (files("automl.report") / name).read_text(encoding="utf-8")


def _dict(chart: Chart) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(chart.to_dict(validate=False))
    for key in ("$schema", "config"):
        spec.pop(key, None)
    return {"width": style.WIDTH, "height": style.HEIGHT, **spec}


Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows. Numbers are aligned and sorted as numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @cached_property
    def numeric(self) -> list[bool]:
        """Return for each column whether it has numbers only."""
        known = [[row[i] for row in self.rows if row[i] is not None] for i in range(len(self.columns))]
        return [bool(cells) and all(isinstance(cell, int | float) for cell in cells) for cells in known]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure of the report.

    Attributes:
        name: The name of its files.
        figure: The figure, or None without data. `says` then has the reason.
        says: The content of the figure in words, computed from the same numbers.
        note: How to read it.
    """

    name: str
    title: str
    figure: Figure | None
    says: str
    note: str = ""
    warnings: Sequence[str] = ()
    table: Table | None = None

    @property
    def drawing(self) -> Markup | None:
        """Return the element of the figure. Screen readers read only its label."""
        return None if self.figure is None else Markup(self.figure.element(f"{self.title}. {self.says}"))


@dataclass(frozen=True, kw_only=True)
class Section:
    """Plots that belong together.

    Attributes:
        dense: True if plots of different heights are set without gaps.
        of_trials: True if the plots compare many trials, so that few are not worth a look.
    """

    id: str
    title: str
    lead: str
    plots: Sequence[Plot]
    dense: bool = False
    of_trials: bool = False


def absent(name: str, title: str, why: str) -> Plot:
    """Return a plot without a figure, with the reason."""
    return Plot(name=name, title=title, figure=None, says=why)
