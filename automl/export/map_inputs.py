"""Inputs of an exported model whose maps are drawn: images and sequences, or what its task reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.base.registry import resolve
from automl.export.predict import input_reader, list_inputs
from automl.tasks.deployment import MODEL, Arrays
from search.config.tasks import find_spec, resolve_name


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
