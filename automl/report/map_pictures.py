"""Inputs with the maps of a module, as HTML for the page."""

import base64
import io
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import numpy as np
from PIL import Image

from automl.base.escape import printable
from automl.maps.examples import MapExamples
from automl.maps.pictures import SIGNALS, STRIP, draw_signals, draw_strip, overlay, shade_tokens, svg
from automl.report.figure import Figure

COLOURS = 96  # of a PNG
GAP = 12  # units between signals and the strip of their channels

Kind = Literal["images", "signals", "code"]


@dataclass(frozen=True, kw_only=True)
class MapPictures(Figure):
    """Figure of inputs with the maps of one module.

    Attributes:
        examples: The inputs and maps.
    """

    examples: MapExamples

    @property
    def kind(self) -> Kind:
        """Return what the inputs are."""
        first = self.examples.inputs[0]
        if not isinstance(first, np.ndarray):
            return "code"
        return "images" if first.dtype == np.uint8 else "signals"

    def element(self, label: str = "figure") -> str:
        """Return the pictures as HTML. Screen readers read only the label, and the table of the plot."""
        cells = []
        for i, name in enumerate(self.examples.names):
            text = escape(printable(name))
            cells.append(f'<figure class="map">{self._html(i)}<figcaption>{text}</figcaption></figure>')
        return f'<div class="maps {self.kind}" role="img" aria-label="{escape(label)}">{"".join(cells)}</div>'

    def _html(self, i: int) -> str:
        heat, shown = self.examples.heats[i].astype(np.float32), self.examples.inputs[i]
        if not isinstance(shown, np.ndarray):
            return f"<p>{shade_tokens(shown, heat)}</p>"
        if self.kind == "signals":
            return svg(*_signals(shown, heat, self.examples.of_channels))
        raw = f'<img src="{_address(shown)}" alt="">'
        if self.examples.of_channels:
            return f"{raw}{svg(draw_strip(heat), STRIP)}"
        return f'{raw}<img src="{_address(overlay(shown, heat))}" alt="">'


def describe(heat: np.ndarray, of_channels: bool) -> str:
    """Return where the largest weight is."""
    index = np.unravel_index(int(heat.argmax()), heat.shape)
    if heat.ndim == 2:
        return f"row {index[0] + 1} of {heat.shape[0]}, column {index[1] + 1} of {heat.shape[1]}"
    return f"{'channel' if of_channels else 'position'} {index[0] + 1} of {len(heat)}"


def _signals(values: np.ndarray, heat: np.ndarray, of_channels: bool) -> tuple[str, float]:
    values = values.astype(np.float32)
    if not of_channels:
        return draw_signals(values, heat), SIGNALS + STRIP
    # Its strip is of channels and not of steps, so it gets a gap.
    lines = draw_signals(values, np.zeros(1))
    lines = lines[: lines.index("<g ")]
    return f'{lines}<g transform="translate(0 {SIGNALS + GAP})">{draw_strip(heat)}</g>', SIGNALS + GAP + STRIP


def _address(pixels: Any) -> str:
    """Return an image as the address of its own content."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).quantize(COLOURS).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
