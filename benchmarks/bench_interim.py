"""Simulate interim analyses of confirmations: their error rate, power and number of trained seeds.

The confirmations have up to ten or twenty seeds, and one or three finalists. One finalist is better by 0, 1
or 2 standard deviations of a seed's difference; the margin is 0.7 of them. The benchmark compares no interim
analyses, those of `automl.judge` (O'Brien-Fleming-type spending, Lan and DeMets 1983), and Pocock-type
ones. Takes about two minutes on one core.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from harness import write_values

from automl.judge import decision
from automl.judge.decision import Outcome, nominal_levels
from automl.judge.rules import Evidence, decide
from automl.judge.statistics import ALPHA, Difference, least_pairs, paired

CONFIRMATIONS = 1000
MARGIN = 0.7  # standard deviations
GAINS = (0.0, 1.0, 2.0)

Spending = Callable[[float, float], float]


def pocock(fraction: float, alpha: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * min(1.0, fraction))


METHODS: dict[str, Spending | None] = {
    "none": None,
    "O'Brien-Fleming-type": decision.spent_alpha,
    "Pocock-type": pocock,
}


def confirm(
    differences: np.ndarray, analyses: Sequence[int], levels: dict[float, Sequence[float]]
) -> tuple[Outcome, int]:
    """Return the outcome for `differences` (finalists, seeds) and the number of seeds it took.

    levels: level of each analysis, by the error rate that they spend together.
    """
    outcome: Outcome = "undecided"
    for i, seeds in enumerate(analyses):
        pairs: list[Difference] = [paired(d[:seeds], margin=MARGIN) for d in differences]
        outcome = decide(Evidence(differences=pairs, level=partial(level_at, levels, i))).outcome
        if outcome != "undecided":
            return outcome, seeds
    return outcome, analyses[-1]


def level_at(levels: dict[float, Sequence[float]], analysis: int, alpha: float) -> float:
    return levels[alpha][analysis]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    values = {}
    for most in (10, 20):
        for finalists in (1, 3):
            first = min(least_pairs(ALPHA / finalists), most)
            rates = [2 * ALPHA, *(ALPHA / (finalists - rank) for rank in range(finalists))]
            for method, spending in METHODS.items():
                analyses = (most,) if spending is None else tuple(range(first, most + 1))
                levels: dict[float, Sequence[float]] = {
                    rate: (rate,) if spending is None else nominal_levels(analyses, rate, spending)
                    for rate in rates
                }
                for gain in GAINS:
                    random = np.random.default_rng(0)  # the same confirmations whatever the method
                    noise = random.standard_normal((CONFIRMATIONS, finalists, most))
                    noise[:, 0] += gain
                    outcomes: Counter[Outcome] = Counter()
                    used = []
                    for differences in noise:
                        outcome, seeds = confirm(differences, analyses, levels)
                        outcomes[outcome] += 1
                        used.append(seeds)
                    case = f"{most} seeds, {finalists} finalists, {gain:g} sd, {method}"
                    rates_of: dict[str, float] = {w: n / CONFIRMATIONS for w, n in sorted(outcomes.items())}
                    values[case] = {**rates_of, "seeds": float(np.mean(used))}
                    print(f"{case}: {values[case]}", flush=True)
    write_values("interim", values)


if __name__ == "__main__":
    main()
