"""Draw a sheet of sample images: the name of the class, the image, and its augmented versions."""

import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from automl.data.pictures.augment import centre_crop, crop_boxes, draw_boxes
from automl.tasks.image_classification.data.dataset import Images
from automl.tasks.image_classification.data.policy import make_erasing, make_policy
from backbones.libraries import Normalisation

ROWS, COLUMNS = 8, 7
GAP = 4
FONT = "fonts/ttf/DejaVuSans.ttf"  # from Matplotlib; Pillow's own font has only Latin letters
LARGEST, SMALLEST = 20, 10  # height of a letter, in pixels
WIDEST = 200  # pixels of a name; longer names are cut and end in three dots
BYTES = Normalisation((0, 0, 0), (1 / 255, 1 / 255, 1 / 255))  # leaves pixels unchanged


def save_sheet(
    images: Images, file: Path, *, size: int, scale: float, flip: bool, policy: str, erase: float
) -> None:
    """Write a sheet to `file`, one row per image: the class, the image, and augmented versions.

    The rows show as many classes as fit. `scale` is the smallest fraction of an image's area that a random
    crop keeps.
    """
    rows = _select_rows(images.labels)
    raw = images.gather(rows)
    shown = [centre_crop(raw, images.aspect[rows], size)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(COLUMNS - 1):
        seeds = torch.randint(2**31, (len(rows),), generator=generator)
        changed = raw if policy == "none" else make_policy(policy)(raw, seeds)
        boxes = draw_boxes(images.aspect[rows], scale=scale, flip=flip, generator=generator)
        x = crop_boxes(changed, boxes, size, BYTES)
        if erase:
            x = make_erasing(erase)(x, seeds)
        shown.append(x.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1))
    tiles = torch.stack(shown, dim=1).numpy()  # (rows, columns, size, size, 3)
    step = size + GAP
    sheet = np.full((len(rows) * step - GAP, COLUMNS * step - GAP, 3), 255, np.uint8)
    for i, j in np.ndindex(tiles.shape[:2]):
        sheet[i * step : i * step + size, j * step : j * step + size] = tiles[i, j]
    names = _draw_names([images.classes[label] for label in images.labels[rows].tolist()], size, step)
    both = Image.new("RGB", (names.width + sheet.shape[1], sheet.shape[0]), "white")
    both.paste(names, (0, 0))
    both.paste(Image.fromarray(sheet), (names.width, 0))
    both.save(file)


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
    turns = [members[turn] for turn in range(ROWS) for members in by_class if turn < len(members)]
    return torch.stack(turns[:ROWS]).sort().values
