"""True regret of the placement that a search returns, against trainings, on planted tables (`planted.py`) and
on recorded trainings (`recorded.py`).

Each method searches every kind of table 50 times, each time with new effects. After each count of trainings
it says which trial it would return, and the regret is how much the best placement (with the best
hyperparameters where these are drawn) is worth more, by the truth. Samplers of Optuna return the trial with
the best score, as Optuna does; ours the one of the highest posterior mean. What the model alone does shows
where TPE and random search return by it, too. "random, shrunk" trains random placements and returns the one
of the best mean, shrunk by the true ratio of variances: the best that can be done without effects that
placements share.

The table first, then the search: where split-half reliability over six seeds is below one half, no method is
called better. Intervals are of 2,000 bootstrap samples of the 50 repetitions. Takes about an hour on one
core.
"""

import argparse
import multiprocessing
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import optuna
import planted
import recorded
from harness import write_values
from optuna.samplers import BaseSampler

from search.placement_posterior import best_trial
from search.placement_sampler import placement_of
from search.samplers import load_sampler

RUNS = 50
NEAR = 0.5  # points of regret that are good enough
SHARE = 0.8  # of the runs
AT = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def lucky(study: optuna.Study, spread: float) -> optuna.trial.FrozenTrial:
    return study.best_trial


def modelled(study: optuna.Study, spread: float) -> optuna.trial.FrozenTrial:
    return best_trial(study)


def shrunk(study: optuna.Study, spread: float) -> optuna.trial.FrozenTrial:
    """The best mean by placement, shrunk towards the mean of all. spread: the true variance of placements."""
    scores: defaultdict[Any, list[float]] = defaultdict(list)
    first: dict[Any, optuna.trial.FrozenTrial] = {}
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        placement = placement_of(trial.params)
        scores[placement].append(trial.value)
        first.setdefault(placement, trial)
    middle = np.mean([trial.value for trial in trials])
    return first[
        max(
            scores,
            key=lambda p: (
                (np.mean(scores[p]) - middle) * len(scores[p]) / (len(scores[p]) + planted.NOISE**2 / spread)
            ),
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Method:
    """most: trainings. choose: the trial that is returned. settings: can return by hyperparameters, too."""

    title: str
    sampler: str
    choose: Callable[[optuna.Study, float], optuna.trial.FrozenTrial]
    most: int
    settings: bool = True

    def make(self, seed: int) -> BaseSampler:
        return load_sampler(self.sampler, seed=seed)


METHODS = {
    "ours": Method(title="placement sampler", sampler="placement", choose=modelled, most=256),
    "tpe": Method(title="TPE", sampler="tpe", choose=lucky, most=256),
    "gp": Method(title="GPSampler", sampler="gp", choose=lucky, most=64),
    "random": Method(title="random", sampler="random", choose=lucky, most=4096),
    "random-shrunk": Method(
        title="random, shrunk", sampler="random", choose=shrunk, most=4096, settings=False
    ),
    "tpe-model": Method(title="TPE, returned by the model", sampler="tpe", choose=modelled, most=256),
    "random-model": Method(
        title="random, returned by the model", sampler="random", choose=modelled, most=256
    ),
}


def regrets(work: tuple[str, str, int]) -> list[float]:
    """Of one run of a method on a kind of table, at each of `AT` up to the method's most."""
    name, kind_name, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    method, table = METHODS[name], make(kind_name, seed)
    study = optuna.create_study(direction="maximize", sampler=method.make(seed))
    found = []
    for count in range(1, method.most + 1):
        trial = study.ask()
        placement = table.draw(trial)
        study.tell(trial, table.score(placement, trial.params))
        if count in AT:
            params = method.choose(study, table.spread or 1.0).params
            returned = placement_of(params)
            assert returned is not None
            found.append(table.best - table.worth(returned) + table.loss(params))
    return found


def make(kind: str, seed: int) -> planted.Table | recorded.Table:
    return planted.Table(planted.KINDS[kind], seed) if kind in planted.KINDS else recorded.Table(seed)


def kinds() -> list[str]:
    """Those that there are: the recorded one once it has enough seeds."""
    return [*planted.KINDS, *([recorded.NAME] if recorded.seeds() >= recorded.ENOUGH else [])]


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


def works(kinds: list[str], methods: list[str]) -> Iterator[tuple[str, str]]:
    for kind in kinds:
        for method in methods:
            drawn = kind in planted.KINDS and planted.KINDS[kind].settings
            if METHODS[method].settings or not drawn:
                yield method, kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kinds", nargs="+", choices=kinds(), default=kinds())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--most", type=int, help="trainings of any method, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.most:
        METHODS.update({n: replace(m, most=min(m.most, options.most)) for n, m in METHODS.items()})
    tables: dict[str, Any] = {}
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for name, kind in works(options.kinds, options.methods):
            if kind not in tables:
                about = asdict(planted.KINDS[kind]) if kind in planted.KINDS else {"says": recorded.SAYS}
                audit = make(kind, 0).audit()
                tables[kind] = {
                    **about,
                    "reliability": {**asdict(audit), "ranks": audit.ranks},
                    "methods": {},
                }
                print(f"{kind}: {tables[kind]['reliability']}", flush=True)
            begun = time.perf_counter()
            values = np.array(
                pool.map(regrets, [(name, kind, run) for run in range(options.runs)], chunksize=1)
            )
            found = summary(values, np.random.default_rng(0))
            found["seconds"] = round(time.perf_counter() - begun, 1)
            tables[kind]["methods"][name] = {"title": METHODS[name].title, **found}
            near = dict(zip(found["trainings"], found["near"], strict=True))
            print(
                f"  {METHODS[name].title:30} needs {found['needed']} {found['needed_interval']}; near {near}",
                flush=True,
            )
    write_values(
        "placements",
        {"runs": options.runs, "near": NEAR, "share": SHARE, "noise": planted.NOISE, "tables": tables},
    )


if __name__ == "__main__":
    main()
