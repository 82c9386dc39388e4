"""Folders of images: photographs as people have them, with files of every kind and broken ones, and noise."""

import os
import shutil
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, features

SIDE = 40  # pixels
BROKEN = ("cut off.jpg", "empty.png", "no picture.png", "range.tif")  # all in the folder Training/above


def make_photographs(folder: Path) -> None:
    """`folder/Training` and `folder/validation` with the classes `above` and `below`: where it is bright.

    Cut from photographs where ../shared/data or AUTOML_TEST_DATA has some, from noise elsewhere.
    """
    draw = np.random.default_rng(0)
    data = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
    seen = [
        np.asarray(Image.open(file).convert("RGB")) for file in sorted(data.glob("coco/train2017/*"))[:12]
    ]
    for split, counts in (("Training", (48, 12)), ("validation", (16, 16))):
        for (kind, rows), count in zip(
            {"above": slice(0, 20), "below": slice(20, 40)}.items(), counts, strict=True
        ):
            (folder / split / kind).mkdir(parents=True)
            for i in range(count):
                pixels = _cut(seen[i % len(seen)], draw) if seen else draw.integers(0, 250, (SIDE, SIDE, 3))
                pixels = pixels * 0.4
                pixels[rows] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / kind / f"{i}.png")
    _add_oddities(folder)


def make_noise(folder: Path) -> None:
    """Make a folder with images of noise. In digits, maximum pooling has ties that rounding decides."""
    draw = np.random.default_rng(0)
    for i in range(160):
        class_folder = folder / f"class{int(i % 3 > 0)}"
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8)).save(class_folder / f"{i}.png")


def _cut(photograph: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    top, left = (draw.integers(0, side - SIDE) for side in photograph.shape[:2])
    return photograph[top : top + SIDE, left : left + SIDE]


def _add_oddities(folder: Path) -> None:
    """Ten kinds of files that are read, some of other things, one image in both splits, and BROKEN."""
    above = folder / "Training" / "above"
    first = Image.open(above / "0.png")
    grey = first.convert("L")
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    first.save(above / "IMG 0001 (\u00dcbersicht).JPG")
    first.transpose(Image.Transpose.ROTATE_90).save(above / "turned.jpeg", exif=turned)
    first.convert("CMYK").save(above / "print.jpg")
    first.convert("RGBA").save(above / "transparent.webp")
    first.convert("P").save(above / "moving.gif", save_all=True, append_images=[grey.convert("P")])
    grey.save(above / "grey.pgm")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(above / "16 bits.png")
    first.resize((300, 7)).save(above / "wide.bmp")
    if features.check("avif"):
        first.save(above / "new.avif")

    content = (above / "print.jpg").read_bytes()
    (above / "cut off.jpg").write_bytes(content[: len(content) // 2])
    (above / "empty.png").touch()
    (above / "no picture.png").write_bytes(b"no picture")
    Image.fromarray(np.full((SIDE, SIDE), 0.5, np.float32)).save(above / "range.tif")

    for name in (".DS_Store", "Thumbs.db", "notes.txt"):
        (above / name).write_bytes(b"of no interest")
    for name in ("__MACOSX", ".thumbnails", "nothing yet"):
        (folder / "Training" / name).mkdir()
    shutil.copy(above / "1.png", folder / "validation" / "above" / "once more.png")
