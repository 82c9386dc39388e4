"""What a folder or a CSV of stereo pairs holds: splits, sizes and disparities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.data.splits import SPLITS
from automl.data.stereo.stereo_dataset import open_pairs
from automl.data.tally import Tally

READ = 50  # pairs at most whose disparities are read, evenly spread


@dataclass(frozen=True, kw_only=True)
class StereoOverview:
    """pairs: of each split. how: each split came about. sizes: `(width, height)` in pixels, each once.
    tally: pairs whose images were turned or rescaled, or that are double.
    known: the part of the pixels whose disparity is known. disparities: the median of these, what 99 % of
    them are below, and the largest, in pixels.
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
        said = ", ".join(f"{width} x {height}" for width, height in self.sizes[:3])
        yield f"{'sizes':11} {said}{', ...' if len(self.sizes) > 3 else ''} pixels"
        if self.tally:
            yield str(self.tally)
        median, most, largest = self.disparities
        yield (
            f"{'disparity':11} known of {self.known:.0%} of the pixels; median {median:.1f}, 99 % below "
            f"{most:.1f}, largest {largest:.1f} pixels"
        )


def summarise_stereo(path: str | Path) -> StereoOverview:
    """Raises InputError like `open_pairs`."""
    found = open_pairs("pairs", path=path)
    rows = {split: found.rows(split) for split in SPLITS}
    every = np.sort(np.concatenate(list(rows.values())))
    some = every[:: max(1, -(-len(every) // READ))]
    values = np.concatenate([found.file.disparity(int(row)).ravel() for row in some])
    there = values[np.isfinite(values)]
    sizes = {(int(width), int(height)) for height, width in found.file.shapes[every]}
    return StereoOverview(
        pairs={split: len(numbers) for split, numbers in rows.items()},
        how=found.describe_splits(),
        sizes=sorted(sizes),
        tally=found.tally,
        known=len(there) / len(values),
        disparities=(float(np.median(there)), float(np.quantile(there, 0.99)), float(there.max())),
    )
