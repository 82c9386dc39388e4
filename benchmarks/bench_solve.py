"""Compare the solver of placements with an enumeration, and measure its true regret.

The tables are planted (`planted.py`) or recorded (`recorded.py`, and decoders of `record_layers.py`). Each is
drawn 10 times. A search with the placement sampler trains 64 trials, and the model of placements is fitted to
them. Modules get random costs of two names. Under each of 20 random limits on one or both, `PlacementSolver`
returns a placement. The enumeration computes the posterior mean of every placement of the table that meets
the limits. Its best one is what an integer program would return.

The regret is the difference in true effect to the best placement under the limits, in points or in the unit
of the recorded table. "tried" is what a user has without the solver: the best of the trials' placements that
meet the limits, by posterior mean.

Seconds are processor time of one call on one thread. One case is a space of 20 sites, 7 types and 3 modules,
where scores have random effects of sites, types and pairs. Takes four minutes on one core. `--kinds` measures
some kinds and keeps the results of the others.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import bench_layers
import nette
import numpy as np
import optuna
import planted
import record_layers
import recorded
from harness import file_of, write_values
from record_layers import DECODERS

from automl.base.units import pluralize
from search import choices
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


class Layers:
    """Recorded placements of a decoder's layers. Trials do not see the seed that the effects are of."""

    def __init__(self, decoder: str, full: int, seed: int) -> None:
        self._scores = bench_layers.table(decoder, full)
        self._random = np.random.default_rng(seed)
        count = len(next(iter(self._scores.values())))
        self._hidden, *self._shown = self._random.permutation(count).tolist()
        depth, self._kinds = DECODERS[decoder].depth, DECODERS[decoder].kinds
        self.choices = PlacementChoices(
            prefix="", sites=depth, types=self._kinds, options={}, most=depth - full, least=depth - full
        )

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        chosen = choices.ascending(
            trial, self.choices.sites, least=self.choices.least, most=self.choices.most
        )
        return IndexedPlacement(
            "",
            tuple(
                IndexedModule(layer, trial.suggest_categorical(f"{choices.TYPE}{i}", self._kinds))
                for i, layer in enumerate(chosen, start=1)
            ),
        )

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        scores = self._scores[bench_layers.named(placement, self.choices.sites)]
        return float(scores[self._random.choice(self._shown)])

    def placements(self) -> list[tuple[IndexedPlacement, float]]:
        return [
            (bench_layers.indexed(name), float(scores[self._hidden])) for name, scores in self._scores.items()
        ]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Kind of table.

    Attributes:
        table: Returns a table for a seed.
        space: Returns the placements of a table.
    """

    says: str
    table: Callable[[int], Any]
    space: Callable[[Any], PlacementChoices]

    def placements(self, table: Any) -> list[tuple[IndexedPlacement, float]]:
        """Return all placements with their true effects."""
        if hasattr(table, "placements"):
            return list(table.placements())
        alone = [IndexedPlacement("", (module,)) for module in list_modules(self.space(table))]
        return [(placement, table.effect(placement)) for placement in [IndexedPlacement("", ()), *alone]]


def planted_case(kind: planted.Kind) -> Case:
    space = PlacementChoices(prefix="", sites=kind.sites, types=planted.TYPES, options={}, most=kind.most)
    return Case(says=kind.says, table=partial(planted.Table, kind), space=lambda _: space)


def recorded_case(recording: recorded.Recording) -> Case:
    sites = len(recording.sites)
    space = PlacementChoices(prefix="", sites=sites, types=nette.TYPES, options={}, most=1)
    return Case(says=recording.says, table=partial(recorded.Table, recording), space=lambda _: space)


CASES = {
    **{name: planted_case(kind) for name, kind in planted.KINDS.items()},
    **{name: recorded_case(recording) for name, recording in recorded.RECORDINGS.items()},
    **{
        f"{decoder}-full-{full}": Case(
            says=f"recorded layers of {decoder}, {pluralize(full, 'full ones')}",
            table=partial(Layers, decoder, full),
            space=lambda table: table.choices,
        )
        for decoder, full in record_layers.TABLES
    },
}


def search(table: Any, seed: int) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=load_sampler("placement", seed=seed))
    for _ in range(TRIALS):
        trial = study.ask()
        placement = table.draw(trial)
        study.tell(trial, table.score(placement, trial.params))
    return study


def draw_costs(space: PlacementChoices, random: np.random.Generator) -> dict[str, AdditiveCost]:
    return {
        name: AdditiveCost(plain=10.0, modules={m: float(random.lognormal()) for m in list_modules(space)})
        for name in COSTS
    }


def expected(model: EffectModel, placements: Sequence[IndexedPlacement]) -> np.ndarray:
    """Return the posterior means of placements, relative to the intercept, in standard deviations."""
    sums = [placement_weights(placement) for placement in placements]
    for effects in sums:
        del effects[Effect(Term.INTERCEPT)]
    means: np.ndarray = model.expect(sums) / model.scale
    return means


def measure_table(case: Case, seed: int) -> dict[str, list[float]]:
    """Return lists with an item for each limit of one table."""
    table, random = case.table(seed), np.random.default_rng([seed, 2])
    trials = search(table, seed).get_trials(deepcopy=False)
    study = optuna.create_study(direction="maximize")
    study.add_trials(trials)
    model = fit_model(study)
    assert model is not None
    tried = [placement for trial in trials if (placement := parse_placement(trial.params)) is not None]
    space = case.space(table)
    costs = draw_costs(space, random)
    placements, effects = zip(*case.placements(table), strict=True)
    index = {placement: i for i, placement in enumerate(placements)}
    means, truth = expected(model, placements), np.array(effects)
    values = {name: np.array([cost(p) for p in placements]) for name, cost in costs.items()}
    was_tried = np.isin(np.arange(len(placements)), [index[placement] for placement in tried])
    solver = PlacementSolver(model, space, tried, costs)
    result = defaultdict(list)
    for _ in range(LIMITS):
        limits = {
            name: random.uniform(values[name].min(), values[name].max()) for name in random.choice(COSTS, 2)
        }
        feasible = np.all([values[name] <= limit for name, limit in limits.items()], axis=0)
        start = time.process_time()
        solved = solver.solve(limits)
        result["seconds"].append(time.process_time() - start)
        if not feasible.any():
            assert solved is None
            continue
        assert solved is not None
        assert feasible[index[solved]]
        best, optimum = truth[feasible].max(), means[feasible].max()
        result["same"].append(float(means[index[solved]] >= optimum - 2 * SLACK))
        result["lost"].append(float(optimum - means[index[solved]]))
        result["regret"].append(best - truth[index[solved]])
        result["exact"].append(best - truth[np.argmax(np.where(feasible, means, -np.inf))])
        result["untried"].append(float(not was_tried[index[solved]]))
        known = np.flatnonzero(feasible & was_tried)
        # Without a placement that was tried, a user has the model without attention, if it meets the limits.
        fallback = index.get(IndexedPlacement("", ()), int(np.argmin(truth)))
        chosen = known[np.argmax(means[known])] if len(known) else fallback
        result["tried"].append(best - truth[chosen])
    return result


def summarise(values: Sequence[float]) -> dict[str, float]:
    quantiles = dict(zip(("median", "q90", "max"), np.quantile(values, [0.5, 0.9, 1.0]), strict=True))
    return {"mean": round(float(np.mean(values)), 4), **{k: round(float(v), 4) for k, v in quantiles.items()}}


def measure_case(case: Case) -> dict[str, Any]:
    total: defaultdict[str, list[float]] = defaultdict(list)
    for seed in range(TABLES):
        for name, values in measure_table(case, seed).items():
            total[name] += values
    return {
        "says": case.says,
        "limits": len(total["same"]),
        "same": float(np.mean(total["same"])),
        "lost": summarise(total["lost"]),
        "untried": float(np.mean(total["untried"])),
        "regret": summarise(total["regret"]),
        "regret_of_exact": summarise(total["exact"]),
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
    parser.add_argument("--kinds", nargs="*", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = file_of("solve")
    tables: Mapping[str, Any] = json.loads(file.read_text())["tables"] if file.exists() else {}
    for name in options.kinds:
        tables = {**tables, name: measure_case(CASES[name])}
        print(f"{name}: {tables[name]}", flush=True)
    large = {str(trials): measure_large(trials) for trials in (64, 256)}
    print(f"20 sites, 7 types, 3 modules: {large}", flush=True)
    write_values(
        "solve",
        {
            "trials": TRIALS,
            "tables": {name: tables[name] for name in CASES if name in tables},
            "seconds_of_20_sites_7_types_3_modules_by_trials": large,
        },
    )


if __name__ == "__main__":
    main()
