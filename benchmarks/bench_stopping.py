"""Measure how often a search that ends once its placements are decided ends wrongly, and what it saves.

The placement sampler searches each kind of planted table (`planted.py`), each run with new effects. The
posterior is estimated at the numbers of trials at which a search does so. An end is false if the trial that
the search would return is worse than the best of the table by more than the margin, half a point: the best
placement, with the best hyperparameters if these are drawn. A search of N trials that has not ended before
trains all of them.

Results are given for several values of `STOP_LEVEL`. It was chosen on runs with the seeds 0 to 99, as were
the degrees of freedom in `search.reach`. The results are those of later seeds. Runs continue until the
largest of the values, and `checks` in the result has the decided posteriors of each run. Runs that the result
has are kept, so an interrupted benchmark continues; delete the file to begin again. Intervals are 95 %
intervals of Clopper and Pearson.
"""

import argparse
import json
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import planted
from bench_placements import regret
from harness import file_of, write_values
from scipy.stats import beta
from threadpoolctl import threadpool_limits

from search.placement_posterior import best_trial, estimate_posterior
from search.placement_sampler import GrowingModel
from search.samplers import load_sampler
from search.search_scheduler import is_check_due

FIRST, RUNS = 100, 100  # the first seed, and the number of seeds
MARGIN = 0.5  # points
LENGTH = 256  # trials of a search
LEVELS = (0.9, 0.95, 0.97, 0.98)  # values of STOP_LEVEL

Check = dict[str, Any]


def checks(work: tuple[str, int]) -> list[Check]:
    """Return the checks of one search until the largest of `LEVELS`."""
    kind, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    table = planted.Table(planted.KINDS[kind], seed)
    study = optuna.create_study(direction="maximize", sampler=load_sampler("placement", seed=seed))
    model, checked, result = GrowingModel(), 0, []
    for count in range(1, LENGTH + 1):
        trial = study.ask()
        placement = table.draw(trial)
        study.tell(trial, table.score(placement, trial.params))
        if not is_check_due(count, checked):
            continue
        checked = count
        posterior = estimate_posterior(study, MARGIN, model.refit, more=max(count, LENGTH - count))
        if posterior.reach is not None:
            worse = regret(table, best_trial(study).params)
            result.append(
                {
                    "trials": count,
                    "null": posterior.is_null,
                    "reach": posterior.reach,
                    "regret": round(worse, 3),
                    "best": round(table.best, 3),
                }
            )
            if posterior.reach >= LEVELS[-1]:
                break
    return result


def summary(runs: Sequence[Sequence[Check]], level: float) -> dict[str, Any]:
    """Return the ends of searches with this value of `STOP_LEVEL`."""
    ends = [
        next((check for check in run if check["reach"] >= level and check["trials"] < LENGTH), None)
        for run in runs
    ]
    false = sum(end is not None and end["regret"] > MARGIN + 1e-9 for end in ends)
    spent = [LENGTH if end is None else end["trials"] for end in ends]
    low, high = beta.ppf([0.025, 0.975], [false, false + 1], [len(runs) - false + 1, len(runs) - false])
    return {
        "ended": sum(end is not None for end in ends),
        "no difference": sum(end is not None and end["null"] for end in ends),
        "no difference, wrongly": sum(
            end is not None and end["null"] and end["best"] > MARGIN for end in ends
        ),
        "false": false,
        "false_interval": [float(np.nan_to_num(low)), float(np.nan_to_num(high, nan=1.0))],
        "saved_median": float(1 - np.median(spent) / LENGTH),
        "saved_mean": float(1 - np.mean(spent) / LENGTH),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kinds", nargs="+", choices=planted.KINDS, default=list(planted.KINDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    file = file_of("stopping")
    kinds: dict[str, Any] = json.loads(file.read_text())["kinds"] if file.exists() else {}
    context = multiprocessing.get_context("fork")
    with context.Pool(options.processes, threadpool_limits, (1,)) as pool:
        for kind in options.kinds:
            runs = [json.loads(line) for line in kinds.get(kind, {}).get("checks", [])]
            left = range(FIRST + len(runs), FIRST + options.runs)
            for run in pool.imap(checks, [(kind, seed) for seed in left]):
                runs.append(run)
                kinds[kind] = {
                    "says": planted.KINDS[kind].says,
                    "runs": len(runs),
                    "levels": {level: summary(runs, level) for level in LEVELS},
                    "checks": list(map(json.dumps, runs)),
                }
                write_values("stopping", {"margin": MARGIN, "noise": planted.NOISE, "kinds": kinds})
            for level in LEVELS:
                print(f"{kind:12} {level} {kinds[kind]['levels'][level]}", flush=True)


if __name__ == "__main__":
    main()
