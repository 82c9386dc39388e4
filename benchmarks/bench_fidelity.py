"""Do branches from a shared partial training tell what training from scratch would? From the table of
`nette.py`.

For trainings from scratch and for branches after three, five and six epochs of seven: whether the table can
rank its placements (`reliability.py`), the spread of a placement's difference from plain, that of the
replicates, and how the model of placements divides the variance of the scores: into what placements are worth
in all shared partial trainings, what a module does in one shared partial training alone, and noise. Then the
fidelity, the correlation of the true effects of placements in branches with those from scratch, without what
noise takes from it: covariances are of different seeds alone, which share no noise. Its interval is of 2,000
bootstrap samples of placements and seeds. Scores are validation losses in nats and accuracies in points.
Takes a minute.

Source: C. Spearman, The proof and measurement of association between two things (1904), of correlations
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

from attention import InputError
from search.placement_model import (
    IN_BLOCK,
    NOISE,
    UNKNOWN,
    EffectModel,
    IndexedModule,
    IndexedPlacement,
    block_weights,
    placement_weights,
)

SAMPLES, COVERAGE = 2000, 0.9
ENOUGH = 2  # seeds


@dataclass(frozen=True)
class Table:
    """scores: of shape (placements, seeds), better is higher. seeds: their numbers."""

    scores: NDArray[np.float64]
    seeds: NDArray[np.int64]

    def part(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> "Table":
        return Table(self.scores[rows][:, columns], self.seeds[columns])

    def columns(self, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of those of `seeds` that there are, as often as they are named."""
        of = {int(seed): i for i, seed in enumerate(self.seeds)}
        return np.array([of[int(seed)] for seed in seeds if int(seed) in of], np.int64)


def tables(rows: Sequence[dict[str, Any]], score: str) -> dict[tuple[int, str], Table]:
    """Differences from plain at each `at`: of `placements`, and of `replicates`.

    Seeds that are not whole at an `at` are left out there.
    """
    values = {(row["at"], row["placement"], row["seed"]): of(row, score) for row in rows}
    names = [*nette.singles(), *nette.pairs()]
    found = {}
    for at in sorted({at for at, *_ in values}):
        seeds = whole(values, at, ["plain", *names])
        if len(seeds) < ENOUGH:
            raise InputError(
                f"{len(seeds)} seeds are whole at {at}, and {ENOUGH} are needed: python benchmarks/nette.py"
            )
        replicates = sorted(
            {name for there, name, _ in values if there == at and name.startswith("replicate")}
        )
        for kind, some in (("placements", names), ("replicates", replicates)):
            if some:
                scores = [
                    [values[at, name, seed] - values[at, "plain", seed] for seed in seeds] for name in some
                ]
                found[at, kind] = Table(np.array(scores), np.array(seeds))
    return found


def whole(values: Mapping[tuple[int, str, int], Any], at: int, names: Sequence[str]) -> list[int]:
    """The seeds of which there are all of `names` at `at`."""
    return [seed for seed in range(nette.SEEDS[at]) if all((at, name, seed) in values for name in names)]


def of(row: dict[str, Any], score: str) -> float:
    """A training's score on all validation images."""
    losses = np.frombuffer(row["losses"], np.uint8)
    if score == "loss":
        return -float(losses.mean()) / nette.STEPS
    return 100 * float(np.unpackbits(np.frombuffer(row["hits"], np.uint8))[: len(losses)].mean())


def shared(one: Table, other: Table) -> float:
    """The mean covariance over placements of scores that are of different seeds."""
    a, b = (table.scores - table.scores.mean(0) for table in (one, other))
    apart = one.seeds[:, None] != other.seeds[None, :]
    return float((a.T @ b / (len(a) - 1))[apart].mean()) if apart.any() else np.nan


def fidelity(scratch: Table, branch: Table) -> float:
    """NaN where one of them shows no effects at all."""
    own = shared(scratch, scratch), shared(branch, branch)
    return shared(scratch, branch) / np.sqrt(own[0] * own[1]) if min(own) > 0 else np.nan


def interval(scratch: Table, branch: Table) -> tuple[float, float, float]:
    """Of the fidelity, and the share of samples that have one."""
    draw = np.random.default_rng(0)
    count, both = len(scratch.scores), np.union1d(scratch.seeds, branch.seeds)
    found = []
    for _ in range(SAMPLES):
        rows = draw.integers(count, size=count)
        seeds = draw.choice(both, size=len(both))  # of both tables, as a seed's noise is
        parts = [table.part(rows, table.columns(seeds)) for table in (scratch, branch)]
        found.append(fidelity(*parts) if min(len(part.seeds) for part in parts) else np.nan)
    there = np.array(found)[~np.isnan(found)]
    if not len(there):
        return np.nan, np.nan, 0.0
    low, high = np.quantile(there, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high), len(there) / SAMPLES


def shares(table: Table) -> dict[str, float]:
    """Parts of the variance of the table's scores, within a seed, by the model of placements.

    worth: of what placements add in all seeds. in_block: of what modules do in one seed alone. noise: of the
    rest. evidence: how much more probable `in_block` makes the scores, as a logarithm.
    """
    placements = [nette.Work(name, 0, 0) for name in [*nette.singles(), *nette.pairs()]]
    found = []
    for work in placements:
        modules = (IndexedModule(nette.SITES.index(site), spec.type) for site, spec in work.placement.items())
        found.append(IndexedPlacement("", tuple(sorted(modules))))
    trials, plain = [], []
    for placement in found:
        for seed in table.seeds.tolist():
            trials.append(placement_weights(placement) | block_weights(placement, seed))
            plain.append({e: w for e, w in trials[-1].items() if e.term != IN_BLOCK})
    model = EffectModel(trials, table.scores.ravel())
    without = EffectModel(plain, model.scores)
    # What all placements of a seed have in common is no variance within it.
    columns = {effect: i for i, effect in enumerate(e for e in model.columns if e.term not in UNKNOWN)}
    z = np.zeros((len(found), len(table.seeds), len(columns)))
    for row, trial in zip(z.reshape(-1, len(columns)), trials, strict=True):
        for effect, weight in trial.items():
            if effect in columns:
                row[columns[effect]] = weight
    apart = ((z - z.mean(axis=0)) ** 2).mean(axis=(0, 1))  # (effects)
    parts: dict[str, float] = {"worth": 0.0, "in_block": 0.0, "noise": float(np.exp(model.logs[NOISE]))}
    for effect, i in columns.items():
        part = "in_block" if effect.term == IN_BLOCK else "worth"
        parts[part] += model.variance(effect.term) * float(apart[i])
    total = sum(parts.values())
    told = {name: part / total for name, part in parts.items()}
    return {**told, "evidence": model.evidence() - without.evidence()}


def known(value: float) -> float | None:
    """None in place of NaN, which JSON does not have."""
    return None if np.isnan(value) else value


def main() -> None:
    rows = nette.read()
    values: dict[str, Any] = {}
    for score in ("loss", "accuracy"):
        found = tables(rows, score)
        scratch = found[0, "placements"]
        print(f"{score}, {len(scratch.scores)} placements")
        for (at, kind), table in found.items():
            scores = table.scores
            part: dict[str, Any] = {
                "seeds": len(table.seeds),
                "sd": float(scores.std(axis=1, ddof=1).mean()),
                "mean": float(scores.mean()),
            }
            if kind == "placements":
                part |= asdict(reliability(scores - scores.mean(axis=0)))  # less what seeds have in common
                part["shares"] = shares(table)
                if at:
                    low, high, told = interval(scratch, table)
                    part["fidelity"] = known(fidelity(scratch, table))
                    part["fidelity_interval"] = [known(low), known(high)]
                    part["fidelity_told"] = told
            values[f"{score}, {kind}, at {at}"] = part
            print(f"  at {at}, {kind}:", ", ".join(f"{k} {v}" for k, v in part.items()), flush=True)
    write_values("fidelity", values)


if __name__ == "__main__":
    main()
