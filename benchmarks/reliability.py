"""Estimate whether a table of scores, one row per placement and one column per seed, can rank its placements.

F compares the variance between rows with that within. The intraclass correlation is the fraction of one
score's variance that comes from the placement. Split-half reliability is the correlation between means over
two halves of the seeds, extrapolated to all of them (Spearman-Brown). Below 0.5, most of a ranking is noise.

Source: P. E. Shrout, J. L. Fleiss, Intraclass correlations: uses in assessing rater reliability (1979),
ICC(1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f

ENOUGH = 0.5  # reliability from which methods are ranked
SPLITS = 100


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Reliability of a table of scores.

    Attributes:
        f: F statistic with `degrees` of freedom.
        p: Probability of a larger `f` by chance.
        intraclass: Correlation of single scores.
        split_half: Reliability of the means over all seeds.
    """

    f: float
    degrees: tuple[int, int]
    p: float
    intraclass: float
    split_half: float

    @property
    def ranks(self) -> bool:
        return self.split_half >= ENOUGH


def reliability(scores: NDArray[np.float64], seed: int = 0) -> Reliability:
    """Return the reliability of scores `(placements, seeds)`, with at least two of each."""
    rows, columns = scores.shape
    between = columns * scores.mean(axis=1).var(ddof=1)
    within = scores.var(axis=1, ddof=1).mean()
    degrees = (rows - 1, rows * (columns - 1))
    random = np.random.default_rng(seed)
    halves = []
    for _ in range(SPLITS):
        order = random.permutation(columns)
        left, right = scores[:, order[: columns // 2]], scores[:, order[columns // 2 : 2 * (columns // 2)]]
        halves.append(np.corrcoef(left.mean(axis=1), right.mean(axis=1))[0, 1])
    half = float(np.mean(halves))
    return Reliability(
        f=float(between / within),
        degrees=degrees,
        p=float(f.sf(between / within, *degrees)),
        intraclass=float((between - within) / (between + (columns - 1) * within)),
        split_half=2 * half / (1 + half),
    )
