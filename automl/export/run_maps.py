"""Pictures of what the modules of an exported model attend to. Needs the folder, not the dataset."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from os import fsencode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import vl_convert
from jinja2 import Environment, PackageLoader
from PIL import Image

from attention import AttentionMap
from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.escape import printable
from automl.export.formats import CONFIG, WEIGHTS, onnx_file
from automl.export.map_inputs import ExportedModule, MapGraph, Shown, check_inside, find_reader
from automl.export.predict import Exported, exported_folder, no_export, read_exported
from automl.maps.pictures import SIGNALS, STRIP, as_grid, draw_signals, draw_strip, overlay, shade_tokens, svg
from automl.storage.user_code import check_trusted
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
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        pictures = list(_write_pictures(inputs, program, Path(out), at))
        if not pictures:
            raise InputError(
                f"there is nothing to draw in {', '.join(map(str, files))}; give images, files of sequences, "
                f"or source files with functions, as the model takes"
            )
        (Path(out) / INDEX).write_text(_page(pictures), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
    return MapsResult(Path(out) / INDEX, [picture.file for picture in pictures if not picture.html])


@dataclass(frozen=True)
class _Picture:
    """Map of one module in one input: an image file, or HTML."""

    caption: str
    file: Path
    html: str = ""


def _page(pictures: Sequence[_Picture]) -> str:
    environment = Environment(
        loader=PackageLoader("automl.export", ""),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("maps.html").render(
        pictures=pictures, quote=lambda name: quote(fsencode(name))
    )


def _write_pictures(
    inputs: Iterable[Shown], program: MapGraph, out: Path, at: Sequence[int]
) -> Iterator[_Picture]:
    stems: Counter[str] = Counter()
    for shown in inputs:
        if at:
            check_inside(at, shown)
        stems[shown.stem] += 1
        number = f"-{stems[shown.stem]}" if stems[shown.stem] > 1 else ""
        try:
            maps = program.maps(shown.arrays)
        except Exception as error:  # onnxruntime and torch raise various errors
            folder = program.file.parent
            raise InputError(f"the model in {folder} does not fit its {CONFIG} ({error})") from error
        if not maps:
            raise InputError(f"{program.modules[0].spec} has no weights that a picture could show")
        for module in program.modules:
            if module.site not in maps:
                continue
            file = out / f"{shown.stem}{number}-{module.site}.png"
            for text, drawn in _draw(shown, maps[module.site], at):
                caption = printable(f"{shown.name}: {module.spec} @ {module.site}, {text}")
                if isinstance(drawn, bytes):
                    file.write_bytes(drawn)
                yield _Picture(caption, file, "" if isinstance(drawn, bytes) else drawn)
                file = file.with_name(f"{file.stem}-positions.png")


def _modules(folder: Path, about: dict[str, Any], site: str | None) -> list[ExportedModule]:
    placement = TrialConfig.from_json(about["config"]).model.placement
    if not placement:
        raise InputError(
            f"the model in {folder} has no inserted module, so there is no map to draw; export a trial with "
            f"attention"
        )
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
        buffer = BytesIO()
        Image.fromarray(overlay(shown.values, heat, query)).save(buffer, "PNG")
        yield meaning, buffer.getvalue()
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


def _png(elements: str, height: float) -> bytes:
    return bytes(vl_convert.svg_to_png(svg(elements, height, "#fff"), scale=2))
