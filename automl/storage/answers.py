"""What a model answered to each input of a split: a small file beside its checkpoint, which is kept longer.

For ten thousand inputs these are some 20 KB, so that those of all of a confirmation's trainings stay.
"""

import io
import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automl.storage.storage import Storage
from search.score_card import ScoreCard

ANSWERS_FILE = "answers.npz"

log = logging.getLogger("automl")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A model's answers to a split, in its order.

    labels: of the classes. true, answered: of each input, indices of labels, int64 `(N,)`.
    values: what each input contributes to the primary metric, float `(N,)`: pseudo-values of the jackknife,
        which for an accuracy are 1 where the answer is right and 0 elsewhere.
    """

    labels: Sequence[str]
    true: NDArray[np.int64]
    answered: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def card(self) -> ScoreCard:
        return ScoreCard.of(self.labels, self.true, self.answered)

    def save(self, folder: Storage) -> None:
        """Write them. Raises OSError."""
        buffer = io.BytesIO()
        smallest = np.min_scalar_type(max(1, len(self.labels)))
        np.savez_compressed(
            buffer,
            labels=np.array(list(self.labels), dtype=np.str_),
            true=self.true.astype(smallest),
            answered=self.answered.astype(smallest),
            values=self.values.astype(np.float32),
        )
        folder.write(ANSWERS_FILE, buffer.getvalue())


def read_answers(folder: Storage) -> Answers | None:
    """Those of a training; None where there are none that can be read."""
    try:
        with np.load(io.BytesIO(folder.read(ANSWERS_FILE))) as file:
            return Answers(
                labels=file["labels"].tolist(),
                true=file["true"].astype(np.int64),
                answered=file["answered"].astype(np.int64),
                values=file["values"].astype(np.float64),
            )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s of %s cannot be read: %s", ANSWERS_FILE, folder, error)
        return None
