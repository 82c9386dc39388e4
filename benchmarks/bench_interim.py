"""What interim analyses of a confirmation cost and save: error rate, power and seeds that are trained.

Simulated confirmations of up to ten and twenty seeds, with one finalist and with three, of which one is
better by none, one and two standard deviations of a seed's difference; the margin is 0.7 of these. Compared
are no interim analyses, those that `automl.confirm` has (O'Brien-Fleming-type spending, Lan and DeMets 1983),
and Pocock-type ones. Takes about two minutes on one core.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from harness import write_values

from automl.confirm import statistics
from automl.confirm.statistics import ALPHA, Difference, Word, least_pairs, nominal_levels, paired, verdict

CONFIRMATIONS = 1000
MARGIN = 0.7  # standard deviations
GAINS = (0.0, 1.0, 2.0)

Spending = Callable[[float, float], float]


def pocock(fraction: float, alpha: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * min(1.0, fraction))


WAYS: dict[str, Spending | None] = {
    "none": None,
    "O'Brien-Fleming-type": statistics.spent,
    "Pocock-type": pocock,
}


def confirm(
    differences: np.ndarray, looks: Sequence[int], levels: dict[float, Sequence[float]]
) -> tuple[Word, int]:
    """The verdict on `differences` (finalists, seeds), and after how many seeds it came.

    levels: of each look, by the error rate that they spend together.
    """
    word: Word = "undecided"
    for i, seeds in enumerate(looks):
        found: list[Difference] = [paired(d[:seeds], margin=MARGIN) for d in differences]
        word, _ = verdict(found, level=partial(level_at, levels, i))
        if word != "undecided":
            return word, seeds
    return word, looks[-1]


def level_at(levels: dict[float, Sequence[float]], look: int, alpha: float) -> float:
    return levels[alpha][look]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    values = {}
    for most in (10, 20):
        for finalists in (1, 3):
            first = min(least_pairs(ALPHA / finalists), most)
            rates = [2 * ALPHA, *(ALPHA / (finalists - rank) for rank in range(finalists))]
            for way, spending in WAYS.items():
                looks = (most,) if spending is None else tuple(range(first, most + 1))
                levels: dict[float, Sequence[float]] = {
                    rate: (rate,) if spending is None else nominal_levels(looks, rate, spending)
                    for rate in rates
                }
                for gain in GAINS:
                    random = np.random.default_rng(0)  # the same confirmations whatever the way
                    noise = random.standard_normal((CONFIRMATIONS, finalists, most))
                    noise[:, 0] += gain
                    words: Counter[Word] = Counter()
                    used = []
                    for differences in noise:
                        word, seeds = confirm(differences, looks, levels)
                        words[word] += 1
                        used.append(seeds)
                    case = f"{most} seeds, {finalists} finalists, {gain:g} sd, {way}"
                    shares: dict[str, float] = {w: n / CONFIRMATIONS for w, n in sorted(words.items())}
                    values[case] = {**shares, "seeds": float(np.mean(used))}
                    print(f"{case}: {values[case]}", flush=True)
    write_values("interim", values)


if __name__ == "__main__":
    main()
