"""Summarise a dataset of images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from automl.base.errors import InputError
from automl.base.terminal import progress
from automl.base.units import pluralize
from automl.data.overview import Overview
from automl.data.pictures import describe_sizes, read_sizes
from automl.data.splits import SPLITS
from automl.data.tally import join_examples
from automl.tasks.image_classification.data.dataset import Images, open_image_records, open_split
from automl.tasks.image_classification.data.folders import CONTRADICTION
from search.class_statistics import describe_imbalance

MAX_DISTANCE = 3  # bits of 64 in which images that look alike may differ
HASH_SIDE = 64  # pixels per side that are used for a hash; larger images are subsampled
SEVERAL = "may an image have several? docs/how-to/labels-and-numbers.md says how to have them read"
PAIRS = 1 << 22  # pairs of images that are compared at once
MEASURED = 2000  # most images whose sizes are read, evenly spread


def summarise_folder(path: str, size: int) -> Overview:
    """Return the overview of a folder of images, test split included. Raises InputError as `open_split`."""
    if not 24 <= size <= 1024:
        raise InputError(f"--size must be between 24 and 1024 pixels; got {size}")
    splits = {split: open_split("folder", split, path=path, size=size) for split in SPLITS}
    target = splits["train"].target
    by_split = {
        split: target.counts(images.labels) if target.classes else images.values.sum(0).long().tolist()
        for split, images in splits.items()
    }
    counts = {
        name: {split: numbers[i] for split, numbers in by_split.items()}
        for i, name in enumerate(target.names if target.stratum else ())
    }
    records = open_image_records("folder", path=path, size=size)
    files = [item.image for item in records.file.inputs if isinstance(item.image, Path)]
    sizes = read_sizes(files[:: max(1, -(-len(files) // MEASURED))])
    totals = {split: len(images) for split, images in splits.items()}
    training = {name: row["train"] for name, row in counts.items()}
    values = torch.cat([images.values for images in splits.values()])
    alike = _find_lookalikes(splits)
    pairs = join_examples([f"{first} and {second}" for first, second in alike])
    same = pluralize(len(alike), "images look like one of another split")
    return Overview(
        {**counts, "all": totals},
        heading=target.stratum.removeprefix("rarest "),
        how=records.describe_splits(),
        tally=sum((images.file.tally for images in splits.values()), records.tally),
        notes={
            "balance": describe_imbalance(training) if target.classes else "",
            "target": target.summary(values),
            "sizes": describe_sizes(sizes) if sizes else "",
            "duplicates": f"{same}: {pairs}" if alike else "",
            "labels": SEVERAL if target.classes and CONTRADICTION in str(records.tally) else "",
        },
        target=target.kind,
        counts=counts,
        sizes=sizes,
        skipped=sorted({name for images in splits.values() for name in images.file.skipped}),
        alike=alike,
    )


def _find_lookalikes(splits: dict[str, Images]) -> list[tuple[str, str]]:
    """Return one pair of names for each image of a later split that looks like one of an earlier split."""
    pairs: list[tuple[str, str]] = []
    seen, names = np.empty(0, np.uint64), list[str]()
    with progress("comparing images", sum(map(len, splits.values()))) as advance:
        for images in splits.values():
            hashes, new_names = _hash_images(images, advance), images.names()
            matches = _match_hashes(seen, hashes)
            pairs += [(names[matches[i]], new_names[i]) for i in np.flatnonzero(matches >= 0).tolist()]
            seen, names = np.concatenate([seen, hashes]), names + new_names
    return sorted(pairs)


def _hash_images(images: Images, advance: Callable[[int], None]) -> np.ndarray:
    """Return a 64-bit difference hash of each image, uint64 `(N,)`."""
    # A bit is set if the image brightens from a cell to the next in a grid of 8 x 9 cells. Another size,
    # compression or brightness changes few bits.
    hashes = [np.empty(0, np.uint64)]
    step = max(1, images.side // HASH_SIDE)
    for start in range(0, len(images), 256):
        pixels = images.gather(torch.arange(start, min(start + 256, len(images))))
        red, green, blue = pixels[:, ::step, ::step].float().unbind(3)
        cells = F.adaptive_avg_pool2d((red + green + blue).unsqueeze(1), (8, 9)).squeeze(1)
        bits = np.packbits((cells[:, :, 1:] > cells[:, :, :-1]).flatten(1).numpy(), axis=1)
        hashes.append(bits.view(">u8")[:, 0].astype(np.uint64))
        advance(len(pixels))
    return np.concatenate(hashes)


def _match_hashes(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return for each new hash the index of an old one within MAX_DISTANCE bits, or -1, int64 `(N,)`."""
    nearest = np.full(len(new), -1)
    for rows in np.array_split(np.arange(len(new)), max(1, -(-len(new) * len(old) // PAIRS))):
        near = np.bitwise_count(old ^ new[rows, None]) <= MAX_DISTANCE  # (rows, old)
        matched, matches = near.nonzero()
        nearest[rows[matched]] = matches
    return nearest
