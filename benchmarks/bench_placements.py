"""Measure the true regret of searches by number of trainings, on planted and on recorded tables.

The tables are those of `planted.py` and `recorded.py`. Each method (`searchers.py`) searches every kind of
table 50 times, each time with new effects. The regret is the difference in true effect between the best
placement, with the best hyperparameters if these are drawn, and the trial that the method would return after
a number of trainings.

The placement sampler returns the trial with the highest posterior mean. "random, returned by the model" shows
the part of the model in that. "random, shrunk" trains random placements and returns the one with the best
mean, shrunk by the true ratio of variances: the best result without effects that placements share. Recorded
tables have only last epochs, so nothing is stopped early there.

If the split-half reliability of a table over six seeds is below 0.5, no method is called better on it.
Intervals come from 2,000 bootstrap samples of the 50 repetitions. Takes about half an hour on two cores.
`--kinds` and `--methods` measure some tables and methods, and keep the results of the others.

AutoSampler is measured where OptunaHub is installed. It is loaded from GitHub, or from OptunaHub's cache.
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
import planted
import recorded
from harness import RESULTS, write_values
from optuna.samplers import BaseSampler, TPESampler
from searchers import (
    Choose,
    Progress,
    Table,
    best_posterior,
    best_score,
    best_shrunk_mean,
    search_with_pasha,
    search_with_pruner,
    search_with_ray,
    search_without_pruning,
)
from threadpoolctl import threadpool_limits

from search.placement_effects import parse_placement
from search.samplers import SAMPLERS

RUNS = 50
# A regret that is good enough: in points, or in shared partial trainings relative to a random choice.
NEAR = 0.5
FRACTION = 0.8  # of the runs
AT = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Method of search.

    Attributes:
        search: Searches a table with a seed.
        most: Largest number of trainings.
        settings: True if it can return trials with hyperparameters, too.
        early: True if it stops trainings early.
    """

    title: str
    search: Callable[[Any, int], Progress]
    most: int
    settings: bool = True
    early: bool = False

    def supports(self, kind: str) -> bool:
        if kind not in planted.KINDS:
            return not self.early
        return self.settings or not planted.KINDS[kind].settings


def with_sampler(sampler: Callable[[int], BaseSampler], choose: Choose) -> Callable[[Table, int], Progress]:
    return lambda table, seed: search_without_pruning(table, sampler(seed), choose, AT.__contains__)


def make_tpe(seed: int) -> BaseSampler:
    """Return TPE with Optuna's defaults: multivariate, not grouped, pending trials count as bad ones."""
    return TPESampler(seed=seed)


def make_grouped_tpe(seed: int) -> BaseSampler:
    """Return TPE as Optuna recommends it for conditional spaces."""
    return TPESampler(seed=seed, multivariate=True, group=True)


def make_auto_sampler(seed: int) -> BaseSampler:
    import optunahub

    sampler: BaseSampler = optunahub.load_module("samplers/auto_sampler").AutoSampler(seed=seed)
    return sampler


METHODS = {
    "ours": Method(
        title="placement sampler", search=with_sampler(SAMPLERS["placement"], best_posterior), most=384
    ),
    "tpe": Method(title="TPE", search=with_sampler(make_tpe, best_score), most=256),
    "tpe-group": Method(
        title="TPE, multivariate, grouped", search=with_sampler(make_grouped_tpe, best_score), most=256
    ),
    "auto": Method(title="AutoSampler", search=with_sampler(make_auto_sampler, best_score), most=256),
    "tpe-asha": Method(
        title="TPE + ASHA",
        search=lambda table, seed: search_with_pruner(table, make_tpe(seed)),
        most=64,
        early=True,
    ),
    "tpe-pasha": Method(
        title="TPE + PASHA",
        search=lambda table, seed: search_with_pasha(table, make_tpe(seed)),
        most=64,
        early=True,
    ),
    "stock": Method(title="OptunaSearch + ASHAScheduler", search=search_with_ray, most=64, early=True),
    "gp": Method(title="GPSampler", search=with_sampler(SAMPLERS["gp"], best_score), most=64),
    "random": Method(title="random", search=with_sampler(SAMPLERS["random"], best_score), most=4096),
    "random-shrunk": Method(
        title="random, shrunk",
        search=with_sampler(SAMPLERS["random"], best_shrunk_mean),
        most=4096,
        settings=False,
    ),
    "random-model": Method(
        title="random, returned by the model",
        search=with_sampler(SAMPLERS["random"], best_posterior),
        most=256,
    ),
}


def regrets(work: tuple[str, str, int]) -> list[float]:
    """Return the regrets of a run of a method on a kind of table, at each of `AT` up to its most."""
    name, kind_name, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    method, table = METHODS[name], make_table(kind_name, seed)
    counts = [count for count in AT if count <= method.most]
    values: list[float] = []
    returned: dict[str, float | str] = {}
    for spent, params in method.search(table, seed):
        # At these counts, the trainings since the last one were not done yet.
        while len(values) < len(counts) and counts[len(values)] < spent - 1e-9:
            values.append(regret(table, returned))
        returned = params
        if spent >= counts[-1] - 1e-9:
            break
    return [*values, *[regret(table, returned)] * (len(counts) - len(values))]


def regret(table: planted.Table | recorded.Table, params: dict[str, float | str]) -> float:
    placement = parse_placement(params)
    assert placement is not None
    return table.best - table.effect(placement) + table.loss(params)


def make_table(kind: str, seed: int) -> planted.Table | recorded.Table:
    if kind in planted.KINDS:
        return planted.Table(planted.KINDS[kind], seed)
    return recorded.Table(recorded.RECORDINGS[kind], seed)


def kinds() -> list[str]:
    """Return the kinds of tables: all planted ones, and those of Imagenette with enough seeds.

    Those of digits and sensors rank no searches.
    """
    imagenette = (table for table in recorded.RECORDINGS.values() if table.at is not None)
    complete = (table for table in imagenette if recorded.seeds(table) >= recorded.ENOUGH)
    return [*planted.KINDS, *(table.name for table in complete)]


def installed() -> list[str]:
    """Return the methods whose libraries are installed."""
    return [name for name in METHODS if name != "auto" or find_spec("optunahub")]


def needed(near: np.ndarray) -> float:
    """Return the trainings until FRACTION of the runs are near, or infinity. near: (runs, counts)."""
    enough = np.flatnonzero(near.mean(axis=0) >= FRACTION)
    return float(AT[enough[0]]) if len(enough) else float("inf")


def summary(values: np.ndarray, random: np.random.Generator, good: float = NEAR) -> dict[str, Any]:
    """Return means of regrets (runs, counts), with intervals. A regret of at most `good` is near."""
    near = values <= good + 1e-9
    picks = random.integers(len(values), size=(2000, len(values)))
    means, fractions = values[picks].mean(axis=1), near[picks].mean(axis=1)
    costs = [needed(near[pick]) for pick in picks]
    low, high = np.quantile(costs, [0.025, 0.975], method="nearest")
    return {
        "trainings": list(AT[: values.shape[1]]),
        "regret": values.mean(axis=0).round(3).tolist(),
        "regret_interval": np.quantile(means, [0.025, 0.975], axis=0).round(3).T.tolist(),
        "near": near.mean(axis=0).round(3).tolist(),
        "near_interval": np.quantile(fractions, [0.025, 0.975], axis=0).round(3).T.tolist(),
        "needed": finite(needed(near)),
        "needed_interval": [finite(float(low)), finite(float(high))],
    }


def finite(value: float) -> int | None:
    """Return None for infinity, which JSON does not have: more trainings than the method had."""
    return int(value) if np.isfinite(value) else None


def describe_table(kind: str) -> dict[str, Any]:
    """Return the results of a kind of table, without its methods."""
    audit = make_table(kind, 0).audit()
    if kind in planted.KINDS:
        return {**asdict(planted.KINDS[kind]), "reliability": {**asdict(audit), "ranks": audit.ranks}}
    recording = recorded.RECORDINGS[kind]
    limits = recorded.limits(recording)  # with half of the seeds hidden
    ranks = audit.ranks and limits["known"]["high"] < limits["any"]["low"]
    return {"says": recording.says, "limits": limits, "reliability": {**asdict(audit), "ranks": ranks}}


def read_tables() -> dict[str, Any]:
    """Return the tables of the result file."""
    file = RESULTS / "placements-cpu.json"
    tables: dict[str, Any] = json.loads(file.read_text())["tables"] if file.exists() else {}
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kinds", nargs="+", choices=kinds(), default=kinds())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=installed())
    parser.add_argument("--most", type=int, help="trainings of any method, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.most:
        METHODS.update({n: replace(m, most=min(m.most, options.most)) for n, m in METHODS.items()})
    tables = read_tables()
    # With a thread per core in every process, BLAS takes several times as long.
    context = multiprocessing.get_context("fork")
    with context.Pool(options.processes, threadpool_limits, (1,)) as pool:
        for kind in options.kinds:
            known = tables.get(kind, {}).get("methods", {})
            tables[kind] = describe_table(kind)
            print(f"{kind}: {tables[kind]['reliability']}", flush=True)
            for name in [name for name in options.methods if METHODS[name].supports(kind)]:
                start = time.perf_counter()
                values = np.array(
                    pool.map(regrets, [(name, kind, run) for run in range(options.runs)], chunksize=1)
                )
                result = summary(values, np.random.default_rng(0))
                result["seconds"] = round(time.perf_counter() - start, 1)
                known[name] = {"title": METHODS[name].title, **result}
                tables[kind]["methods"] = {n: known[n] for n in METHODS if n in known}
                near = dict(zip(result["trainings"], result["near"], strict=True))
                needs = f"{result['needed']} {result['needed_interval']}"
                print(f"  {METHODS[name].title:30} needs {needs}; near {near}", flush=True)
            write_values(
                "placements",
                {
                    "runs": options.runs,
                    "near": NEAR,
                    "share": FRACTION,
                    "noise": planted.NOISE,
                    "tables": {kind: tables[kind] for kind in kinds() if kind in tables},
                },
            )


if __name__ == "__main__":
    main()
