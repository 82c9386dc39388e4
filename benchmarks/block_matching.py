"""Compute disparities by block matching, in steps of one pixel: a lower bound for learned models.

Each pixel of the left image gets the disparity at which the sum of absolute differences of a window is least
(D. Scharstein and R. Szeliski, A Taxonomy and Evaluation of Dense Two-Frame Stereo Correspondence Algorithms
(2002), section 3: matching costs, their aggregation and the winner). The window is the best one on the
validation split. The metrics on the test split, as `automl confirm` computes them, are printed and written
into benchmarks/results.

For comparison, the true disparities are reduced to a quarter of their size and resized. That is the best that
PSMNet could reach without errors, since its features have that size.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from harness import write_values

from automl.config.runtime import Runtime
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data import StereoPairs, open_pairs
from automl.tasks.stereo.model import STEP
from automl.tasks.stereo.task import StereoEvaluator

WINDOWS = (3, 5, 7, 9, 11, 13)  # sides in pixels


def box_sums(values: np.ndarray, window: int) -> np.ndarray:
    """Return the sum over a window of odd side about each position of `(H, W)`, cut off at the edges."""
    height, width = values.shape
    table = np.zeros((height + 1, width + 1))
    table[1:, 1:] = values.cumsum(0).cumsum(1)
    half = window // 2
    top, bottom = (np.clip(np.arange(height) + side, 0, height) for side in (-half, half + 1))
    left, right = (np.clip(np.arange(width) + side, 0, width) for side in (-half, half + 1))
    sums: np.ndarray = (
        table[bottom][:, right] - table[top][:, right] - table[bottom][:, left] + table[top][:, left]
    )
    return sums


def match_blocks(left: np.ndarray, right: np.ndarray, maximum: int, window: int) -> np.ndarray:
    """Return whole disparities from 0 to below `maximum`, float32 `(H, W)`, of uint8 images `(H, W, 3)`.

    A cost is the mean over the pixels of a window that both images have.
    """
    height, width, _ = left.shape
    best, costs = np.zeros((height, width), np.float32), np.full((height, width), np.inf)
    for disparity in range(min(maximum, width)):
        wrong = np.zeros((height, width))
        overlap = np.zeros((height, width))
        shifted = right[:, : width - disparity].astype(np.int16)
        wrong[:, disparity:] = np.abs(left[:, disparity:].astype(np.int16) - shifted).sum(2)
        overlap[:, disparity:] = 1
        cost = box_sums(wrong, window) / np.maximum(box_sums(overlap, window), 1)
        better = (overlap > 0) & (cost < costs)
        best[better], costs[better] = disparity, cost[better]
    return best


def quarter(truth: np.ndarray) -> np.ndarray:
    """Return disparities `(H, W)` resized from the medians of squares of STEP pixels.

    H and W are multiples of STEP. Unknown disparities are infinite; a square without any takes the median.
    """
    height, width = truth.shape
    known = np.where(np.isfinite(truth), truth, np.nan)
    squares = torch.from_numpy(known).view(height // STEP, STEP, width // STEP, STEP)
    small = squares.transpose(1, 2).flatten(2).nanmedian(-1).values
    small = small.nan_to_num(float(np.nanmedian(known)))
    resized: np.ndarray = F.interpolate(small[None, None], (height, width), mode="bilinear")[0, 0].numpy()
    return resized


Answer = Callable[
    [np.ndarray, np.ndarray, np.ndarray], np.ndarray
]  # from left, right and the true disparities


def measure(pairs: StereoPairs, split: str, maximum: int, answer: Answer) -> Mapping[str, float]:
    """Return the metrics of `StereoEvaluator` on a split."""
    cpu = torch.device("cpu")
    evaluator = StereoEvaluator(maximum, cpu)
    for row in pairs.rows(split).tolist():
        pair = pairs.pair(row)
        evaluator.update(torch.from_numpy(answer(*pair))[None], torch.tensor(pair[2])[None])
    return {name: float(value) for name, value in evaluator.compute(Runtime(device=cpu)).items()}


def make_matcher(maximum: int, window: int) -> Answer:
    return lambda left, right, truth: match_blocks(left, right, maximum, window)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a folder or a CSV of pairs (default: the bundled planes)")
    parser.add_argument("--max-disparity", type=int, default=48)
    options = parser.parse_args(arguments)
    pairs = open_pairs(StereoData(source="pairs" if options.data else "planes", path=options.data))
    most = options.max_disparity
    scores = {w: measure(pairs, "validation", most, make_matcher(most, w))["epe"] for w in WINDOWS}
    window = min(scores, key=scores.__getitem__)
    values = measure(pairs, "test", most, make_matcher(most, window))
    for side, score in scores.items():
        print(f"validation window {side:2} epe {score:.3f} px")
    print(f"test       window {window:2} " + ", ".join(f"{k} {v:.3f}" for k, v in values.items()))
    if not options.data:  # the bundled pairs have a size that is a multiple of STEP
        coarse = measure(pairs, "test", most, lambda left, right, truth: quarter(truth))
        print("test       quartered truth " + ", ".join(f"{k} {v:.3f}" for k, v in coarse.items()))
        results = {"window": window, **values, "quartered": dict(coarse)}
        write_values("block_matching", {"pairs": len(pairs.rows("test")), **results})


if __name__ == "__main__":
    main()
