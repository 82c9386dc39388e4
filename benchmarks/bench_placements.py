"""True regret of the placement that a search returns, against trainings, on planted tables (`planted.py`) and
on recorded trainings (`recorded.py`).

Each method (`searchers.py`) searches every kind of table 50 times, each time with new effects. After each
count of trainings it says which trial it would return, and the regret is how much the best placement (with
the best hyperparameters where these are drawn) is worth more, by the truth. Ours returns the trial of the
highest posterior mean. What the model alone does shows where random search returns by it, too.
"random, shrunk" trains random placements and returns the one of the best mean, shrunk by the true ratio of
variances: the best that can be done without effects that placements share. Recorded tables have last epochs
alone, so that nothing is stopped early there.

The table first, then the search: where split-half reliability over six seeds is below one half, no method is
called better. Intervals are of 2,000 bootstrap samples of the 50 repetitions. Takes about half an hour on
two cores; `--kinds` names some, and keeps what was measured of the others.
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import optuna
import planted
import recorded
from harness import RESULTS, write_values
from searchers import Choose, Found, Table, halved, lucky, modelled, shrunk, stock, whole
from threadpoolctl import threadpool_limits

from search.placement_sampler import parse_placement
from search.samplers import load_sampler

RUNS = 50
NEAR = 0.5  # of regret that is good enough: points, or in shared partial trainings of what a blind choice has
SHARE = 0.8  # of the runs
AT = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True, kw_only=True)
class Method:
    """search: of a table with a seed. most: trainings. settings: can return by hyperparameters, too.

    early: stops trainings early.
    """

    title: str
    search: Callable[[Any, int], Found]
    most: int
    settings: bool = True
    early: bool = False

    def does(self, kind: str) -> bool:
        if kind not in planted.KINDS:
            return not self.early
        return self.settings or not planted.KINDS[kind].settings


def sampled(sampler: str, choose: Choose) -> Callable[[Table, int], Found]:
    return lambda table, seed: whole(table, load_sampler(sampler, seed=seed), choose, AT.__contains__)


METHODS = {
    "ours": Method(title="placement sampler", search=sampled("placement", modelled), most=384),
    "tpe": Method(title="TPE", search=sampled("tpe", lucky), most=256),
    "tpe-asha": Method(
        title="TPE + ASHA",
        search=lambda table, seed: halved(table, load_sampler("tpe", seed=seed)),
        most=64,
        early=True,
    ),
    "stock": Method(title="OptunaSearch + ASHAScheduler", search=stock, most=64, early=True),
    "gp": Method(title="GPSampler", search=sampled("gp", lucky), most=64),
    "random": Method(title="random", search=sampled("random", lucky), most=4096),
    "random-shrunk": Method(
        title="random, shrunk", search=sampled("random", shrunk), most=4096, settings=False
    ),
    "random-model": Method(
        title="random, returned by the model", search=sampled("random", modelled), most=256
    ),
}


def regrets(work: tuple[str, str, int]) -> list[float]:
    """Of one run of a method on a kind of table, at each of `AT` up to the method's most."""
    name, kind_name, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    method, table = METHODS[name], make(kind_name, seed)
    counts = [count for count in AT if count <= method.most]
    found: list[float] = []
    returned: dict[str, float | str] = {}
    for spent, params in method.search(table, seed):
        while len(found) < len(counts) and counts[len(found)] < spent - 1e-9:  # it came to that without these
            found.append(regret(table, returned))
        returned = params
        if spent >= counts[-1] - 1e-9:
            break
    return [*found, *[regret(table, returned)] * (len(counts) - len(found))]


def regret(table: Table, params: dict[str, float | str]) -> float:
    placement = parse_placement(params)
    assert placement is not None
    return table.best - table.signed_value(placement) + table.loss(params)


def make(kind: str, seed: int) -> planted.Table | recorded.Table:
    if kind in planted.KINDS:
        return planted.Table(planted.KINDS[kind], seed)
    return recorded.Table(recorded.RECORDINGS[kind], seed)


def kinds() -> list[str]:
    """Those that there are: recorded ones once they have enough seeds."""
    enough = (one for one in recorded.RECORDINGS.values() if recorded.seeds(one) >= recorded.ENOUGH)
    return [*planted.KINDS, *(one.name for one in enough)]


def needed(near: np.ndarray) -> float:
    """Trainings until `SHARE` of the runs are near; infinite where too few ever are. near: (runs, counts)."""
    enough = np.flatnonzero(near.mean(axis=0) >= SHARE)
    return float(AT[enough[0]]) if len(enough) else float("inf")


def summary(values: np.ndarray, random: np.random.Generator) -> dict[str, Any]:
    """Of regrets of shape (runs, counts), with intervals."""
    near = values <= NEAR + 1e-9
    picks = random.integers(len(values), size=(2000, len(values)))
    means, shares = values[picks].mean(axis=1), near[picks].mean(axis=1)
    costs = [needed(near[pick]) for pick in picks]
    low, high = np.quantile(costs, [0.025, 0.975], method="nearest")
    return {
        "trainings": list(AT[: values.shape[1]]),
        "regret": values.mean(axis=0).round(3).tolist(),
        "regret_interval": np.quantile(means, [0.025, 0.975], axis=0).round(3).T.tolist(),
        "near": near.mean(axis=0).round(3).tolist(),
        "near_interval": np.quantile(shares, [0.025, 0.975], axis=0).round(3).T.tolist(),
        "needed": finite(needed(near)),
        "needed_interval": [finite(float(low)), finite(float(high))],
    }


def finite(value: float) -> int | None:
    """None, as JSON has no infinity: more than the method was given."""
    return int(value) if np.isfinite(value) else None


def audited(kind: str) -> dict[str, Any]:
    """What is said of a kind of table, without its methods."""
    audit = make(kind, 0).audit()
    if kind in planted.KINDS:
        return {**asdict(planted.KINDS[kind]), "reliability": {**asdict(audit), "ranks": audit.ranks}}
    recording = recorded.RECORDINGS[kind]
    limits = recorded.limits(recording)  # what is found there is judged by half of the seeds alone
    ranks = audit.ranks and limits["known"]["high"] < limits["any"]["low"]
    return {"says": recording.says, "limits": limits, "reliability": {**asdict(audit), "ranks": ranks}}


def measured() -> dict[str, Any]:
    """The tables of the result file."""
    file = RESULTS / "placements-cpu.json"
    found: dict[str, Any] = json.loads(file.read_text())["tables"] if file.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kinds", nargs="+", choices=kinds(), default=kinds())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--most", type=int, help="trainings of any method, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.most:
        METHODS.update({n: replace(m, most=min(m.most, options.most)) for n, m in METHODS.items()})
    tables = measured()
    # Each process has a core. With a thread for each core in each, BLAS takes several times as long.
    context = multiprocessing.get_context("fork")
    with context.Pool(options.processes, threadpool_limits, (1,)) as pool:
        for kind in options.kinds:
            tables[kind] = {**audited(kind), "methods": {}}
            print(f"{kind}: {tables[kind]['reliability']}", flush=True)
            for name in [name for name in options.methods if METHODS[name].does(kind)]:
                begun = time.perf_counter()
                values = np.array(
                    pool.map(regrets, [(name, kind, run) for run in range(options.runs)], chunksize=1)
                )
                found = summary(values, np.random.default_rng(0))
                found["seconds"] = round(time.perf_counter() - begun, 1)
                tables[kind]["methods"][name] = {"title": METHODS[name].title, **found}
                near = dict(zip(found["trainings"], found["near"], strict=True))
                needs = f"{found['needed']} {found['needed_interval']}"
                print(f"  {METHODS[name].title:30} needs {needs}; near {near}", flush=True)
            write_values(
                "placements",
                {
                    "runs": options.runs,
                    "near": NEAR,
                    "share": SHARE,
                    "noise": planted.NOISE,
                    "tables": {kind: tables[kind] for kind in kinds() if kind in tables},
                },
            )


if __name__ == "__main__":
    main()
