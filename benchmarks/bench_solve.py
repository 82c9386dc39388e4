"""Compare the solver of placements with an enumeration on planted tables, and measure its true regret.

Each kind of table (`planted.py`) is drawn 10 times. A search with the placement sampler trains 64 trials, and
the model of placements is fitted to them. Modules get random costs of two names. Under each of 20 random
limits on one or both, `PlacementSolver` returns a placement. The enumeration computes the posterior mean of
every placement of the table that meets the limits.

The regret is the difference in true effect to the best placement under the limits [points]. "tried" is what a
user has without the solver: the best of the trials' placements that meet the limits, by posterior mean.
Seconds are processor time of one call on one thread. One case is a space of 20 sites, 7 types and 3 modules,
where scores have random effects of sites, types and pairs. Takes four minutes on one core. `--kinds` measures
some kinds and keeps the results of the others.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import optuna
import planted
from harness import file_of, write_values

from search.placement_effects import (
    Effect,
    IndexedModule,
    IndexedPlacement,
    Term,
    parse_placement,
    placement_weights,
)
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices, list_modules
from search.placement_sampler import fit_model
from search.samplers import load_sampler
from search.solver import SLACK, AdditiveCost, PlacementSolver

TABLES, LIMITS, TRIALS = 10, 20, 64
COSTS = ("params", "latency")
LARGE = PlacementChoices(prefix="", sites=20, types=[f"type{i}" for i in range(7)], options={}, most=3)


def search(table: planted.Table, seed: int) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=load_sampler("placement", seed=seed))
    for _ in range(TRIALS):
        trial = study.ask()
        placement = table.draw(trial)
        study.tell(trial, table.score(placement, trial.params))
    return study


def draw_costs(choices: PlacementChoices, random: np.random.Generator) -> dict[str, AdditiveCost]:
    return {
        name: AdditiveCost(plain=10.0, modules={m: float(random.lognormal()) for m in list_modules(choices)})
        for name in COSTS
    }


def expected(model: EffectModel, placements: Sequence[IndexedPlacement]) -> np.ndarray:
    """Return the posterior means of placements, relative to the intercept, in standard deviations."""
    sums = [placement_weights(placement) for placement in placements]
    for effects in sums:
        del effects[Effect(Term.INTERCEPT)]
    means: np.ndarray = model.expect(sums) / model.scale
    return means


def measure_table(kind: planted.Kind, seed: int) -> dict[str, list[float]]:
    """Return lists with an item for each limit of one table."""
    table, random = planted.Table(kind, seed), np.random.default_rng([seed, 2])
    trials = search(table, seed).get_trials(deepcopy=False)
    study = optuna.create_study(direction="maximize")
    study.add_trials(trials)
    model = fit_model(study)
    assert model is not None
    tried = [parse_placement(trial.params) for trial in trials]
    choices = PlacementChoices(prefix="", sites=kind.sites, types=planted.TYPES, options={}, most=kind.most)
    costs = draw_costs(choices, random)
    placements, effects = zip(*table.placements(), strict=True)
    index = {placement: i for i, placement in enumerate(placements)}
    means, truth = expected(model, placements), np.array(effects)
    values = {name: np.array([cost(p) for p in placements]) for name, cost in costs.items()}
    was_tried = np.isin(np.arange(len(placements)), [index[p] for p in tried if p is not None])
    solver = PlacementSolver(model, choices, [p for p in tried if p is not None], costs)
    result = defaultdict(list)
    for _ in range(LIMITS):
        limits = {name: random.uniform(10, values[name].max()) for name in random.choice(COSTS, 2)}
        feasible = np.all([values[name] <= limit for name, limit in limits.items()], axis=0)
        start = time.process_time()
        solved = solver.solve(limits)
        result["seconds"].append(time.process_time() - start)
        assert solved is not None
        best, optimum = truth[feasible].max(), means[feasible].max()
        result["same"].append(float(feasible[index[solved]] and means[index[solved]] >= optimum - 2 * SLACK))
        result["regret"].append(best - truth[index[solved]])
        result["untried"].append(float(not was_tried[index[solved]]))
        known = np.flatnonzero(feasible & was_tried)
        result["tried"].append(best - truth[known[np.argmax(means[known])]] if len(known) else best)
    return result


def summarise(values: Sequence[float]) -> dict[str, float]:
    quantiles = dict(zip(("median", "q90", "max"), np.quantile(values, [0.5, 0.9, 1.0]), strict=True))
    return {"mean": round(float(np.mean(values)), 4), **{k: round(float(v), 4) for k, v in quantiles.items()}}


def measure_kind(kind: planted.Kind) -> dict[str, Any]:
    total: defaultdict[str, list[float]] = defaultdict(list)
    for seed in range(TABLES):
        for name, values in measure_table(kind, seed).items():
            total[name] += values
    return {
        "says": kind.says,
        "limits": len(total["same"]),
        "same": float(np.mean(total["same"])),
        "untried": float(np.mean(total["untried"])),
        "regret": summarise(total["regret"]),
        "regret_of_tried": summarise(total["tried"]),
        "seconds": summarise(total["seconds"]),
    }


def measure_large(trials: int) -> dict[str, Any]:
    """Return the seconds of 50 calls in `LARGE`, by number of trials, with setting up the program."""
    seconds = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        placements = [_draw(random) for _ in range(trials)]
        sites, types = random.standard_normal(LARGE.sites), random.standard_normal(len(LARGE.types))
        pairs = [random.standard_normal((n, n)) for n in (LARGE.sites, len(LARGE.types))]
        scores = []
        for placement in placements:
            cells = [(module.site, LARGE.types.index(module.type)) for module in placement.modules]
            score = sum(sites[i] + types[k] for i, k in cells)
            score += sum(pairs[0][i, j] + pairs[1][k, n] for (i, k), (j, n) in combinations(cells, 2))
            scores.append(float(score + random.standard_normal()))
        model = EffectModel([placement_weights(placement) for placement in placements], scores)
        costs = draw_costs(LARGE, random)
        for limit in (12.0, 14.0, 17.0, 20.0, 30.0):
            start = time.process_time()
            PlacementSolver(model, LARGE, placements, costs).solve(dict.fromkeys(COSTS, limit))
            seconds.append(time.process_time() - start)
    return summarise(seconds)


def _draw(random: np.random.Generator) -> IndexedPlacement:
    sites = sorted(random.choice(LARGE.sites, random.integers(LARGE.most + 1), replace=False).tolist())
    return IndexedPlacement("", tuple(IndexedModule(site, str(random.choice(LARGE.types))) for site in sites))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=planted.KINDS, default=list(planted.KINDS))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = file_of("solve")
    tables: Mapping[str, Any] = json.loads(file.read_text())["tables"] if file.exists() else {}
    for name in options.kinds:
        tables = {**tables, name: measure_kind(planted.KINDS[name])}
        print(f"{name}: {tables[name]}", flush=True)
    large = {str(trials): measure_large(trials) for trials in (64, 256)}
    print(f"20 sites, 7 types, 3 modules: {large}", flush=True)
    write_values(
        "solve",
        {
            "trials": TRIALS,
            "tables": {name: tables[name] for name in planted.KINDS if name in tables},
            "seconds_of_20_sites_7_types_3_modules_by_trials": large,
        },
    )


if __name__ == "__main__":
    main()
