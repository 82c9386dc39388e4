"""Pictures of what the modules of an exported model attend to. Needs the folder, not the dataset."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import vl_convert
from PIL import Image

from attention import AttentionMap
from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.escape import printable
from automl.config.user_code import check_trusted
from automl.export.formats import CONFIG, WEIGHTS, onnx_file
from automl.export.map_inputs import Shown, check_inside, find_reader
from automl.export.module_inputs import ExportedModule, MapGraph
from automl.export.predict import Exported, exported_folder, no_export, read_exported
from automl.maps.pictures import SIGNALS, STRIP, as_grid, draw_signals, draw_strip, overlay, shade_tokens, svg
from search.config import TrialConfig

INDEX = "index.html"

MEANING = {
    "positions": "how much each position is taken into account",
    "global": "how much each position adds to what all positions read",
    "channels": "absolute products with each position; they are not normalised",
    "rescaling": "the factor that each position is multiplied by",
}


@dataclass(frozen=True)
class MapsResult:
    """Written pictures.

    Attributes:
        index: The page with all of them.
        pictures: The PNG files. Code has none, as the page has its text.
    """

    index: Path
    pictures: list[Path] = field(default_factory=list)


def run_maps(
    exported: str | Path | Exported,
    files: Sequence[str | Path],
    *,
    out: str | Path,
    site: str | None = None,
    at: Sequence[int] = (),
    trust: bool = False,
) -> MapsResult:
    """Draw what the modules of an exported model attend to in each input.

    Args:
        exported: The folder of an exported model, or the result of `run_export`.
        files: Images, files of sequences or source files; or folders of them.
        out: The folder of the pictures.
        site: The site of one module. By default all are drawn.
        at: The position that looks: column and row of a pixel of the picture, a step, or the number of a
            token. By default the mean over all positions is drawn.
        trust: Allow running the user-defined code of the model's modules and task.

    Returns:
        The written files.

    Raises:
        InputError: There is no exported model, it has no such module, an input cannot be read, `at` is
            outside, or the pictures cannot be written.

    Example:
        After the example of `run_export`, if the model has attention:

        >>> import automl
        >>> maps = automl.run_maps("exports/example", ["seven.png"], out="maps")
        >>> maps.index.name
        'index.html'
    """
    folder = exported_folder(exported)
    about = read_exported(folder)
    if about.get("kind") == "decoder":
        raise InputError(
            f"maps are drawn on images, sequences and code; the model in {folder} continues texts"
        )
    modules = _modules(folder, about, site)
    names = [m.spec.type for m in modules if loading.is_user_defined(m.spec.type)]
    check_trusted(f"drawing maps of {folder}", names, trust=trust)
    reader = find_reader(about)
    graph, inputs = reader.graph, reader.read(folder, about, files, trust)
    if why := about.get("left_out", {}).get(onnx_file(graph)):
        raise InputError(f"maps need {onnx_file(graph)}, which {folder} lacks: {why}")
    try:
        program = MapGraph(folder / onnx_file(graph), folder / WEIGHTS, modules)
    except Exception as error:  # onnx, onnxruntime and torch raise different errors for different damage
        raise no_export(folder, error) from error
    figures: list[str] = []
    pictures: list[Path] = []
    stems: Counter[str] = Counter()
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        for shown in inputs:
            if at:
                check_inside(at, shown)
            stems[shown.stem] += 1
            number = f"-{stems[shown.stem]}" if stems[shown.stem] > 1 else ""
            try:
                maps = program.maps(shown.arrays)
            except Exception as error:  # onnxruntime and torch raise various errors
                raise InputError(f"the model in {folder} does not fit its {CONFIG} ({error})") from error
            if not maps:
                raise InputError(f"{modules[0].spec} has no weights that a picture could show")
            for module in modules:
                if module.site in maps:
                    path = Path(out) / f"{shown.stem}{number}-{module.site}.png"
                    for text, drawn in _draw(shown, maps[module.site], at):
                        caption = f"{shown.name}: {module.spec} @ {module.site}, {text}"
                        figures.append(_figure(caption, drawn, path))
                        if isinstance(drawn, bytes):
                            path.write_bytes(drawn)
                            pictures.append(path)
                        path = path.with_name(f"{path.stem}-positions.png")
        if not figures:
            raise InputError(
                f"there is nothing to draw in {', '.join(map(str, files))}; give images, files of sequences, "
                f"or source files with functions, as the model takes"
            )
        index = Path(out) / INDEX
        index.write_text(PAGE.format(figures="\n".join(figures)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
    return MapsResult(index, pictures)


PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention maps</title>
<style>
:root {{ color-scheme: light dark }} body {{ font: 15px/1.6 system-ui, sans-serif; margin: 12px }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 16px }}
figure {{ margin: 0; min-width: 0 }} img {{ width: 100%; max-width: 340px; image-rendering: pixelated }}
pre {{ font-size: 13px; line-height: 1.7; margin: 0 0 6px; white-space: pre-wrap }}
figcaption {{ overflow-wrap: anywhere }}
</style>
<h1>Attention maps</h1>
<p>Dark blue is 0, yellow the largest weight of the picture. A weight is no importance: it does not say how
the answer would change without that part of the input.</p>
<main>
{figures}
</main>
</html>
"""


def _figure(caption: str, drawn: bytes | str, file: Path) -> str:
    caption = escape(printable(caption))
    if isinstance(drawn, str):
        picture = f"<pre>{drawn}</pre>"
    else:
        picture = f'<img src="{quote(file.name)}" alt="{caption}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _modules(folder: Path, about: dict[str, Any], site: str | None) -> list[ExportedModule]:
    """Return the modules to draw. Raise InputError if there are none."""
    placement = TrialConfig.from_json(about["config"]).model.placement
    if not placement:
        raise InputError(
            f"the model in {folder} has no inserted module, so there is no map to draw; export a trial with "
            f"attention"
        )
    if "modules" not in about:
        raise InputError(f"{folder} was exported by an earlier version, without its modules; export it again")
    entries = about["modules"].get(find_reader(about).graph, {})
    if site is not None and site not in entries:
        raise unknown("site", site, entries)
    return [
        ExportedModule(site=name, spec=placement[name], **entry)
        for name, entry in entries.items()
        if site in (None, name)
    ]


def _draw(shown: Shown, recorded: AttentionMap, at: Sequence[int]) -> Iterator[tuple[str, bytes | str]]:
    """Yield the meaning of each picture of a map, and the picture: PNG, or HTML of code."""
    query = None
    if recorded.kind == "rescaling":
        factors = recorded.weights[0].numpy()
        yield f"the factors of its {len(factors)} channels", _png(draw_strip(factors), STRIP)
        if recorded.is_even:
            return
    elif at:
        query = _position(shown, recorded.spatial, at)
    heat = recorded.heat(query)[0].numpy()
    meaning = MEANING[recorded.kind] + (f", as {','.join(map(str, at))} sees it" if query is not None else "")
    if shown.tokens:
        yield meaning, shade_tokens(shown.tokens, heat, query)
    elif len(shown.extents) == 2:
        yield meaning, _encode(overlay(shown.values, heat, query))
    else:
        (steps,), (padded,) = shown.extents, shown.padded_extents
        covered = heat[: -(-steps * len(heat) // padded)]
        yield meaning, _png(draw_signals(shown.values[:, :steps], covered, query), SIGNALS + STRIP)


def _position(shown: Shown, spatial: Sequence[int], at: Sequence[int]) -> int:
    """Return the position of a map that covers a place of the input."""
    shape: Sequence[int] = spatial[-1:]
    if len(shown.extents) == 2:
        shape = as_grid(np.empty(tuple(spatial)), *shown.extents).shape
    sizes = shown.padded_extents
    index = [position * n // size for position, n, size in zip(reversed(at), shape, sizes, strict=True)]
    return int(np.ravel_multi_index(index, tuple(shape)))


def _encode(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _png(elements: str, height: float) -> bytes:
    return bytes(vl_convert.svg_to_png(svg(elements, height, "#fff"), scale=2))
