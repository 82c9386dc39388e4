"""What a dataset of images holds: classes, splits, sizes, what is left out, images that look alike."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from automl.data.balance import imbalance
from automl.data.images.dataset import SPLITS, Images, describe_splits, open_split
from automl.data.images.picture import read_size
from automl.data.images.sources import items
from automl.data.tally import Tally, some

APART = 3  # bits of 64 in which images that look alike may differ
MEASURED = 2000  # images at most whose sizes are read, evenly spread


@dataclass(frozen=True, kw_only=True)
class Overview:
    """counts: images by class and split. how: each split came about. sizes: of `MEASURED` originals at most,
    `(width, height)` in pixels. skipped: names of files that cannot be decoded. tally: what was left out,
    turned, rescaled or is double. alike: names of images of two splits that are the same, or look it.
    """

    counts: dict[str, dict[str, int]]
    how: dict[str, str]
    sizes: list[tuple[int, int]]
    skipped: list[str]
    tally: Tally
    alike: list[tuple[str, str]]

    def lines(self) -> Iterator[str]:
        width = max(8, *(len(name) for name in self.counts))
        yield f"{'class':{width}}" + "".join(f"{split:>12}" for split in SPLITS)
        for name, row in self.counts.items():
            yield f"{name:{width}}" + "".join(f"{row[split]:>12}" for split in SPLITS)
        totals = [sum(row[split] for row in self.counts.values()) for split in SPLITS]
        yield f"{'all':{width}}" + "".join(f"{total:>12}" for total in totals)
        if said := imbalance({name: row["train"] for name, row in self.counts.items()}):
            yield f"{'balance':11} {said}"
        for split, how in self.how.items():
            yield f"{split:11} {how}"
        if self.sizes:
            widths, heights = (sorted(side) for side in zip(*self.sizes, strict=True))
            middle = len(widths) // 2
            yield (
                f"{'sizes':11} {widths[0]} to {widths[-1]} pixels wide (median {widths[middle]}), "
                f"{heights[0]} to {heights[-1]} high (median {heights[middle]})"
            )
        if self.tally:
            yield str(self.tally)
        if self.alike:
            pairs = [f"{one} and {other}" for one, other in self.alike]
            yield f"{'duplicates':11} {len(pairs)} images look like one of another split: {some(pairs)}"


def look_over(source: str, path: str | None, size: int) -> Overview:
    """Decodes all of the dataset, the test split too. Raises InputError like `open_split`."""
    splits = {split: open_split(source, split, path=path, size=size) for split in SPLITS}
    counts = {name: dict.fromkeys(SPLITS, 0) for name in splits["train"].classes}
    for split, images in splits.items():
        for label, count in Counter(images.labels.tolist()).items():
            counts[images.classes[label]][split] = count
    listed = items(source, path, size)
    files = [item.image for split in listed.splits.values() for item in split if isinstance(item.image, Path)]
    return Overview(
        counts=counts,
        how=describe_splits(source, path=path, size=size),
        sizes=file_sizes(files[:: max(1, -(-len(files) // MEASURED))]),
        skipped=sorted({name for images in splits.values() for name in images.skipped}),
        tally=splits["train"].tally_with(*splits.values()),
        alike=_alike(splits),
    )


def file_sizes(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Width and height in pixels of each image in files, upright, without those that cannot be read."""
    sizes = []
    for file in files:
        try:
            sizes.append(read_size(file)[0])
        except Exception:  # Pillow raises nearly anything for a damaged file, which is named elsewhere
            continue
    return sizes


def _alike(splits: dict[str, Images]) -> list[tuple[str, str]]:
    """One pair of names for each image of a later split that looks like one of an earlier split."""
    seen: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)  # by each part of their marks
    pairs = []
    for images in splits.values():
        here = list(zip(_marks(images), images.names(), strict=True))
        for mark, name in here:
            others = (other for part in _parts(mark) for other in seen[part])
            if match := next((old for other, old in others if (mark ^ other).bit_count() <= APART), None):
                pairs.append((match, name))
        for mark, name in here:
            for part in _parts(mark):
                seen[part].append((mark, name))
    return sorted(pairs)


def _marks(images: Images) -> Iterator[int]:
    """64 bits of each image: whether it brightens from cell to cell of a grid of 8 x 9.

    A difference hash: another size, compression or brightness changes few of them.
    """
    for start in range(0, len(images), 256):
        some = images.gather(torch.arange(start, min(start + 256, len(images))))
        cells = F.adaptive_avg_pool2d(some.float().mean(3).unsqueeze(1), (8, 9)).squeeze(1)
        bits = np.packbits((cells[:, :, 1:] > cells[:, :, :-1]).flatten(1).numpy(), axis=1)
        yield from (int.from_bytes(row.tobytes()) for row in bits)


def _parts(mark: int) -> list[tuple[int, int]]:
    """Four quarters of a mark: of two that are at most APART bits apart, one at least is the same."""
    return [(i, mark >> 16 * i & 0xFFFF) for i in range(APART + 1)]
