"""Inputs kept for the report, in files, so that it needs neither the data, the models nor their code.

A confirmation keeps six inputs of the test split, with the map of a model's strongest module, beside the
checkpoint. They are chosen before their maps exist. The end of a search or a confirmation keeps inputs that
two models answer differently, beside the study that trained them.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attention import AttentionMap, Gated, attention_maps
from automl.maps.pictures import as_grid
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers, read_arrays, write_arrays
from automl.task import Task
from automl.task.task_data import ShownInputs, Split
from backbones import call

MAPS_FILE, DIFFERING_FILE = "maps.npz", "differing.npz"
COUNT = 6
EACH = 6  # most inputs of each kind: one that the first model alone answers rightly, or the other alone
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
        return small_picture(picture)
    values = torch.tensor(picture).float()
    values = values[:CHANNELS].nan_to_num()
    values = (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True).clamp(min=1e-12)
    return F.adaptive_avg_pool1d(values, min(values.shape[1], STEPS)).half().numpy()


def small_picture(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an image, uint8 `(H, W, 3)`, with sides of `PIXELS` at most."""
    values = torch.tensor(picture).float().movedim(-1, 0)
    height, width = (min(side, PIXELS) for side in values.shape[1:])
    pixels = F.adaptive_avg_pool2d(values, (height, width)).movedim(0, -1).round()
    small: NDArray[np.uint8] = pixels.to(torch.uint8).numpy()
    return small


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


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Inputs of a split that are answered differently.

    Attributes:
        count: Number of all such inputs that the first model answers rightly, and the other one.
        true: The label of each input that is shown.
        ours: The first model's answer to it, the most frequent one of its trainings.
        theirs: The other's.
        pictures: Images, uint8 `(H, W, 3)`.
    """

    split: str
    count: tuple[int, int]
    true: Sequence[str]
    ours: Sequence[str]
    theirs: Sequence[str]
    pictures: Sequence[NDArray[np.uint8]]


def save_differing(
    task: Task, split: Split, ours: Sequence[Answers], theirs: Sequence[Answers], folder: Storage
) -> None:
    """Write the file, if the task has classes and pictures. A failure is logged, as all else is complete."""
    try:
        with suppress(FileNotFoundError):  # of an earlier end
            folder.remove(DIFFERING_FILE)
        differing = find_differing(task, split, ours, theirs)
        if differing is not None:
            about = {name: getattr(differing, name) for name in ("split", "count", "true", "ours", "theirs")}
            write_arrays(
                folder, DIFFERING_FILE, about, {f"{i}": each for i, each in enumerate(differing.pictures)}
            )
    except Exception as error:
        log.warning("the inputs that are answered differently were not recorded in %s: %r", folder, error)


def read_differing(folder: Storage) -> Differing | None:
    """Read the file. Return None if it is missing or damaged."""
    return read_arrays(
        folder,
        DIFFERING_FILE,
        lambda about, arrays: Differing(
            **about, pictures=[arrays[f"{i}"] for i in range(len(about["true"]))]
        ),
    )


def find_differing(
    task: Task, split: Split, ours: Sequence[Answers], theirs: Sequence[Answers]
) -> Differing | None:
    """Return the inputs that most trainings of one model alone answer rightly. None without pictures.

    Those come first on which the trainings agree most.
    """
    if not (ours and theirs and ours[0].labels):
        return None
    labels, true = ours[0].labels, ours[0].true
    right = [np.mean([each.answered == true for each in group], axis=0) for group in (ours, theirs)]
    chosen, count = [], []
    for ours_right, theirs_right in (right, right[::-1]):
        rows = np.flatnonzero((ours_right > 0.5) & (theirs_right < 0.5))
        count.append(len(rows))
        chosen += rows[np.argsort((theirs_right - ours_right)[rows], kind="stable")][:EACH].tolist()
    pictures = task.pictures(split, chosen) if chosen else None
    if pictures is None:
        return None
    first, second = (
        [labels[int(np.bincount([each.answered[row] for each in group]).argmax())] for row in chosen]
        for group in (ours, theirs)
    )
    return Differing(
        split=split,
        count=(count[0], count[1]),
        true=[labels[int(true[row])] for row in chosen],
        ours=first,
        theirs=second,
        pictures=[small_picture(each) for each in pictures],
    )
