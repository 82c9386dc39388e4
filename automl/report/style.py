"""The style of the figures: one width that fits a phone, one palette that is safe for colour blindness.

Colours: M. Okabe and K. Ito, Color Universal Design (2008), with a different marker for each, so that
nothing is shown by colour alone; maps are cividis (J. Nuñez et al. (2018), arXiv 1712.01662).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention import ATTENTIONS
from automl.config.units import short
from automl.report.read import MIXED, PLAIN

WIDTH = 3.75  # inches: 360 CSS pixels, what a phone has between its margins
LETTER = 0.072  # inches that a letter of the small size takes, on the wide side
MANY = 300  # marks from which on they are drawn as an image inside the SVG

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE, INK = "#767676", "#c8c8c8", "#222222"

# Better is blue and worse is red, white is no difference: apart for every eye, and in print.
DIFFERENCE = LinearSegmentedColormap.from_list("difference", [RED, "#ffffff", BLUE])
MAP = "cividis"

_KNOWN = {
    "ssa": (BLUE, "o"),
    "ssa-sym": (SKY, "v"),
    "sagan": (GREEN, "^"),
    "decomposed": (PURPLE, "P"),
    "multihead": (RED, "X"),
    "conv1x1": (GREY, "s"),
    MIXED: (ORANGE, "d"),
    PLAIN: (BLACK, "*"),
}
_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the layout is the same everywhere
    "font.size": 7.6,
    "axes.titlesize": 7.6,
    "axes.titleweight": "bold",
    "axes.labelsize": 7.6,
    "xtick.labelsize": 7.2,
    "ytick.labelsize": 7.2,
    "legend.fontsize": 7.2,
    "legend.frameon": False,
    "legend.handlelength": 1.3,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.formatter.useoffset": False,
    "svg.fonttype": "path",
    "figure.dpi": 96,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure that is made or written inside."""
    with matplotlib.rc_context(_STYLE):
        yield


def new(height: float) -> Figure:
    """An empty figure of the report's width."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def look(kind: str) -> tuple[str, str]:
    """Colour and marker of an attention, of `plain` and of `mixed`."""
    if kind in _KNOWN:
        return _KNOWN[kind]
    # An attention that this table does not know yet.
    spare = [(YELLOW, "D"), (BLUE, "<"), (GREEN, ">"), (RED, "h")]
    return spare[sum(map(ord, kind)) % len(spare)]


def order(kinds: Iterable[str]) -> list[str]:
    """Kinds as they are listed everywhere: plain, the attentions as their table has them, mixed."""
    known = [PLAIN, *ATTENTIONS, MIXED]
    return sorted(set(kinds), key=lambda kind: (known.index(kind) if kind in known else 99, kind))


def marks(axes: Axes, x: Sequence[float], y: Sequence[float], kind: str, **more: Any) -> None:
    """Points of trials of one kind."""
    colour, marker = look(kind)
    axes.plot(
        x, y, linestyle="none", marker=marker, color=colour, markeredgecolor="white", markeredgewidth=0.4,
        rasterized=len(x) > MANY, **{"markersize": 7 if marker == "*" else 5, "zorder": 3, **more},
    )  # fmt: skip


def kind_legend(figure: Figure, kinds: Iterable[str], *more: Line2D, columns: int = 4) -> None:
    """The kinds that a figure shows, above it."""
    handles = [
        Line2D(
            [], [], linestyle="none", marker=look(kind)[1], color=look(kind)[0], markeredgecolor="white",
            markeredgewidth=0.4, markersize=7 if kind == PLAIN else 5.5, label=kind,
        )
        for kind in order(kinds)
    ]  # fmt: skip
    figure.legend(handles=[*handles, *more], loc="outside upper left", ncols=columns, borderaxespad=0.1)


def few_ticks(axes: Axes, *, x: int | None = None, y: int | None = None) -> None:
    """At most so many ticks, at round numbers."""
    if x:
        axes.xaxis.set_major_locator(MaxNLocator(x, steps=[1, 2, 2.5, 5, 10]))
    if y:
        axes.yaxis.set_major_locator(MaxNLocator(y, steps=[1, 2, 2.5, 5, 10]))


def counts(axis: Any) -> None:
    """Ticks as `1.2M` instead of zeros or powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value) if value >= 0 else ""))


def brief(text: str, most: int = 22) -> str:
    """A name that fits: what is too long loses its middle."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-(most - 1 - half) :]}"


def save(figure: Figure, folder: Path, name: str, title: str) -> str:
    """Write a figure as SVG and PNG, and return the SVG as it stands in a page."""
    svg = folder / f"{name}.svg"
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(svg, metadata={"Date": None, "Creator": None, "Title": title})
        figure.set_layout_engine("none")  # as it is laid out now; to do it again takes as long as to draw
        figure.savefig(folder / f"{name}.png", dpi=192, metadata={"Software": None, "Title": title})
    return inline(svg.read_text(), name)


def inline(svg: str, name: str) -> str:
    """An SVG document as an element of a page, with no id that another one on the page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<title>.*?</title>\s*", "", svg, flags=re.S)
    prefix = f"{name}-"
    svg = re.sub(r'(\s)id="', rf'\1id="{prefix}', svg)
    svg = re.sub(r'(href=")#', rf"\1#{prefix}", svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    head, body = svg.split(">", 1)
    head = re.sub(r'\s(?:width|height|xmlns(?::xlink)?|version)="[^"]*"', "", head)
    body = body.replace("xlink:href", "href")  # one name is enough in a page, and shorter
    body = re.sub(r">\s+<", "><", body)
    return f"{head}>{body}".strip()
