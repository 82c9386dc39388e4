"""Pictures of inputs with the weights of a map, and the inputs that are kept for the report.

A picture is an image, signals or tokens. The colours are cividis (J. Nuñez et al. (2018), arXiv 1712.01662).
They go from 0 to the largest weight of the picture, so that even weights give an even picture.

A confirmation keeps six inputs of the test split, with the map of a model's strongest module, beside the
checkpoint, so that the report needs neither the data, the models nor their code. They are chosen before their
maps exist.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attention import AttentionMap, Gated, attention_maps
from automl.base.errors import InputError
from automl.base.escape import printable
from automl.base.lazy import later
from automl.storage.storage import Storage
from automl.storage.trial_files import read_arrays, write_arrays
from automl.task import Task
from automl.task.task_data import ShownInputs
from backbones import call

matplotlib = later("matplotlib")  # only drawing needs it
Floats = NDArray[np.floating]
Bytes = NDArray[np.uint8]

STRENGTH = 0.65  # share of the heat in an overlay
WIDTH, SIGNALS, STRIP = 340, 120, 16  # units of a picture of signals
LIGHT = 0.179  # relative luminance (WCAG 2.1) above which black text has more contrast than white


def overlay(image: Bytes, heat: Floats) -> Bytes:
    """Lay the heat of a map over an image.

    Args:
        image: Pixels `(H, W, 3)`.
        heat: A weight for each position, `(*spatial,)`.

    Returns:
        Pixels `(H, W, 3)`: the image in grey below the colours of the weights.

    Raises:
        InputError: The positions are no grid on the image.
    """
    height, width = image.shape[:2]
    grid = as_grid(heat, height, width)
    grey = image @ np.array([0.299, 0.587, 0.114])
    mixed = (1 - STRENGTH) * grey[..., None] + STRENGTH * enlarge(colour(grid), (height, width))
    drawn: Bytes = mixed.round().astype(np.uint8)
    return drawn


def draw_signals(values: Floats, heat: Floats) -> str:
    """Draw signals above a strip of weights, as the inner part of an SVG. Each signal is standardised.

    Args:
        values: Signals `(C, T)`.
        heat: A weight for each position, `(positions,)`, from the first step to the last.

    Returns:
        Elements in a box of WIDTH by SIGNALS + STRIP units, in the colour of the text.
    """
    scale = np.nanstd(values, axis=1, keepdims=True)
    values = (values - np.nanmean(values, axis=1, keepdims=True)) / np.where(scale > 0, scale, 1)
    low, high = np.nanmin(values), np.nanmax(values)
    y = SIGNALS - 4 - (SIGNALS - 8) * (values - low) / (high - low or 1)
    x = (np.arange(values.shape[1]) + 0.5) * WIDTH / values.shape[1]
    lines = [
        f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, row, strict=True) if b == b)}" '
        f'fill="none" stroke="currentColor" stroke-width="1" opacity="{0.9 - 0.5 * i / len(values):.2f}"/>'
        for i, row in enumerate(y)
    ]
    return f'{"".join(lines)}<g transform="translate(0 {SIGNALS})">{draw_strip(heat)}</g>'


def draw_strip(weights: Floats) -> str:
    """Draw weights side by side, as the inner part of an SVG of WIDTH by STRIP units."""
    step = WIDTH / len(weights)
    return "".join(
        f'<rect x="{i * step:.2f}" width="{step + 0.3:.2f}" height="{STRIP}" fill="{css(shade)}"/>'
        for i, shade in enumerate(colour(weights))
    )


def svg(elements: str, height: float, ground: str = "none") -> str:
    """Return elements of a box of WIDTH by `height` units as an SVG."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"><rect width="100%" height="100%" fill="{ground}"/>{elements}</svg>'
    )


def shade_tokens(tokens: Sequence[str], heat: Floats) -> str:
    """Return tokens as HTML, each on the colour of its weight in `heat`, `(T,)`."""
    return " ".join(
        f'<span style="background:{css(shade)};color:{text_colour(shade)}">{escape(printable(token))}</span>'
        for token, shade in zip(tokens, colour(heat), strict=True)
    )


def text_colour(shade: Sequence[int] | Bytes) -> str:
    """Return the colour of text with the larger contrast to its ground."""
    linear = ((np.asarray(shade) / 255 + 0.055) / 1.055) ** 2.4
    return "#000" if linear @ np.array([0.2126, 0.7152, 0.0722]) > LIGHT else "#fff"


def css(shade: Sequence[int] | Bytes) -> str:
    """Return a colour of CSS."""
    return "#" + "".join(f"{int(value):02x}" for value in shade)


def colour(heat: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the colours of weights, uint8 `(*heat.shape, 3)`."""
    heat = np.asarray(heat, np.float64)
    colours: Bytes = matplotlib.colormaps["cividis"](heat / (heat.max() or 1), bytes=True)[..., :3]
    return colours


def as_grid(heat: NDArray[np.floating], height: int, width: int) -> NDArray[np.floating]:
    """Arrange the positions of a map, `(*spatial,)`, on an image of some size, `(rows, columns)`.

    Further dimensions, such as the disparities of a cost volume, are averaged. The tokens of a transformer
    are rows of patches. Raises InputError if they do not form a grid with the image's ratio of sides.
    """
    if heat.ndim > 1:
        mean: NDArray[np.floating] = heat.reshape(-1, *heat.shape[-2:]).mean(0)
        return mean
    rows = max(1, round((len(heat) * height / width) ** 0.5))
    if len(heat) % rows:
        raise InputError(f"the {len(heat)} positions of the map are no grid on {width} x {height} pixels")
    return heat.reshape(rows, -1)


def enlarge(grid: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Return the weight of each pixel: that of the position which covers it.

    Nothing is interpolated, so that the picture shows the resolution of the map.
    """
    for axis, size in enumerate(shape):
        grid = grid.take(np.arange(size) * grid.shape[axis] // size, axis)
    return grid


MAPS_FILE = "maps.npz"
COUNT = 6
# Limits of the file: pixels of a side of an image and of a map, steps, channels, tokens.
PIXELS, POSITIONS, STEPS, CHANNELS, TOKENS = 80, 48, 400, 6, 160
TEXT = ("spec", "site", "kind", "of_channels", "gate", "names")  # what is stored as JSON
LARGEST = 2**13  # positions of a map, whose rows take N^2 time

log = logging.getLogger("automl")


@dataclass(frozen=True, kw_only=True)
class MapExamples:
    """Inputs with the map of one module.

    Attributes:
        spec: The module's type and options in words.
        of_channels: True if the weights are those of channels, as the module treats all positions alike.
        gate: Its gate, or None if it replaces another module.
        names: A name for each input, such as its class.
        inputs: Images uint8 `(H, W, 3)`, signals float16 `(C, T)`, or lists of tokens.
        heats: The weights of each input, float16 `(rows, columns)` for images, else `(positions,)`.
    """

    spec: str
    site: str
    kind: str
    of_channels: bool
    gate: float | None
    names: Sequence[str]
    inputs: Sequence[NDArray[Any] | Sequence[str]]
    heats: Sequence[NDArray[np.float16]]

    def save(self, folder: Storage) -> None:
        """Write the file. Raise OSError if that fails."""
        tokens = [each for each in self.inputs if not isinstance(each, np.ndarray)]
        about = {**{name: getattr(self, name) for name in TEXT}, "tokens": tokens}
        arrays: dict[str, Any] = {f"heat{i}": heat for i, heat in enumerate(self.heats)}
        arrays |= {f"input{i}": each for i, each in enumerate(self.inputs) if isinstance(each, np.ndarray)}
        write_arrays(folder, MAPS_FILE, about, arrays)


def read_examples(folder: Storage) -> MapExamples | None:
    """Read the file of a training. Return None if it is missing or damaged."""

    def build(about: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> MapExamples:
        tokens, indices = about.pop("tokens"), range(len(about["names"]))
        return MapExamples(
            **about,
            inputs=tokens or [arrays[f"input{i}"] for i in indices],
            heats=[arrays[f"heat{i}"] for i in indices],
        )

    return read_arrays(folder, MAPS_FILE, build)


def save_examples(task: Task, model: nn.Module, folder: Storage) -> None:
    """Record and write the examples of a trained model. A failure is logged, as the training is complete."""
    try:
        examples = record_examples(task, model)
        if examples is not None:
            examples.save(folder)
    except Exception as error:
        log.warning("the attention maps of %s were not recorded: %r", folder, error)


@torch.no_grad()
def record_examples(task: Task, model: nn.Module) -> MapExamples | None:
    """Record the map of a model's strongest module for six inputs of the test split.

    The strongest module is the one with the largest absolute gate. Of modules that replace others it is the
    one whose maps have the largest contrast, (max - min) / (max + min). The model is trained, and in
    evaluation mode. Returns None if the task shows no inputs, or no module has a map.
    """
    modules = {m.site: m for m in model.modules() if isinstance(m, Gated) and m.site}
    shown = task.shown_inputs(COUNT) if modules else None
    if shown is None:
        return None
    with attention_maps(model) as maps:
        call(model, shown.inputs)
    maps = {site: each for site, each in maps.items() if np.prod(each.spatial) <= LARGEST}
    if not maps:
        return None
    site = _strongest(maps, modules)
    recorded, module = maps[site], modules[site]
    heats = recorded.heat().float().cpu()
    if recorded.is_even:
        heats = recorded.weights.float().cpu()
    return MapExamples(
        spec=str(task.config.model.placement[site]),
        site=site,
        kind=recorded.kind,
        of_channels=recorded.is_even,
        gate=None if module.replaces else float(module.gamma),
        names=shown.names,
        inputs=[_small(each) for each in shown.pictures],
        heats=[_small_heat(heats[i], shown, i, recorded.is_even) for i in range(len(shown.names))],
    )


def _strongest(maps: Mapping[str, AttentionMap], modules: Mapping[str, Gated]) -> str:
    inserted = [site for site in maps if not modules[site].replaces]
    if inserted:
        return max(inserted, key=lambda site: float(modules[site].gamma.abs()))

    def contrast(site: str) -> float:
        heat = maps[site].heat().flatten(1)
        low, high = heat.amin(1), heat.amax(1)
        return float(((high - low) / (high + low).clamp(min=1e-12)).mean())

    return max(maps, key=contrast)


def _small(picture: NDArray[np.generic] | Sequence[str]) -> NDArray[np.generic] | Sequence[str]:
    if not isinstance(picture, np.ndarray):
        return picture[:TOKENS]
    if picture.dtype == np.uint8:
        values = torch.tensor(picture).float().movedim(-1, 0)
        height, width = (min(side, PIXELS) for side in values.shape[1:])
        pixels = F.adaptive_avg_pool2d(values, (height, width)).movedim(0, -1).round()
        return pixels.to(torch.uint8).numpy()
    values = torch.tensor(picture).float()
    values = values[:CHANNELS].nan_to_num()
    values = (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True).clamp(min=1e-12)
    return F.adaptive_avg_pool1d(values, min(values.shape[1], STEPS)).half().numpy()


def _small_heat(heat: Tensor, shown: ShownInputs, i: int, of_channels: bool) -> NDArray[np.float16]:
    """Return the weights of one input without padding, at a resolution that is small enough."""
    picture = shown.pictures[i]
    if of_channels:
        return heat.half().numpy()
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
        grid = torch.tensor(as_grid(heat.numpy(), *picture.shape[:2]))
        rows, columns = (min(side, POSITIONS) for side in grid.shape)
        return F.adaptive_avg_pool2d(grid[None], (rows, columns))[0].half().numpy()
    real = len(picture) if isinstance(picture, list) else picture.shape[1]
    heat = heat.reshape(-1, heat.shape[-1]).mean(0)
    covered = heat[: -(-real * len(heat) // shown.padded)]
    if isinstance(picture, list):
        return covered[:TOKENS].half().numpy()
    return F.adaptive_avg_pool1d(covered[None], min(len(covered), STEPS))[0].half().numpy()
