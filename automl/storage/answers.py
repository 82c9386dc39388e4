"""What a model answered to each input of a split: a small file beside its checkpoint, which is kept longer.

For ten thousand inputs these are some 20 KB, so that those of all of a confirmation's trainings stay.
"""

import io
import json
import logging
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from automl.storage.storage import Storage
from search.score_card import ScoreCard

ANSWERS_FILE = "answers.npz"
EXAMPLES = 20  # that are kept of a retrieval

log = logging.getLogger("automl")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A query of a search in texts. wanted, first: `name (file:line)` of its function, and of the one that
    came first. rank: of the wanted one, from 1 on."""

    query: str
    wanted: str
    rank: int
    first: str


def _none() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A model's answers to a split, in its order.

    values: what each input contributes to the primary metric, float `(N,)`: pseudo-values of the jackknife,
        which for an accuracy are 1 where the answer is right and 0 elsewhere; of a retrieval, the reciprocal
        rank of what each query is for.
    labels: of the classes. true, answered: of each input, indices of labels, int64 `(N,)`. All three are
        empty for tasks without classes.
    examples: of a retrieval, some hits and some misses, EXAMPLES at most.
    """

    values: NDArray[np.float64]
    labels: Sequence[str] = ()
    true: NDArray[np.int64] = field(default_factory=_none)
    answered: NDArray[np.int64] = field(default_factory=_none)
    examples: Sequence[Example] = ()

    @property
    def card(self) -> ScoreCard:
        """Of the classes; it counts nothing where there are none."""
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
            examples=np.array(json.dumps([asdict(example) for example in self.examples[:EXAMPLES]])),
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
                examples=[Example(**each) for each in json.loads(file["examples"].item())],
            )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s of %s cannot be read: %s", ANSWERS_FILE, folder, error)
        return None


def telling(ranks: NDArray[np.int64]) -> list[int]:
    """Which queries of a retrieval are kept as examples: EXAMPLES at most, about half of them hits.

    ranks: of what each query is for, from 1 on, int64 `(N,)`. Hits come from all over the split, misses from
    near ones to the worst.
    """
    hits, misses = np.flatnonzero(ranks == 1), np.flatnonzero(ranks > 1)
    misses = misses[np.argsort(ranks[misses], kind="stable")]
    half = EXAMPLES // 2
    of_hits = min(len(hits), max(half, EXAMPLES - len(misses)))
    of_misses = min(len(misses), EXAMPLES - of_hits)
    return [*_spread(hits, of_hits), *_spread(misses, of_misses)]


def _spread(indices: NDArray[np.int64], count: int) -> list[int]:
    """`count` of them, evenly from the first to the last."""
    at = np.linspace(0, max(0, len(indices) - 1), count).round().astype(int)
    return [int(index) for index in indices[at]]
