"""Draw grey pictures of faces in the layout of the ORL faces: one folder per person with ten PGM files.

They show no real person. A person is some twenty proportions and tones. The pictures of a person differ in
turn, tilt, distance, light, expression and noise, as photographs do.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 92, 112  # pixels, as in the ORL faces
SCALE = 4  # draw at this scale and reduce, so that edges are smooth


def make_faces(folder: Path, *, people: int = 40, pictures: int = 10, seed: int = 0) -> None:
    """Write `folder/s01/1.pgm` and so on. The seed determines the pictures."""
    for person in range(people):
        traits = np.random.default_rng((seed, person)).uniform(-1, 1, 20)
        person_folder = folder / f"s{person + 1:02}"
        person_folder.mkdir(parents=True, exist_ok=True)
        for number in range(pictures):
            moods = np.random.default_rng((seed, person, number))
            draw_face(traits, moods).save(person_folder / f"{number + 1}.pgm")


def draw_face(traits: np.ndarray, moods: np.random.Generator) -> Image.Image:
    """Return a picture of the person with these `traits`, 20 numbers in -1..1; `moods` draws the rest."""
    t = traits
    turn, nod, open_, smile = moods.uniform(-1, 1, 4)
    w, h = WIDTH * SCALE, HEIGHT * SCALE
    image = Image.new("L", (w, h), int(110 + 60 * moods.uniform(-1, 1)))
    draw = ImageDraw.Draw(image)
    skin, hair = 165 + 45 * t[0], 75 + 60 * t[1]
    x, y = w / 2, h * 0.54
    half, tall = w * (0.29 + 0.04 * t[2]), h * (0.33 + 0.04 * t[3])

    def ellipse(cx: float, cy: float, rx: float, ry: float, tone: float) -> None:
        draw.ellipse([cx - rx, cy - ry, cx + rx, cy + ry], fill=int(np.clip(tone, 0, 255)))

    def line(points: list[tuple[float, float]], width: float, tone: float) -> None:
        draw.line(points, fill=int(np.clip(tone, 0, 255)), width=max(1, round(width)), joint="curve")

    ellipse(x, y - tall * (0.15 + 0.1 * t[4]), half * (1.12 + 0.1 * t[5]), tall * (1.1 + 0.08 * t[6]), hair)
    ellipse(x - half * 1.02, y, half * 0.14, tall * 0.2, skin - 18)
    ellipse(x + half * 1.02, y, half * 0.14, tall * 0.2, skin - 18)
    ellipse(x, y, half, tall, skin)
    ellipse(x, y - tall * 0.92, half * (0.8 + 0.15 * t[7]), tall * (0.3 + 0.14 * t[8]), hair)
    if t[9] > 0.35:  # a beard
        ellipse(x, y + tall * 0.75, half * 0.62, tall * 0.3, hair + 15)
    fx, fy = x + turn * half * 0.28, y + nod * tall * 0.1  # the features move with the head
    apart, level = half * (0.42 + 0.07 * t[10]), fy - tall * (0.14 + 0.05 * t[11])
    for side in (-1, 1):
        ex = fx + side * apart * (1 - 0.15 * side * turn)
        size = half * (0.15 + 0.03 * t[12])
        ellipse(ex, level, size, size * (0.55 + 0.15 * t[13] + 0.15 * open_), 235)
        ellipse(ex + 0.3 * turn * size, level, size * 0.45, size * 0.45, 45 + 35 * t[14])
        tilt = tall * 0.05 * t[15] * side
        brow = level - tall * (0.13 + 0.02 * t[16])
        line(
            [(ex - size * 1.3, brow + tilt), (ex + size * 1.3, brow - tilt)],
            half * (0.07 + 0.03 * t[17]),
            hair,
        )
        if t[18] > 0.4:  # glasses
            box = [ex - size * 1.6, level - size * 1.3, ex + size * 1.6, level + size * 1.3]
            draw.ellipse(box, outline=35, width=max(1, round(half * 0.04)))
    nose = tall * (0.3 + 0.08 * t[19])
    line(
        [(fx, level), (fx + half * 0.1 * (1 + turn), level + nose), (fx - half * 0.05, level + nose)],
        5,
        skin - 45,
    )
    mouth, wide = level + nose + tall * (0.2 + 0.05 * t[3]), half * (0.3 + 0.07 * t[7])
    corner = mouth - tall * 0.05 * smile
    line(
        [(fx - wide, corner), (fx, mouth + tall * 0.03 * smile), (fx + wide, corner)], half * 0.09, skin - 70
    )
    image = image.rotate(7 * moods.uniform(-1, 1), Image.Resampling.BILINEAR, fillcolor=110)
    zoom = 1 + 0.08 * moods.uniform(-1, 1)
    image = image.transform(
        (w, h),
        Image.Transform.AFFINE,
        (zoom, 0, w * (0.04 * moods.uniform(-1, 1) + (1 - zoom) / 2), 0, zoom, h * (1 - zoom) / 2),
        fillcolor=110,
    )
    image = image.resize((WIDTH, HEIGHT)).filter(ImageFilter.GaussianBlur(0.6))
    across, down = np.meshgrid(np.linspace(-1, 1, WIDTH), np.linspace(-1, 1, HEIGHT))
    light = 1 + 0.35 * (across * moods.uniform(-1, 1) + down * moods.uniform(-0.5, 0.5))
    pixels = np.asarray(image, np.float32) * light * moods.uniform(0.75, 1.2)
    pixels = pixels + moods.normal(0, 6, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
