"""Measure how well branches from a shared partial training predict trainings from scratch.

The table is that of `nette.py`, with trainings from scratch and branches after three, five and six of seven
epochs. For each the benchmark reports whether the table can rank its placements (`reliability.py`), the
spread of a placement's difference from plain, and that of the replicates.

The fidelity is the correlation between the true effects of placements in branches and from scratch, corrected
for noise: covariances use different seeds only, which share no noise. Its interval comes from 2,000 bootstrap
samples of placements and seeds. Scores are validation losses in nats and accuracies in points. Takes a
minute.

Source: C. Spearman, The proof and measurement of association between two things (1904), on correlations
corrected for attenuation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import nette
import numpy as np
from harness import write_values
from numpy.typing import NDArray
from reliability import reliability

from automl.base.errors import InputError

SAMPLES, COVERAGE = 2000, 0.9
ENOUGH = 2  # seeds


@dataclass(frozen=True)
class Table:
    """Scores (placements, seeds), higher is better, and the numbers of the seeds."""

    scores: NDArray[np.float64]
    seeds: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> "Table":
        return Table(self.scores[rows][:, columns], self.seeds[columns])

    def columns(self, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns of `seeds`, repeated as they are. Seeds without a column are left out."""
        column = {int(seed): i for i, seed in enumerate(self.seeds)}
        return np.array([column[int(seed)] for seed in seeds if int(seed) in column], np.int64)


def tables(rows: Sequence[dict[str, Any]], score: str) -> dict[tuple[int, str], Table]:
    """Return the differences from plain at each `at`, of `placements` and of `replicates`.

    Seeds that are incomplete at an `at` are left out there.
    """
    values = {(row["at"], row["placement"], row["seed"]): score_of(row, score) for row in rows}
    names = [*nette.singles(), *nette.pairs()]
    result = {}
    for at in sorted({at for at, *_ in values}):
        seeds = complete_seeds(values, at, ["plain", *names])
        if len(seeds) < ENOUGH:
            raise InputError(
                f"{len(seeds)} seeds are complete at epoch {at}, {ENOUGH} are needed; run benchmarks/nette.py"
            )
        replicates = sorted(
            {name for epoch, name, _ in values if epoch == at and name.startswith("replicate")}
        )
        for kind, some in (("placements", names), ("replicates", replicates)):
            if some:
                scores = [
                    [values[at, name, seed] - values[at, "plain", seed] for seed in seeds] for name in some
                ]
                result[at, kind] = Table(np.array(scores), np.array(seeds))
    return result


def complete_seeds(values: Mapping[tuple[int, str, int], Any], at: int, names: Sequence[str]) -> list[int]:
    """Return the seeds with a value for each of `names` at `at`."""
    return [seed for seed in range(nette.SEEDS[at]) if all((at, name, seed) in values for name in names)]


def score_of(row: dict[str, Any], score: str) -> float:
    """Return the score of a training on all validation images."""
    losses = np.frombuffer(row["losses"], np.uint8)
    if score == "loss":
        return -float(losses.mean()) / nette.STEPS
    return 100 * float(np.unpackbits(np.frombuffer(row["hits"], np.uint8))[: len(losses)].mean())


def covariance(first: Table, second: Table) -> float:
    """Return the mean covariance over placements of scores with different seeds."""
    a, b = (table.scores - table.scores.mean(0) for table in (first, second))
    differ = first.seeds[:, None] != second.seeds[None, :]
    return float((a.T @ b / (len(a) - 1))[differ].mean()) if differ.any() else np.nan


def fidelity(scratch: Table, branch: Table) -> float:
    """Return the fidelity, or NaN if one of the tables shows no effects."""
    own = covariance(scratch, scratch), covariance(branch, branch)
    return covariance(scratch, branch) / np.sqrt(own[0] * own[1]) if min(own) > 0 else np.nan


def interval(scratch: Table, branch: Table) -> tuple[float, float, float]:
    """Return the interval of the fidelity, and the fraction of samples that have one."""
    draw = np.random.default_rng(0)
    count, both = len(scratch.scores), np.union1d(scratch.seeds, branch.seeds)
    values = []
    for _ in range(SAMPLES):
        rows = draw.integers(count, size=count)
        seeds = draw.choice(both, size=len(both))  # of both tables, which share the noise of a seed
        samples = [table.select(rows, table.columns(seeds)) for table in (scratch, branch)]
        values.append(fidelity(*samples) if min(len(sample.seeds) for sample in samples) else np.nan)
    finite = np.array(values)[~np.isnan(values)]
    if not len(finite):
        return np.nan, np.nan, 0.0
    low, high = np.quantile(finite, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high), len(finite) / SAMPLES


def to_json(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if np.isnan(value) else value


def main() -> None:
    rows = nette.read()
    values: dict[str, Any] = {}
    for score in ("loss", "accuracy"):
        table_of = tables(rows, score)
        scratch = table_of[0, "placements"]
        print(f"{score}, {len(scratch.scores)} placements")
        for (at, kind), table in table_of.items():
            scores = table.scores
            result: dict[str, Any] = {
                "seeds": len(table.seeds),
                "sd": float(scores.std(axis=1, ddof=1).mean()),
                "mean": float(scores.mean()),
            }
            if kind == "placements":
                result |= asdict(reliability(scores - scores.mean(axis=0)))  # less the means of seeds
                if at:
                    low, high, defined = interval(scratch, table)
                    result["fidelity"] = to_json(fidelity(scratch, table))
                    result["fidelity_interval"] = [to_json(low), to_json(high)]
                    result["fidelity_told"] = defined
            values[f"{score}, {kind}, at {at}"] = result
            print(f"  at {at}, {kind}:", ", ".join(f"{k} {v}" for k, v in result.items()), flush=True)
    write_values("fidelity", values)


if __name__ == "__main__":
    main()
