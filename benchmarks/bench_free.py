"""Measure the regret of free answers, and of searches without and after them, by number of trainings.

Free answers are placements that no training has to choose: those of papers and rules of thumb, as a search
tries them first. Tables, without any new training:

- `planted.py`: effects drawn from the family that the placement sampler assumes (`own` marks them), but for
  effects of pairs and heavy tails;
- `recorded.py`: single modules on Imagenette and on look-ups. On Imagenette modules in a branch were not
  recorded, so those of papers are after the block;
- `record_recall.py` and `record_layers.py`: the layers of decoders.

Methods:

- `free`: trains each free answer once and keeps the one with the best score;
- `random`, `tpe`: Optuna's samplers, and the trial with the best score;
- `sampler`: the placement sampler, and the trial with the best posterior mean;
- `free, sampler`: the same after the free answers, as `automl search` does.

A regret is the effect of the best placement minus that of the returned one, of `RUNS` repetitions with an
interval from 2,000 bootstrap samples. Takes about ten minutes on two cores.

    python benchmarks/bench_free.py
    python benchmarks/bench_free.py --cases lookup    # this one again, and the others as recorded
"""

import argparse
import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import bench_layers
import bench_recall
import nette
import numpy as np
import optuna
import planted
import record_layers
import record_recall
import recorded
from bench_placements import make_grouped_tpe
from harness import file_of, write_values
from optuna.samplers import BaseSampler, RandomSampler
from reliability import Reliability
from searchers import Choose, best_posterior, best_score
from threadpoolctl import threadpool_limits

from automl.tasks.language_modelling.space import contiguous, interleave
from search import choices
from search.placement_effects import (
    IndexedModule,
    IndexedPlacement,
    parse_placement,
)
from search.placement_sampler import PlacementSampler

RUNS = 40
AT = (2, 4, 8, 16, 32)
Params = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Table of placements.

    Attributes:
        make: Returns the table of a repetition.
        free: The parameters of the free answers, in the order of a search.
        unit: The unit of regrets.
        own: True if the effects are drawn from the family that the placement sampler assumes.
    """

    make: Callable[[int], Any]
    free: Sequence[Params]
    unit: str
    own: bool = False


class Layers:
    """Table of `bench_layers`, from which each training draws a seed."""

    def __init__(self, decoder: str, full: int, seed: int) -> None:
        self._scores, self._decoder, self._full = bench_layers.table(decoder, full), decoder, full
        self._random, self._left = np.random.default_rng(seed), dict[str, list[float]]()
        self.best = max(float(np.mean(values)) for values in self._scores.values())

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        decoder = record_layers.DECODERS[self._decoder]
        count = decoder.depth - self._full
        layers = choices.ascending(trial, decoder.depth, least=count, most=count)
        modules = (
            IndexedModule(layer, trial.suggest_categorical(f"{choices.TYPE}{i}", decoder.kinds))
            for i, layer in enumerate(layers, start=1)
        )
        return IndexedPlacement("", tuple(modules))

    def score(self, placement: IndexedPlacement, params: Params) -> float:
        name = self._name(placement)
        if not self._left.get(name):
            self._left[name] = list(self._random.permutation(self._scores[name]))
        return float(self._left[name].pop())

    def regret(self, placement: IndexedPlacement) -> float:
        return self.best - float(np.mean(self._scores[self._name(placement)]))

    def audit(self) -> Reliability:
        """Return the reliability of the scores."""
        return bench_layers._audit(self._scores)

    def _name(self, placement: IndexedPlacement) -> str:
        return bench_layers.named(placement, record_layers.DECODERS[self._decoder].depth)


def free_of_images(names: Sequence[str], types: Sequence[str], most: int) -> list[Params]:
    """Return the free answers of these sites and types. Without branches, modules are after the block."""
    ends = [""] if any(name.endswith(".branch") for name in names) else [".branch", ""]
    every = [SimpleNamespace(name=f"{name}{end}") for name in names for end in ends]
    answers = []
    for answer in choices.free(every, baseline={}):  # type: ignore[arg-type]
        chosen = [answer[f"{choices.SITE}{i + 1}"] for i in range(answer[choices.MODULES])][:most]
        sites = [site // len(ends) for site in chosen]
        kind = answer[f"{choices.TYPE}1"]
        if kind in types:
            answers.append(choices.modules(sites, kind, {}))
    return [answer for i, answer in enumerate(answers) if answer not in answers[:i]]


def free_of_layers(depth: int, full: int, kinds: Sequence[str]) -> list[Params]:
    """Return the rules of thumb of a decoder, as the spaces of hybrid decoders have them."""
    rules = [(interleave(depth, full), kind) for kind in kinds]
    rules += [(layers, kinds[0]) for layers in contiguous(depth, full)]
    answers = [choices.modules([i for i in range(depth) if i not in layers], k, {}) for layers, k in rules]
    return [answer for i, answer in enumerate(answers) if answer not in answers[:i]]


def list_cases() -> dict[str, Case]:
    cases = {}
    for name in ("light", "heavy", "pairs", "large"):
        kind = planted.KINDS[name]
        sites = [f"stage{i * 4 // kind.sites + 1}.block{i}" for i in range(kind.sites)]
        free = free_of_images(sites, planted.TYPES, kind.most)
        own = name in ("light", "large")
        cases[f"planted, {name}"] = Case(
            make=lambda seed, kind=kind: planted.Table(kind, seed),  # type: ignore[misc]
            free=free,
            unit="points",
            own=own,
        )
    for name in ("nette", "nette-shared", "lookup"):
        recording = recorded.RECORDINGS[name]
        cases[name] = Case(
            make=lambda seed, recording=recording: recorded.Table(recording, seed),  # type: ignore[misc]
            free=free_of_images(recording.sites, nette.TYPES, 1),
            unit="points" if recording.score == "accuracy" else "of a blind choice",
        )
    recall = free_of_layers(record_recall.DEPTH, 1, record_recall.KINDS)
    cases["recall"] = Case(make=bench_recall.Table, free=recall, unit="points")
    for name, full in record_layers.TABLES:
        decoder = record_layers.DECODERS[name]
        cases[f"layers, {name}, {full} full"] = Case(
            make=lambda seed, name=name, full=full: Layers(name, full, seed),  # type: ignore[misc]
            free=free_of_layers(decoder.depth, full, decoder.kinds),
            unit="points" if decoder.score == "accuracy" else "nats",
        )
    return cases


CASES = list_cases()
METHODS: Mapping[str, tuple[Callable[[int], BaseSampler], Choose, bool]] = {
    "free": (lambda seed: RandomSampler(seed), best_score, True),
    "random": (lambda seed: RandomSampler(seed), best_score, False),
    "tpe": (make_grouped_tpe, best_score, False),
    "sampler": (lambda seed: PlacementSampler(seed=seed), best_posterior, False),
    "free, sampler": (lambda seed: PlacementSampler(seed=seed), best_posterior, True),
}


def regrets(work: tuple[str, str, int]) -> list[float]:
    """Return the regrets of a run of a method on a table, at each of `AT`."""
    name, method, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    case, (make_sampler, choose, begins_free) = CASES[name], METHODS[method]
    table = case.make(seed)
    study = optuna.create_study(direction="maximize", sampler=make_sampler(seed))
    for params in case.free if begins_free else ():
        study.enqueue_trial(dict(params))
    values: list[float] = []
    for count in range(1, AT[-1] + 1):
        if method != "free" or count <= len(case.free):
            trial = study.ask()
            study.tell(trial, table.score(table.draw(trial), trial.params))
        if count in AT:
            returned = parse_placement(choose(study, table).params)
            assert returned is not None
            missed = getattr(table, "regret", None)
            values.append(missed(returned) if missed else table.best - table.effect(returned))
    return values


def summary(runs: np.ndarray) -> dict[str, Any]:
    """Return the mean regret (runs, counts) at each of `AT`, with its interval."""
    picks = np.random.default_rng(0).integers(len(runs), size=(2000, len(runs)))
    ends = np.quantile(runs[picks].mean(axis=1), [0.025, 0.975], axis=0)
    return {"regret": runs.mean(axis=0).round(3).tolist(), "interval": ends.round(3).T.tolist()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    with multiprocessing.get_context("fork").Pool(options.processes, threadpool_limits, (1,)) as pool:
        for name in options.cases:
            case = CASES[name]
            audit = bench_recall.audit() if name == "recall" else case.make(0).audit()
            results[name] = {
                "unit": case.unit,
                "own": case.own,
                "free": len(case.free),
                "reliability": {**vars(audit), "ranks": audit.ranks},
                "methods": {},
            }
            for method in METHODS:
                runs = pool.map(regrets, [(name, method, run) for run in range(options.runs)], chunksize=1)
                results[name]["methods"][method] = summary(np.array(runs))
                print(f"{name}, {method}: {results[name]['methods'][method]['regret']}", flush=True)
    before = json.loads(file_of("free").read_text())["cases"] if set(options.cases) < set(CASES) else {}
    write_values("free", {"runs": options.runs, "trainings": AT, "cases": {**before, **results}})


if __name__ == "__main__":
    main()
