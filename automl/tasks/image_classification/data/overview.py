"""Summarise a dataset of images, and draw a sheet of samples with their augmented versions."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from automl.base.errors import InputError, unknown
from automl.base.terminal import progress
from automl.base.units import pluralize
from automl.config.nouns import Question
from automl.data.augment import apply_policy, centre_crop, crop_boxes, draw_boxes, erase_boxes
from automl.data.overview import Overview
from automl.data.pictures import describe_sizes, read_sizes
from automl.data.splits import SPLITS
from automl.data.tally import join_examples
from automl.task.deployment import spread_indices
from automl.tasks.image_classification.data.dataset import LEAST_CROP, Images, open_image_records, open_split
from backbones.libraries import Normalisation
from search.choices import AUGMENT
from search.class_statistics import describe_imbalance

MAX_DISTANCE = 3  # bits of 64 in which images that look alike may differ
HASH_SIDE = 64  # pixels per side that are used for a hash; larger images are subsampled
PAIRS = 1 << 22  # pairs of images that are compared at once
MEASURED = 2000  # most images whose sizes are read, evenly spread


class ImageOverview(Overview):
    """The overview of a folder of images, with its sheet of samples."""

    def write_sheet(self, path: str, size: int, *, flip: bool, augment: str) -> Path:
        """Write samples to a PNG in the current folder. Raise InputError if it cannot be written."""
        if augment not in AUGMENT:
            raise unknown("augmentation", augment, AUGMENT)
        file, chosen = Path(f"{Question(space='folder', data=path).title}-samples.png"), AUGMENT[augment]
        images = open_split("folder", "train", path=path, size=size)
        sheet = draw_sheet(images, size=size, flip=flip, policy=chosen["policy"], erase=chosen["erasing"])
        try:
            sheet.save(file)
        except OSError as error:
            raise InputError(f"{file} cannot be written: {error.strerror or error}") from error
        return file


def summarise_folder(path: str, size: int) -> ImageOverview:
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
    return ImageOverview(
        {**counts, "all": totals},
        heading=target.stratum.removeprefix("rarest "),
        how=records.describe_splits(),
        tally=sum((images.file.tally for images in splits.values()), records.tally),
        notes={
            "balance": describe_imbalance(training) if target.classes else "",
            "target": target.summary(values),
            "sizes": describe_sizes(sizes) if sizes else "",
            "duplicates": f"{same}: {pairs}" if alike else "",
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


ROWS, COLUMNS = 8, 7
GAP = 4
FONT = "fonts/ttf/DejaVuSans.ttf"  # from Matplotlib; Pillow's own font has only Latin letters
LARGEST, SMALLEST = 20, 10  # height of a letter, in pixels
WIDEST = 200  # pixels of a name; longer names are cut and end in three dots
BYTES = Normalisation((0, 0, 0), (1 / 255, 1 / 255, 1 / 255))  # leaves pixels unchanged


def draw_sheet(images: Images, *, size: int, flip: bool, policy: str, erase: float) -> Image.Image:
    """Draw a row per image: its target, the image, and augmented versions. Show as many classes as fit."""
    rows = _select_rows(images.labels)
    raw = images.gather(rows)
    shown = [centre_crop(raw, images.aspect[rows], size)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(COLUMNS - 1):
        seeds = torch.randint(2**31, (len(rows),), generator=generator)
        changed = raw if policy == "none" else apply_policy(policy, raw, seeds)
        boxes = draw_boxes(images.aspect[rows], scale=LEAST_CROP, flip=flip, generator=generator)
        x = crop_boxes(changed, boxes, size, BYTES)
        if erase:
            x = erase_boxes(x, seeds, erase)
        shown.append(x.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1))
    tiles = torch.stack(shown, dim=1).numpy()  # (rows, columns, size, size, 3)
    step = size + GAP
    sheet = np.full((len(rows) * step - GAP, COLUMNS * step - GAP, 3), 255, np.uint8)
    for i, j in np.ndindex(tiles.shape[:2]):
        sheet[i * step : i * step + size, j * step : j * step + size] = tiles[i, j]
    names = _draw_names(images.captions(rows.tolist()), size, step)
    both = Image.new("RGB", (names.width + sheet.shape[1], sheet.shape[0]), "white")
    both.paste(names, (0, 0))
    both.paste(Image.fromarray(sheet), (names.width, 0))
    return both


def _draw_names(names: list[str], size: int, step: int) -> Image.Image:
    """Draw names below each other, `step` pixels apart, each at half the height of its row."""
    font = ImageFont.truetype(
        f"{matplotlib.get_data_path()}/{FONT}", size=max(SMALLEST, min(LARGEST, size // 6))
    )
    texts = [_shorten_name(name, font) for name in names]
    width = max(int(font.getlength(text)) for text in texts) + 2 * GAP
    column = Image.new("RGB", (width, len(names) * step - GAP), "white")
    draw = ImageDraw.Draw(column)
    for i, text in enumerate(texts):
        draw.text((GAP, i * step + size // 2), text, fill="black", font=font, anchor="lm")
    return column


def _shorten_name(name: str, font: ImageFont.FreeTypeFont) -> str:
    """Return a name without control characters, cut to WIDEST pixels."""
    name = "".join(" " if unicodedata.category(letter).startswith("C") else letter for letter in name)
    if font.getlength(name) <= WIDEST:
        return name
    length = max(i for i in range(len(name)) if font.getlength(f"{name[:i]}...") <= WIDEST)
    return f"{name[:length]}..."


def _select_rows(labels: Tensor) -> Tensor:
    """Return the first image of each class, and further ones if there are fewer classes than ROWS."""
    by_class = [(labels == label).nonzero().flatten() for label in labels.unique()]
    if len(by_class) == 1:  # a number each
        return spread_indices(len(labels), ROWS)
    turns = [members[turn] for turn in range(ROWS) for members in by_class if turn < len(members)]
    return torch.stack(turns[:ROWS]).sort().values
