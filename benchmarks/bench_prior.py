"""Measure how many trainings `--prior` saves, and what it costs if the earlier search disagrees.

An earlier search of one table has 64 trainings. Its effects are the prior of a search of another table. Both
searches use the placement sampler, and the new one is repeated without the prior, with the same noise.

- Planted tables (`planted.py`): the effects of the two tables correlate with 1, 0.5, 0 or -1.
- `depth`: effects are the same smooth functions of the depth of a site, at 8 and at 12 sites.
- `two`: two earlier searches, one with the same effects and one with unrelated ones.
- Recorded tables (`recorded.py`) of one data set, after earlier searches of each of the two others: digits,
  Imagenette and sensors. Other bundled data has no table with the same attention types.
- Imagenette from new weights, and in shared partial trainings. These share the data.

The regret is that of `bench_placements.py`. `difference` is the regret with the prior minus the one without,
averaged over the runs, with an interval from 2,000 bootstrap samples of the runs.

    python benchmarks/bench_prior.py
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna
import planted
import recorded
from bench_placements import AT, finite, needed, regret
from harness import RESULTS, write_values
from searchers import Table
from threadpoolctl import threadpool_limits

from search.placement_effects import SHARED_TRAINING, Prior
from search.placement_posterior import best_trial, earlier_coefficients
from search.placement_sampler import PlacementSampler, fit_model
from search.prior import count_sites, transfer_effects, write_prior

RUNS, EARLIER, MOST = 50, 64, 128
NEAR = 0.5
OTHER = 10**6  # added to the seed of the unrelated effects
COUNTS = [count for count in AT if count <= MOST]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Pair of an earlier and a new table.

    Attributes:
        says: The pair in words.
        earlier: Makes the earlier tables by the run.
        new: Makes the new table by the run.
    """

    says: str
    earlier: tuple[Callable[[int], Table], ...]
    new: Callable[[int], Table]


def plant(kind: str, seed: int) -> planted.Table:
    return planted.Table(planted.KINDS[kind], seed)


def correlated(kind: str, correlation: float) -> Callable[[int], planted.Table]:
    """Return a maker of tables whose effects correlate with those of `plant`."""

    def make(seed: int) -> planted.Table:
        table = plant(kind, OTHER + seed)
        table.mix(plant(kind, seed), correlation)
        return table

    return make


def smooth(sites: int) -> Callable[[int], planted.Table]:
    """Return a maker of tables whose effects are the same smooth functions of depth for any `sites`."""

    def make(seed: int) -> planted.Table:
        table = planted.Table(replace(planted.KINDS["light"], sites=sites), OTHER + seed)
        curves = np.random.default_rng(seed).standard_normal((3, len(planted.TYPES)))
        waves = np.cos(np.pi * np.outer(np.linspace(0, 1, sites), np.arange(3)))  # (sites, curves)
        table.set_cells(0.5 * waves @ curves)
        return table

    return make


DATA_SETS = ("digits", "nette", "sensors")  # recorded tables


def record(name: str) -> Callable[[int], recorded.Table]:
    return lambda seed: recorded.Table(recorded.RECORDINGS[name], seed)


CASES: Mapping[str, Case] = {
    **{
        f"{kind}, {correlation:g}": Case(
            says=f"{planted.KINDS[kind].says}; correlation of effects {correlation:g}",
            earlier=(lambda seed, kind=kind: plant(kind, seed),),  # type: ignore[misc]
            new=correlated(kind, correlation),
        )
        for kind in ("light", "heavy")
        for correlation in (1.0, 0.5, 0.0, -1.0)
        if kind == "light" or correlation in (1.0, 0.0)
    },
    "depth": Case(says="smooth effects of depth, at 8 and 12 sites", earlier=(smooth(8),), new=smooth(12)),
    "two": Case(
        says="241 placements, Gaussian effects; two earlier searches, correlations 1 and 0",
        earlier=(lambda seed: plant("light", seed), lambda seed: plant("light", 2 * OTHER + seed)),
        new=correlated("light", 1.0),
    ),
    **{
        f"{name} after others": Case(
            says=f"{', '.join(other for other in DATA_SETS if other != name)}, then {name}, recorded",
            earlier=tuple(record(other) for other in DATA_SETS if other != name),
            new=record(name),
        )
        for name in DATA_SETS
    },
    "nette, shared": Case(
        says="Imagenette from new weights, then in shared partial trainings, recorded",
        earlier=(record("nette"),),
        new=record("nette-shared"),
    ),
    "shared, nette": Case(
        says="Imagenette in shared partial trainings, then from new weights, recorded",
        earlier=(record("nette-shared"),),
        new=record("nette"),
    ),
}


def search(table: Table, seed: int, trainings: int, prior: Prior) -> tuple[optuna.Study, list[float]]:
    """Return a study of a table, and its regrets at `COUNTS`."""
    study = optuna.create_study(direction="maximize", sampler=PlacementSampler(seed))
    write_prior(study, prior)
    regrets = []
    for count in range(1, trainings + 1):
        trial = study.ask()
        placement = table.draw(trial)
        if (shared_training := table.shared_training(placement)) is not None:
            trial.set_user_attr(SHARED_TRAINING, shared_training)
        study.tell(trial, table.score(placement, trial.params))
        if count in COUNTS:
            regrets.append(regret(table, best_trial(study).params))  # type: ignore[arg-type]
    return study, regrets


def run(work: tuple[str, int, int]) -> tuple[list[float], list[float], list[float]]:
    """Return the regrets without and with the prior, and the coefficients of the earlier searches."""
    name, seed, most = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    case, prior = CASES[name], {}
    new_sites = count_sites(search(case.new(seed), 0, 8, {})[0].trials)
    for number, make in enumerate(case.earlier):
        study, _ = search(make(seed), OTHER + seed, EARLIER, {})
        model = fit_model(study)
        assert model is not None
        prior[str(number)] = transfer_effects(model, count_sites(study.trials), new_sites)
    _, without = search(case.new(seed), seed, most, {})
    study, regrets = search(case.new(seed), seed, most, prior)
    return without, regrets, [mean for mean, _, _ in earlier_coefficients(study).values()]


def summarise(values: np.ndarray, coefficients: np.ndarray) -> dict[str, Any]:
    """Return means and intervals. values: regrets (runs, without and with, counts)."""
    random = np.random.default_rng(0)
    picks = random.integers(len(values), size=(2000, len(values)))
    near = values <= NEAR + 1e-9
    trainings = [needed(near[:, side]) for side in (0, 1)]
    saved = [[needed(near[pick, side]) for side in (0, 1)] for pick in picks]
    differences = values[:, 1] - values[:, 0]
    means = differences[picks].mean(axis=1)
    return {
        "trainings": COUNTS[: values.shape[2]],
        "regret": {side: values[:, i].mean(axis=0).round(3).tolist() for i, side in enumerate(SIDES)},
        "near": {side: near[:, i].mean(axis=0).round(3).tolist() for i, side in enumerate(SIDES)},
        "difference": differences.mean(axis=0).round(3).tolist(),
        "difference_interval": np.quantile(means, [0.025, 0.975], axis=0).round(3).T.tolist(),
        "needed": {side: finite(trainings[i]) for i, side in enumerate(SIDES)},
        "needed_interval": {
            side: [
                finite(float(bound))
                for bound in np.quantile([pair[i] for pair in saved], [0.025, 0.975], method="nearest")
            ]
            for i, side in enumerate(SIDES)
        },
        "coefficients": coefficients.mean(axis=0).round(2).tolist(),
    }


SIDES = ("without", "with")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--most", type=int, default=MOST, help="trainings of the new search")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    file = RESULTS / "prior-cpu.json"
    results = json.loads(file.read_text())["cases"] if file.exists() else {}
    context = multiprocessing.get_context("fork")
    with context.Pool(options.processes, threadpool_limits, (1,)) as pool:
        for name in options.cases:
            start = time.perf_counter()
            rows = pool.map(run, [(name, seed, options.most) for seed in range(options.runs)], chunksize=1)
            result = summarise(
                np.array([row[:2] for row in rows]), np.array([coefficients for *_, coefficients in rows])
            )
            seconds = round(time.perf_counter() - start, 1)
            results[name] = {"says": CASES[name].says, "runs": options.runs, **result, "seconds": seconds}
            print(f"{name}: {results[name]}", flush=True)
            write_values(
                "prior",
                {"near": NEAR, "earlier": EARLIER, "cases": {n: results[n] for n in CASES if n in results}},
            )


if __name__ == "__main__":
    main()
