"""Pictures of what the modules of an exported model attend to. Needs the folder, not the dataset.

An ONNX graph has no modules, but each of its operations names the module that it came from. So the code of
the model is not needed: the features that enter a module become an output of the graph, and the module is
built anew with its exported weights.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from os import fsencode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import onnx
import torch
import vl_convert
from jinja2 import Environment, PackageLoader
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from attention import AttentionMap, Gated, Layout, Spec
from attention.gated import map_of
from attention.padding import padding
from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.escape import printable
from automl.base.lazy import resolve
from automl.export.formats import CONFIG, WEIGHTS, onnx_file, open_onnx
from automl.export.predict import (
    Exported,
    exported_folder,
    input_reader,
    list_inputs,
    no_export,
    read_exported,
)
from automl.maps import SIGNALS, STRIP, as_grid, draw_signals, draw_strip, overlay, shade_tokens, svg
from automl.storage.user_code import check_trusted
from automl.task.deployment import MODEL, Arrays
from search.config import TrialConfig
from search.config.tasks import find_spec, resolve_name

SCOPES = "pkg.torch.onnx.name_scopes"  # the property of a node with the paths of its modules, outermost first


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Input of an exported model, with its picture.

    Attributes:
        name: Its file, and its place in it.
        stem: The beginning of the names of its pictures.
        arrays: The inputs of the graph, a batch of one.
        extents: Height and width of an image, or the number of steps or tokens without padding.
    """

    name: str
    stem: str
    arrays: Arrays
    extents: tuple[int, ...]
    tokens: Sequence[str] = ()

    @property
    def values(self) -> np.ndarray:
        """Return the first input of the graph without the axis of the batch, or an image as its pixels."""
        array: np.ndarray = next(iter(self.arrays.values()))[0]
        return _pixels(array) if _is_image(array) else array

    @property
    def padded_extents(self) -> tuple[int, ...]:
        """Return the extents that a map covers, with padding."""
        return self.extents if len(self.extents) == 2 else self.values.shape[-1:]


@dataclass(frozen=True, kw_only=True)
class MapReader:
    """Reader of the inputs of an exported model whose maps are drawn.

    Attributes:
        graph: The graph with the modules.
        read: Yields inputs, given the folder of the model, its `config.json`, files, and trust in its code.
    """

    graph: str
    read: Callable[[Path, Mapping[str, Any], Sequence[str | Path], bool], Iterator[Shown]]


def find_reader(about: Mapping[str, Any]) -> MapReader:
    """Return the reader of an exported model's inputs."""
    reference = find_spec(resolve_name(about["config"]["task"])).map_reader
    return resolve(reference) if reference else MapReader(graph=MODEL, read=read_inputs)


def read_inputs(
    folder: Path, about: Mapping[str, Any], files: Sequence[str | Path], trust: bool
) -> Iterator[Shown]:
    """Yield the images and sequences of files."""
    task = input_reader(about, f"drawing maps of {folder}", trust)
    for file in [example for path in files for example in list_inputs(Path(path), task)]:
        for name, arrays in task.read_inputs(about, [file]):
            array = next(iter(arrays.values()))
            if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3:
                extents = array.shape[1:3]
            elif _is_image(array[0]):
                extents = array.shape[2:]
            elif array.dtype.kind == "f" and array.ndim == 3:
                extents = (int(arrays["lengths"][0]) if "lengths" in arrays else array.shape[2],)
            else:
                raise InputError(
                    f"maps are drawn on images, sequences and code; the model in {folder} takes "
                    f"{array.dtype} of shape {array.shape}"
                )
            yield Shown(name=name, stem=Path(name).stem, arrays=arrays, extents=extents)


def _is_image(array: np.ndarray) -> bool:
    """Return True for an image of a training function: floats `(C, H, W)`, in grey or colour."""
    return array.dtype.kind == "f" and array.ndim == 3 and array.shape[0] in (1, 3)


def _pixels(image: np.ndarray) -> np.ndarray:
    """Return the pixels `(H, W, 3)` of such an image. Its smallest value is black, its largest one white."""
    span = float(np.ptp(image)) or 1.0
    scaled = (255 * (image - image.min()) / span).astype(np.uint8)
    return np.broadcast_to(scaled, (3, *image.shape[1:])).transpose(1, 2, 0)


def check_inside(at: Sequence[int], shown: Shown) -> None:
    """Raise InputError unless `at` is a place of the input: column and row of an image, or one number."""
    sizes = shown.extents[::-1]
    form = "X,Y" if len(sizes) == 2 else "one number"
    if len(at) != len(sizes):
        raise InputError(f"--at takes {form} for {shown.name}; got {','.join(map(str, at))}")
    if not all(0 <= position < size for position, size in zip(at, sizes, strict=True)):
        ranges = " and ".join(f"from 0 to {size - 1}" for size in sizes)
        raise InputError(f"--at {','.join(map(str, at))} is outside of {shown.name}; give {form} {ranges}")


@dataclass(frozen=True, kw_only=True)
class ExportedModule:
    """Inserted module of an exported graph.

    Attributes:
        path: Its path in the graph.
        weights: Its path in the trained model, which begins the names of its weights.
        layout: Order of the dimensions of its features.
        class_tokens: Number of leading tokens that are not positions.
    """

    site: str
    spec: Spec
    path: str
    weights: str
    layout: Layout
    class_tokens: int

    def select_features(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the features among the values that enter the module.

        The exporter takes the split of class tokens out of the module. Then both parts enter it.
        """
        maps = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.ndim > 2]
        if not self.class_tokens or len(maps) == 1:
            return maps[0]
        first, *_, rest = sorted(maps, key=lambda tensor: tensor.shape[1])
        return torch.cat([first, rest], dim=1)

    def extents(self, features: Tensor) -> Sequence[int]:
        """Return the extents of features as `Gated.forward` takes them, without class tokens."""
        if self.layout == "B*C":
            return [features.shape[1] - self.class_tokens, *features.shape[2:-1]]
        return features.shape[2:]

    def build(self, features: Tensor, weights: Mapping[str, Tensor]) -> Gated:
        """Build the module with its weights, for features as `Gated.forward` takes them."""
        module = self.spec.build(features.shape[-1 if self.layout == "B*C" else 1], self.extents(features))
        module.site, module.layout, module.class_tokens = self.site, self.layout, self.class_tokens
        prefix = f"{self.weights}."
        own = {k.removeprefix(prefix): value for k, value in weights.items() if k.startswith(prefix)}
        module.load_state_dict(own)
        return module.eval()


class MapGraph:
    """Graph of an export, in an ONNX file, with the features of its modules as further outputs."""

    def __init__(self, file: Path, weights: Path, modules: Sequence[ExportedModule]) -> None:
        self.file = file
        model = onnx.load(file)
        self.sources = {module.site: _sources(model.graph, module.path) for module in modules}
        known = {value.name for value in (*model.graph.output, *model.graph.input)}
        for name in dict.fromkeys(name for names in self.sources.values() for name in names):
            if name not in known:
                model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        self.run = open_onnx(file, model.SerializeToString())
        self.weights, self.modules = load_file(weights), modules

    def maps(self, inputs: Arrays) -> dict[str, AttentionMap]:
        """Return the map of each site for inputs of the graph. Modules without weights have none."""
        values = {**inputs, **self.run(inputs)}
        maps = {}
        for module in self.modules:
            tensors = [torch.tensor(values[name]) for name in self.sources[module.site]]
            features = module.select_features(tensors)
            built = module.build(features, self.weights)
            extents = module.extents(features)
            hidden = (len(features), prod(extents), 1)
            masks = [~t.view(-1, *extents) for t in tensors if t.dtype == torch.bool and t.shape == hidden]
            with padding(masks[0] if masks else None):
                recorded = map_of(built, features)
            if recorded is not None:
                maps[module.site] = recorded
        return maps


def _sources(graph: onnx.GraphProto, path: str) -> list[str]:
    """Return the names of the values that enter a module, then the condition that hides its padding, if any.

    `Gated.tokens` hides padding by the first `Where`. The condition is the same value for all modules with
    one mask, as the exporter merges equal operations.
    """
    inside = [node for node in graph.node if path in _scopes(node)]
    constants = {tensor.name for tensor in graph.initializer}
    inner = {name for node in inside for name in node.output}
    used = (name for node in inside for name in node.input)
    entering = dict.fromkeys(name for name in used if name and name not in constants | inner)
    conditions = [node.input[0] for node in inside if node.op_type == "Where"][:1]
    return list(dict.fromkeys([*entering, *conditions]))


def _scopes(node: onnx.NodeProto) -> Sequence[str]:
    properties: Mapping[str, str] = {entry.key: entry.value for entry in node.metadata_props}
    paths: Sequence[str] = ast.literal_eval(properties.get(SCOPES, "[]"))
    return paths


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
