"""Settings of a search that fit a folder of images: a pretrained backbone if one can be had, and the size."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.data.download import ASKED, find_answering, mirrored
from automl.data.pictures import read_sizes
from automl.search.prepare import Fit
from automl.task.initial import load_published
from automl.tasks.image_classification.data import open_image_records
from backbones import published_file
from search.config import PUBLISHED

MANY = 5000  # number of training images from which deeper backbones are also tried
SIDES = (32, 48, 64, 96, 128)  # image sizes [pixels]; the last one is the space's own
OPENED = 200  # maximum number of images whose sizes are read
PRETRAINED = ("torchvision:resnet18", "timm:resnet18")  # quick on a CPU; the first that can be had
LEAST = 96  # smallest size [pixels] for their weights, which were trained on images of 224 pixels


def fit(data: str, *, backbone: str | None, size: int | None, weights: str | None) -> Fit:
    """Choose the space `folder`, with the largest size that does not enlarge half of the images.

    The backbone is pretrained if its weights can be had. Otherwise, with few images, it is a single one, as
    few trials cannot compare several.
    """
    settings: dict[str, Any] = {"space": "folder"}
    listed = open_image_records("folder", path=data, size=size or SIDES[-1])
    splits = ["train", "validation"] if "validation" in listed.held_out else ["train"]
    rows = np.sort(np.concatenate([listed.whole[split] for split in splits]))  # in the order of the dataset
    images = [listed.file.inputs[row].image for row in rows]
    files = [image for image in images if isinstance(image, Path)]
    sizes = sorted(min(size) for size in read_sizes(files[:: max(1, len(files) // OPENED)]))
    chosen, because = [], [f"{pluralize(len(rows), 'image files')} for training and validation"]
    pretrained, missing = None, ""
    if backbone is None and weights in (None, PUBLISHED):
        pretrained, missing = choose_pretrained()
        if weights == PUBLISHED:  # Loading it says what is missing.
            pretrained = pretrained or PRETRAINED[0]
    if pretrained is not None:
        settings |= {"backbone": pretrained, "weights": PUBLISHED}
        chosen.append(f"backbone {pretrained} with pretrained weights")
    elif backbone is None and len(rows) < MANY:
        settings["backbone"] = "xresnet18"
        chosen.append("backbone xresnet18")
    elif missing:
        chosen.append("random weights")
    if size is None and sizes:
        median = sizes[len(sizes) // 2]
        least = SIDES[0] if pretrained is None else LEAST
        settings["size"] = max([least, *(side for side in SIDES if side <= median)])
        chosen.append(f"{settings['size']} px")
        because.append(f"half of them {median} px or less at the shorter side")
    if missing and pretrained is None:
        because.append(f"and no pretrained weights: {missing}")
    if not chosen:
        return Fit(settings=settings)
    why = f"{' at '.join(chosen)}, since there are {', '.join(because)}; --backbone and --size choose others"
    return Fit(settings=settings, why=why)


def choose_pretrained() -> tuple[str | None, str]:
    """Return the first of `PRETRAINED` whose weights this machine has, or else can download at once.

    Return None and the reason if there is none.
    """
    files = {}
    for name in PRETRAINED:
        if (file := published_file(name)) is None:
            continue
        if file.is_cached:
            return name, ""
        files[name] = file
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None, "none are cached, and HF_HUB_OFFLINE forbids a download"
    if os.environ.get("AUTOML_MIRROR"):  # It has no files of the Hugging Face Hub.
        files = {name: file for name, file in files.items() if file.path is not None}
    answering, reason = find_answering([file.address for file in files.values()]), ""
    if answering is not None:
        name = next(name for name, file in files.items() if file.address == answering)
        try:
            load_published(name, classes=2)
        except InputError as error:
            reason = str(error)
        else:
            return name, ""
    hosts = " and ".join(dict.fromkeys(urlsplit(mirrored(file.address)).netloc for file in files.values()))
    reason = reason or f"none are cached, and {hosts} did not offer them within {ASKED:g} s"
    copies = [f"{file.address} belongs into {file.path.parent}" for file in files.values() if file.path]
    return None, f"{reason} (a copy of {copies[0]})" if copies else reason
