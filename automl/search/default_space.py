"""The space of a search that is given data and nothing else, its backbone and the size of its images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.data.code import is_code
from automl.data.detection import is_coco
from automl.data.images.overview import file_sizes
from automl.data.images.sources import items
from automl.data.sequences import are_sequences
from automl.data.stereo import is_stereo

MANY = 5000  # training images from which deeper backbones are tried, too
SIDES = (32, 48, 64, 96, 128)  # pixels; the last one is the space's own
OPENED = 200  # images at most whose sizes are read


@dataclass(frozen=True, kw_only=True)
class Fit:
    """settings: what fits, as `Settings` takes it. why: in a line; empty where the space says all."""

    settings: dict[str, Any]
    why: str = ""


def fit(data: str, *, backbone: str | None = None, size: int | None = None) -> Fit:
    """What fits the data at the path `data`.

    Stereo pairs get the space `sceneflow`, sequences `sensors`, source code `codesearch`, images with objects
    in COCO's layout `coco-da`. Other images get `folder`, at the largest size that does not blow up half of
    them, and where they are few with one backbone, since few trials are too few to choose among several.
    `backbone` and `size` are kept where they are given.

    Raises InputError for an archive that cannot be extracted, and a folder that is no dataset.
    """
    if is_stereo(data):  # before the others: a CSV may be one of sequences, too
        return Fit(settings={"space": "sceneflow"})
    if are_sequences(data):
        return Fit(settings={"space": "sensors"})
    if is_code(data):
        return Fit(settings={"space": "codesearch"})
    if is_coco(data):
        return Fit(settings={"space": "coco-da"})
    found: dict[str, Any] = {"space": "folder"}
    train = items("folder", data, size or SIDES[-1]).splits["train"]
    files = [item.image for item in train if isinstance(item.image, Path)]
    sizes = sorted(min(size) for size in file_sizes(files[:: max(1, len(files) // OPENED)]))
    chosen, because = [], [f"{len(train)} training images"]
    if backbone is None and len(train) < MANY:
        found["backbone"] = "xresnet18"
        chosen.append("backbone xresnet18")
    if size is None and sizes:
        median = sizes[len(sizes) // 2]
        found["size"] = max((side for side in SIDES if side <= median), default=SIDES[0])
        chosen.append(f"{found['size']} px")
        because.append(f"half of them {median} px or less at the shorter side")
    if not chosen:
        return Fit(settings=found)
    why = f"{' at '.join(chosen)}, since there are {', '.join(because)}; --backbone and --size choose others"
    return Fit(settings=found, why=why)
