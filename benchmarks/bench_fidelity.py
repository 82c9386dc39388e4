"""Do branches from a trained trunk tell what training from scratch would? From the table of `nette.py`.

For trainings from scratch and for branches after three, five and six epochs of seven: whether the table can
rank its placements (`reliability.py`), the spread of a placement's difference from plain, and that of the
placebos. Then the fidelity, the correlation of the true effects of placements in branches with those from
scratch, without what noise takes from it: covariances are of different seeds alone, which share no noise. Its
interval is of 2,000 bootstrap samples of placements and seeds. Scores are validation losses in nats and
accuracies in points. Takes seconds.

Source: C. Spearman, The proof and measurement of association between two things (1904), of correlations
corrected for attenuation.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import nette
import numpy as np
from harness import write_values
from numpy.typing import NDArray
from reliability import reliability

from attention import InputError

Table = NDArray[np.float64]  # (placements, seeds)
SAMPLES, COVERAGE = 2000, 0.9
ENOUGH = 2  # seeds


def tables(rows: Sequence[dict[str, Any]], score: str) -> dict[tuple[int, str], Table]:
    """Differences from plain at each `at`: of `placements`, and of `placebos`. Better is higher.

    Seeds that are not whole at every `at` are left out.
    """
    values = {(row["at"], row["placement"], row["seed"]): of(row, score) for row in rows}
    names = [*nette.singles(), *nette.pairs()]
    ats = sorted({at for at, *_ in values})
    seeds = [
        seed
        for seed in range(nette.SEEDS)
        if all((at, name, seed) in values for at in ats for name in ["plain", *names])
    ]
    if len(seeds) < ENOUGH:
        raise InputError(f"{len(seeds)} seeds are whole, and {ENOUGH} are needed: python benchmarks/nette.py")
    placebos = sorted({name for _, name, _ in values if name.startswith("placebo")})
    found = {}
    for at in ats:
        for kind, some in (("placements", names), ("placebos", placebos if at else [])):
            if some:
                found[at, kind] = np.array(
                    [[values[at, name, seed] - values[at, "plain", seed] for seed in seeds] for name in some]
                )
    return found


def of(row: dict[str, Any], score: str) -> float:
    """A training's score on all validation images."""
    losses = np.frombuffer(row["losses"], np.uint8)
    if score == "loss":
        return -float(losses.mean()) / nette.STEPS
    return 100 * float(np.unpackbits(np.frombuffer(row["hits"], np.uint8))[: len(losses)].mean())


def shared(one: Table, other: Table, seeds: NDArray[np.int64]) -> float:
    """The mean covariance over placements of scores that are of different seeds."""
    a, b = (table - table.mean(0) for table in (one[:, seeds], other[:, seeds]))
    apart = seeds[:, None] != seeds[None, :]
    return float((a.T @ b / (len(one) - 1))[apart].mean()) if apart.any() else np.nan


def fidelity(scratch: Table, branch: Table, seeds: NDArray[np.int64]) -> float:
    """NaN where one of them shows no effects at all."""
    own = shared(scratch, scratch, seeds), shared(branch, branch, seeds)
    return shared(scratch, branch, seeds) / np.sqrt(own[0] * own[1]) if min(own) > 0 else np.nan


def interval(scratch: Table, branch: Table) -> tuple[float, float, float]:
    """Of the fidelity, and the share of samples that have one."""
    draw = np.random.default_rng(0)
    count, seeds = scratch.shape
    found = []
    for _ in range(SAMPLES):
        rows = draw.integers(count, size=count)
        found.append(
            fidelity(scratch[rows], branch[rows], np.asarray(draw.integers(seeds, size=seeds), np.int64))
        )
    there = np.array(found)[~np.isnan(found)]
    if not len(there):
        return np.nan, np.nan, 0.0
    low, high = np.quantile(there, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high), len(there) / SAMPLES


def known(value: float) -> float | None:
    """None in place of NaN, which JSON does not have."""
    return None if np.isnan(value) else value


def main() -> None:
    rows = nette.read()
    values: dict[str, Any] = {}
    for score in ("loss", "accuracy"):
        found = tables(rows, score)
        scratch = found[0, "placements"]
        every = np.arange(scratch.shape[1])
        print(f"{score}, {scratch.shape[0]} placements, {scratch.shape[1]} seeds")
        for (at, kind), table in found.items():
            part: dict[str, Any] = {
                "sd": float(table.std(axis=1, ddof=1).mean()),
                "mean": float(table.mean()),
            }
            if kind == "placements":
                part |= asdict(reliability(table - table.mean(axis=0)))  # less what seeds have in common
                if at:
                    low, high, told = interval(scratch, table)
                    part["fidelity"] = known(fidelity(scratch, table, every))
                    part["fidelity_interval"] = [known(low), known(high)]
                    part["fidelity_told"] = told
            values[f"{score}, {kind}, at {at}"] = part
            print(f"  at {at}, {kind}:", ", ".join(f"{k} {v}" for k, v in part.items()))
    write_values("fidelity", {"seeds": int(scratch.shape[1]), **values})


if __name__ == "__main__":
    main()
