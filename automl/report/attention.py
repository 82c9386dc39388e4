"""Maps of the best finalist's strongest module in six inputs of the test split, as HTML for the page."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from automl.base.options import format_command
from automl.base.units import pluralize
from automl.judge.causes import CLOSED_GATE
from automl.maps import (
    SIGNALS,
    STRIP,
    MapExamples,
    draw_signals,
    draw_strip,
    overlay,
    read_examples,
    shade_tokens,
    svg,
)
from automl.report.figure import Pictures, Plot, Section, Table, absent
from automl.report.read import SearchData, variant_folders
from search.config.tasks import find_spec

COLOURS = 96  # of a PNG
GAP = 12  # units between signals and the strip of their channels
NAME, TITLE = "attention", "Attention maps"

MEANINGS = {
    "positions": "how much it takes from each position, the mean over all positions and heads",
    "global": "how much each position adds to what all positions read",
    "channels": "its absolute products with each position, the mean over all positions",
    "rescaling": "the factors that it multiplies positions by",
}
NOTE = (
    "Dark blue is 0, yellow the largest weight of each picture. The inputs are the first of each class of "
    "the test split, whatever their maps. A weight is no importance: it says what the module reads, not what "
    "the answer depends on."
)


def attention(search: SearchData) -> Sequence[Section]:
    """Return the section with the maps. There is none for tasks whose inputs are not drawn."""
    if not search.trials or not find_spec(search.trials[0].config.task).drawn:
        return []
    lead = "Six inputs of the test split, which the module was not trained on."
    return [Section(id=NAME, title="What the strongest module looks at", lead=lead, plots=[_plot(search)])]


def _plot(search: SearchData) -> Plot:
    if not search.verdicts:
        command = format_command("confirm --search", search.metadata.name, search.metadata.storage)
        return absent(NAME, TITLE, f"A confirmation records the maps of its finalists: {command}")
    verdict = search.verdicts[-1]
    for folder in variant_folders(search, verdict, verdict.finalist):
        if (examples := read_examples(folder)) is not None:
            return _drawn(examples)
    return absent(
        NAME,
        TITLE,
        "The latest confirmation recorded no maps: its finalist has no module with weights, or it was made "
        "before they were recorded.",
    )


def _drawn(examples: MapExamples) -> Plot:
    meaning = "the factors of its channels" if examples.of_channels else MEANINGS[examples.kind]
    chosen = "contrast" if examples.gate is None else f"|gate|, {abs(examples.gate):.2g}"
    kind, first = "code", examples.inputs[0]
    if isinstance(first, np.ndarray):
        kind = "images" if first.dtype == np.uint8 else "signals"
    drawn = [(_html(examples, kind, i), name) for i, name in enumerate(examples.names)]
    return Plot(
        name=NAME,
        title=f"{TITLE} of {examples.spec} @ {examples.site}",
        figure=Pictures(kind=kind, pictures=drawn),
        says=(
            f"{pluralize(len(examples.names), 'inputs')}. This module of the leading finalist has the "
            f"largest {chosen}. The colours are {meaning}."
        ),
        note=NOTE,
        warnings=(
            ["The gate is near 0, so the module hardly changes its input, whatever it reads."]
            if examples.gate is not None and abs(examples.gate) < CLOSED_GATE
            else []
        ),
        table=Table(
            columns=["input", "largest weight", "mean weight", "where the largest is"],
            rows=[
                [name, float(heat.max()), float(heat.mean()), describe(heat, examples.of_channels)]
                for name, heat in zip(examples.names, examples.heats, strict=True)
            ],
        ),
    )


def _html(examples: MapExamples, kind: str, i: int) -> str:
    heat, shown = examples.heats[i].astype(np.float32), examples.inputs[i]
    if not isinstance(shown, np.ndarray):
        return f"<p>{shade_tokens(shown, heat)}</p>"
    if kind == "signals":
        return svg(*_signals(shown, heat, examples.of_channels))
    raw = f'<img src="{png_address(shown)}" alt="">'
    if examples.of_channels:
        return f"{raw}{svg(draw_strip(heat), STRIP)}"
    return f'{raw}<img src="{png_address(overlay(shown, heat))}" alt="">'


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


def png_address(pixels: Any) -> str:
    """Return an image as the address of its own content."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).quantize(COLOURS).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
