"""Summarise a folder or a CSV of stereo pairs: splits, sizes and disparities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data.dataset import open_pairs

READ = 50  # most pairs whose disparities are read, evenly spread


@dataclass(frozen=True, kw_only=True)
class StereoOverview:
    """Figures that `automl data` prints about stereo pairs.

    Attributes:
        pairs: number of pairs of each split.
        how: how each split was made.
        sizes: `(width, height)` in pixels, each once.
        tally: pairs whose images were turned, rescaled or duplicated.
        known: the fraction of the pixels whose disparity is known.
        disparities: median, 99th percentile and maximum in pixels.
    """

    pairs: Mapping[str, int]
    how: Mapping[str, str]
    sizes: Sequence[tuple[int, int]]
    known: float
    disparities: tuple[float, float, float]
    tally: Tally

    def lines(self) -> Iterator[str]:
        yield f"{'':11}" + "".join(f"{split:>12}" for split in SPLITS)
        yield f"{'pairs':11}" + "".join(f"{self.pairs[split]:>12}" for split in SPLITS)
        for split, how in self.how.items():
            yield f"{split:11} {how}"
        sizes = ", ".join(f"{width} x {height}" for width, height in self.sizes[:3])
        yield f"{'sizes':11} {sizes}{', ...' if len(self.sizes) > 3 else ''} pixels"
        if self.tally:
            yield str(self.tally)
        median, most, largest = self.disparities
        yield (
            f"{'disparity':11} known of {self.known:.0%} of the pixels; median {median:.1f}, 99 % below "
            f"{most:.1f}, largest {largest:.1f} pixels"
        )


def summarise_stereo(path: str | Path) -> StereoOverview:
    """Return the overview of stereo pairs. Raises InputError like `open_pairs`."""
    pairs = open_pairs(StereoData(source="pairs", path=str(path)))
    rows = {split: pairs.rows(split) for split in SPLITS}
    every = np.sort(np.concatenate(list(rows.values())))
    some = every[:: max(1, -(-len(every) // READ))]
    values = np.concatenate([pairs.file.disparity(int(row)).ravel() for row in some])
    known_values = values[np.isfinite(values)]
    sizes = {(int(width), int(height)) for height, width in pairs.file.shapes[every]}
    return StereoOverview(
        pairs={split: len(numbers) for split, numbers in rows.items()},
        how=pairs.describe_splits(),
        sizes=sorted(sizes),
        tally=pairs.tally,
        known=len(known_values) / len(values),
        disparities=(
            float(np.median(known_values)),
            float(np.quantile(known_values, 0.99)),
            float(known_values.max()),
        ),
    )
