"""Generate an archive in the layout of UCI HAR, in place of the published 61 MB."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from automl.tasks.sequence_classification.data.ucihar import FOLDER, INNER, SIGNALS

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
STEPS = 128
# The published split.
TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
TRAIN_SUBJECTS = tuple(i for i in range(1, 31) if i not in TEST_SUBJECTS)


def windows(subjects: Sequence[int], each: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values `(N, 9, 128)`, activities from 1 `(N,)` and subjects `(N,)`: `each` windows of each
    subject.
    """
    random = np.random.default_rng(seed)
    person = np.repeat(subjects, each)
    activity = np.tile(np.arange(each) % len(ACTIVITIES) + 1, len(subjects))
    phase = random.uniform(0, 2 * np.pi, (len(person), len(SIGNALS), 1))
    wave = np.sin(phase + activity[:, None, None] * np.arange(STEPS) / 10)
    return wave + random.normal(0, 0.1, wave.shape), activity, person


def write_folder(
    root: Path,
    each: int = 12,
    train: Sequence[int] = TRAIN_SUBJECTS[:6],
    test: Sequence[int] = TEST_SUBJECTS[:2],
) -> Path:
    """Write `root/UCI HAR Dataset` and return it."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    (folder / "activity_labels.txt").write_text("".join(f"{i} {n}\n" for i, n in enumerate(ACTIVITIES, 1)))
    (folder / "README.txt").write_text("Made up.\n")
    for split, subjects in (("train", train), ("test", test)):
        values, activity, person = windows(subjects, each, len(split))
        signals = folder / split / "Inertial Signals"
        signals.mkdir(parents=True)
        for i, signal in enumerate(SIGNALS):
            (signals / f"{signal}_{split}.txt").write_text(_text(values[:, i]))
        np.savetxt(folder / split / f"y_{split}.txt", activity, "%d")
        np.savetxt(folder / split / f"subject_{split}.txt", person, "%d")
    return folder


def write_zip(path: Path, nested: bool = False) -> Path:
    """Write the folder as a zip file; `nested` puts it into another one, as UCI does."""
    folder = write_folder(path.with_suffix(""))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for member in sorted(folder.rglob("*")):
            file.write(member, member.relative_to(folder.parent))
        file.writestr(f"__MACOSX/._{FOLDER}", b"")
    if nested:
        inner = path.read_bytes()
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(INNER, inner)
            file.writestr(f"{FOLDER}.names", "Made up.\n")
    return path


def _text(values: np.ndarray) -> str:
    """Format numbers as published: `  1.8085150e-004 -3.5e-003`, with two spaces before a positive number."""
    lines = ("".join(f" {value: .7e}" for value in row) for row in values.tolist())
    return "\n".join(lines).replace("e-0", "e-00").replace("e+0", "e+00") + "\n"
