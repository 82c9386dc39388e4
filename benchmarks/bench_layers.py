"""Measure the sensitivity of a trained decoder's layers as a prior, on the tables of `record_layers.py`.

Decoders of full layers solve recall, or predict bytes. Their layers are replaced, and each table has every
placement with as many full layers. The effect of a placement is its mean over all seeds. A training shows the
score of one seed, each once before the first is shown again.

- `rules`: the regret of the uniform interleaving with each kind, and the mean regret of a random placement.
- `signals`: the regret of the placement with the least harm, which takes no training, and the correlation
  of the harm with the effects.
- `searches`: the mean regret of the placement sampler by number of trainings, without a prior and with it,
  over 20 runs; and without a prior after the rules of thumb, as in a search.

The record and its page also have two other signals and all three together, as measured before only the
sensitivity was kept. A new run leaves them out.

    python benchmarks/bench_layers.py
"""

import argparse
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import optuna
import record_layers
from harness import write_values
from record_layers import DECODERS, TABLES, placements
from reliability import Reliability, reliability
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

from automl.task import open_task
from automl.tasks.language_modelling import FULL
from automl.tasks.language_modelling.space import contiguous, interleave, mixer
from automl.tasks.language_modelling.task import Harm, LanguageModelling, measure_sensitivity
from search import choices
from search.placement_effects import (
    IndexedModule,
    IndexedPlacement,
    parse_placement,
    sensitivity_effects,
    write_prior,
)
from search.placement_posterior import best_trial
from search.placement_sampler import PlacementSampler

RUNS, MOST = 20, 16
AT = (4, 6, 8, 12, 16)
RULES = "rules of thumb first"
SENSITIVITY = "sensitivity"
METHODS = ("no prior", SENSITIVITY, RULES)


@lru_cache
def table(name: str, full: int) -> dict[str, list[float]]:
    """Return the scores by seed of each placement. Larger is better: points of accuracy, or nats below 0."""
    score = DECODERS[name].score
    scale = 100 if score == "accuracy" else -1
    rows = {
        (row["placement"], row["seed"]): scale * row[score]
        for row in record_layers.read()
        if row["decoder"] == name
    }
    names = placements(name, full)
    seeds = [s for s in range(record_layers.SEEDS) if all((each, s) in rows for each in names)]
    return {each: [rows[each, seed] for seed in seeds] for each in names}


def indexed(name: str) -> IndexedPlacement:
    return IndexedPlacement(
        "", tuple(IndexedModule(i, kind) for i, kind in enumerate(name.split()) if kind != FULL)
    )


def named(placement: IndexedPlacement, depth: int) -> str:
    layers = [FULL] * depth
    for module in placement.modules:
        layers[module.site] = module.type
    return " ".join(layers)


def rules(name: str, full: int) -> list[str]:
    """Return the rules of thumb that a search tries first, in its order."""
    depth, kinds = DECODERS[name].depth, DECODERS[name].kinds
    kept = [(interleave(depth, full), kind) for kind in kinds]
    kept += [(layers, kinds[0]) for layers in contiguous(depth, full)]
    names = [" ".join(FULL if i in layers else kind for i in range(depth)) for layers, kind in kept]
    return list(dict.fromkeys(names))


def measure(name: str) -> Harm:
    """Return the harm of each type at each layer of the decoder of full layers."""
    decoder = DECODERS[name]
    config = decoder.config(" ".join([FULL] * decoder.depth), 0, weights=str(decoder.weights))
    task = open_task(config, record_layers.HERE)
    assert isinstance(task, LanguageModelling)
    heads = decoder.options["heads"]
    specs = {kind: mixer(kind, heads=heads, window=decoder.window) for kind in decoder.kinds}
    return measure_sensitivity(task, specs)


def search(work: tuple[str, int, str, Harm, int]) -> list[float]:
    """Return the regrets of one search, at each of `AT`."""
    decoder, full, method, harm, seed = work
    depth, kinds = DECODERS[decoder].depth, DECODERS[decoder].kinds
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    scores = table(decoder, full)
    best, random = max(map(np.mean, scores.values())), np.random.default_rng(seed)
    left: dict[str, list[float]] = {}
    study = optuna.create_study(direction="maximize", sampler=PlacementSampler(seed=seed))
    if method == SENSITIVITY:
        write_prior(study, sensitivity_effects(harm, map(indexed, scores)))
    for name in rules(decoder, full) if method == RULES else ():
        layers = [i for i, kind in enumerate(name.split()) if kind != FULL]
        kind = next(kind for kind in name.split() if kind != FULL)
        study.enqueue_trial(choices.modules(layers, kind, {}))
    regrets = []
    for count in range(1, MOST + 1):
        trial = study.ask()
        chosen = choices.ascending(trial, depth, least=depth - full, most=depth - full)
        drawn = tuple(
            IndexedModule(layer, trial.suggest_categorical(f"{choices.TYPE}{i}", kinds))
            for i, layer in enumerate(chosen, start=1)
        )
        name = named(IndexedPlacement("", drawn), depth)
        if not left.get(name):
            left[name] = list(random.permutation(scores[name]))
        study.tell(trial, float(left[name].pop()))
        if count in AT:
            returned = parse_placement(best_trial(study).params)
            assert returned is not None
            regrets.append(float(best - np.mean(scores[named(returned, depth)])))
    return regrets


def summary(runs: np.ndarray) -> dict[str, list[Any]]:
    """Return the mean regret at each of `AT`, with its 95 % interval from 2,000 bootstrap samples."""
    picks = np.random.default_rng(0).integers(len(runs), size=(2000, len(runs)))
    means = runs[picks].mean(axis=1)
    return {
        "regret": runs.mean(axis=0).round(3).tolist(),
        "interval": np.quantile(means, [0.025, 0.975], axis=0).round(3).T.tolist(),
    }


def correlation(harm: Harm, scores: dict[str, list[float]]) -> float:
    """Return the rank correlation of the predicted with the measured order of placements."""
    predicted = [-total(harm, name) for name in scores]
    measured = [float(np.mean(values)) for values in scores.values()]
    return float(spearmanr(predicted, measured).statistic)


def total(harm: Harm, name: str) -> float:
    return sum(harm[module.site][module.type] for module in indexed(name).modules)


def run_case(decoder: str, full: int, pool: Any, runs: int) -> dict[str, Any]:
    """Return what the bench measures on one table."""
    scores, harm = table(decoder, full), measure(decoder)
    chosen = min(scores, key=lambda each: total(harm, each))
    effects = {name: float(np.mean(values)) for name, values in scores.items()}
    best = max(effects.values())
    searches = {}
    for method in METHODS:
        work = [(decoder, full, method, harm, seed) for seed in range(runs)]
        searches[method] = summary(np.array(pool.map(search, work, chunksize=1)))
    return {
        "placements": len(scores),
        "seeds": len(next(iter(scores.values()))),
        "reliability": {**vars(audit := _audit(scores)), "ranks": audit.ranks},
        "best": max(effects, key=effects.__getitem__),
        "rules": {
            **{name: round(best - effects[name], 3) for name in rules(decoder, full)},
            "random": round(best - float(np.mean(list(effects.values()))), 3),
        },
        "signals": {
            SENSITIVITY: {
                "chooses": chosen,
                "regret": round(best - effects[chosen], 3),
                "correlation": round(correlation(harm, scores), 3),
            }
        },
        "trainings": AT,
        "searches": searches,
    }


def _audit(scores: dict[str, list[float]]) -> Reliability:
    return reliability(np.array(list(scores.values())))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    cases = {}
    with multiprocessing.get_context("fork").Pool(options.processes, threadpool_limits, (1,)) as pool:
        for decoder, full in TABLES:
            what, depth = decoder.split("-")
            name = f"{what}, {depth} layers, {full} full"
            cases[name] = run_case(decoder, full, pool, options.runs)
            print(f"{name}: {cases[name]}", flush=True)
    write_values("layers", {"runs": options.runs, "cases": cases})


if __name__ == "__main__":
    main()
