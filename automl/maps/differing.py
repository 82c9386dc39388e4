"""Inputs that two models answer differently, with pictures, in a file beside the study that trained them.

The end of a search or a confirmation writes it, so that a report needs neither the data nor the models.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automl.maps.examples import small_picture
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers, read_arrays, write_arrays
from automl.tasks import Task
from automl.tasks.task_data import Split

DIFFERING_FILE = "differing.npz"
EACH = 6  # most inputs of each kind: one that the first model alone answers rightly, or the other alone


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Inputs of a split that are answered differently.

    Attributes:
        count: Number of all such inputs that the first model answers rightly, and the other one.
        true: The label of each input that is shown.
        ours: The first model's answer to it, the most frequent one of its trainings.
        theirs: The other's.
        pictures: Images, uint8 `(H, W, 3)`.
    """

    split: str
    count: tuple[int, int]
    true: Sequence[str]
    ours: Sequence[str]
    theirs: Sequence[str]
    pictures: Sequence[NDArray[np.uint8]]


def save_differing(
    task: Task, split: Split, ours: Sequence[Answers], theirs: Sequence[Answers], folder: Storage
) -> None:
    """Write the file, if the task has classes and pictures. A failure is logged, as all else is complete."""
    try:
        with suppress(FileNotFoundError):  # of an earlier end
            folder.remove(DIFFERING_FILE)
        differing = find_differing(task, split, ours, theirs)
        if differing is not None:
            about = {name: getattr(differing, name) for name in ("split", "count", "true", "ours", "theirs")}
            write_arrays(
                folder, DIFFERING_FILE, about, {f"{i}": each for i, each in enumerate(differing.pictures)}
            )
    except Exception as error:
        log.warning("the inputs that are answered differently were not recorded in %s: %r", folder, error)


def read_differing(folder: Storage) -> Differing | None:
    """Read the file. Return None if it is missing or damaged."""
    return read_arrays(
        folder,
        DIFFERING_FILE,
        lambda about, arrays: Differing(
            **about, pictures=[arrays[f"{i}"] for i in range(len(about["true"]))]
        ),
    )


def find_differing(
    task: Task, split: Split, ours: Sequence[Answers], theirs: Sequence[Answers]
) -> Differing | None:
    """Return the inputs that most trainings of one model alone answer rightly. None without pictures.

    Those come first on which the trainings agree most.
    """
    if not (ours and theirs and ours[0].labels):
        return None
    labels, true = ours[0].labels, ours[0].true
    right = [np.mean([each.answered == true for each in group], axis=0) for group in (ours, theirs)]
    chosen, count = [], []
    for ours_right, theirs_right in (right, right[::-1]):
        rows = np.flatnonzero((ours_right > 0.5) & (theirs_right < 0.5))
        count.append(len(rows))
        chosen += rows[np.argsort((theirs_right - ours_right)[rows], kind="stable")][:EACH].tolist()
    pictures = task.pictures(split, chosen) if chosen else None
    if pictures is None:
        return None
    first, second = (
        [labels[int(np.bincount([each.answered[row] for each in group]).argmax())] for row in chosen]
        for group in (ours, theirs)
    )
    return Differing(
        split=split,
        count=(count[0], count[1]),
        true=[labels[int(true[row])] for row in chosen],
        ours=first,
        theirs=second,
        pictures=[small_picture(each) for each in pictures],
    )
