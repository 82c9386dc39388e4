"""Measure searches for the full layer of a decoder on associative recall, the positive control.

- `table`: trainings until the returned placement is within two points of the best in four of five runs, on
  the recorded table of six layers (`record_recall.py`). A training shows the accuracy of one recorded seed,
  each once before the first is shown again. The effect of a placement is its mean over all seeds, as in
  C. Ying et al., NAS-Bench-101 (2019), arXiv 1902.09635. Methods are those of `bench_placements.py`.
- `search`: `automl search --space recall --trials 16 --confirm --top 1` with ten seeds. It reports the
  verdicts against the best uniform baseline and against a random placement, the layers, and the seconds. It
  continues with the seeds that the result file lacks; `--anew` repeats all.

    python benchmarks/bench_recall.py table
    python benchmarks/bench_recall.py search
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import record_recall
from bench_placements import AT, METHODS, summary
from harness import RESULTS, write_values
from reliability import Reliability, reliability
from threadpoolctl import threadpool_limits

from automl.tasks.language_modelling import FULL, site_name
from search import choices
from search.placement_effects import IndexedModule, IndexedPlacement, parse_placement

NEAR = 2.0  # points
MIXING = ("sliding", "shortconv")  # kinds that can bring a key to its value
RUNS, SEARCHES, TRIALS = 50, 10, 16
NAMES = ("ours", "tpe", "tpe-group", "random", "random-shrunk", "random-model")


@lru_cache
def scores() -> dict[str, list[float]]:
    """Return the accuracies [points] of each placement, of the seeds that all placements have."""
    accuracy = {(row["placement"], row["seed"]): 100 * row["accuracy"] for row in record_recall.read()}
    names = record_recall.placements()
    seeds = [s for s in range(record_recall.SEEDS) if all((name, s) in accuracy for name in names)]
    return {name: [accuracy[name, seed] for seed in seeds] for name in names}


class Table:
    """Recorded table, from which each training draws a seed.

    Attributes:
        best: Effect of the best placement [points].
        noise: Standard deviation of the scores of one placement [points].
        spread: Variance of the placements' scores [points squared].
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._left: dict[str, list[float]] = {}
        values = np.array(list(scores().values()))
        self.best = float(values.mean(axis=1).max())
        variance = float(values.var(axis=1, ddof=1).mean())
        self.noise = variance**0.5
        self.spread = max(0.0, float(values.mean(axis=1).var(ddof=1)) - variance / values.shape[1])

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        count = record_recall.DEPTH - 1
        layers = choices.ascending(trial, record_recall.DEPTH, least=count, most=count)
        return IndexedPlacement(
            "",
            tuple(
                IndexedModule(layer, trial.suggest_categorical(f"{choices.TYPE}{i}", record_recall.KINDS))
                for i, layer in enumerate(layers, start=1)
            ),
        )

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        name = _name(placement)
        if not self._left.get(name):
            self._left[name] = list(self._random.permutation(scores()[name]))
        return float(self._left[name].pop())

    def regret(self, placement: IndexedPlacement) -> float:
        return self.best - float(np.mean(scores()[_name(placement)]))


def _name(placement: IndexedPlacement) -> str:
    layers = [FULL] * record_recall.DEPTH
    for module in placement.modules:
        layers[module.site] = module.type
    return " ".join(layers)


def regrets(work: tuple[str, int]) -> list[float]:
    """Return the regrets of a run of a method at each of `AT` up to its most."""
    name, seed = work
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    method, table = METHODS[name], Table(seed)
    counts = [count for count in AT if count <= method.most]
    values = []
    for _, params in method.search(table, seed):
        placement = parse_placement(params)
        assert placement is not None
        values.append(table.regret(placement))
        if len(values) == len(counts):
            break
    return values


def audit() -> Reliability:
    return reliability(np.array(list(scores().values())))


def run_table(processes: int) -> dict[str, Any]:
    values = np.array(list(scores().values()))
    means = values.mean(axis=1)
    result: dict[str, Any] = {
        "placements": len(values),
        "seeds": values.shape[1],
        "best": max(scores(), key=lambda name: float(np.mean(scores()[name]))),
        "near": int((means >= means.max() - NEAR).sum()),
        "reliability": {**vars(audit()), "ranks": audit().ranks},
        "methods": {},
    }
    print(result, flush=True)
    with multiprocessing.get_context("fork").Pool(processes, threadpool_limits, (1,)) as pool:
        for name in NAMES:
            runs = np.array(pool.map(regrets, [(name, run) for run in range(RUNS)], chunksize=1))
            method = summary(runs, np.random.default_rng(0), NEAR)
            result["methods"][name] = {"title": METHODS[name].title, **method}
            near = dict(zip(method["trainings"], method["near"], strict=True))
            print(f"{METHODS[name].title:30} needs {method['needed']} {method['needed_interval']}; {near}")
    return result


def search(seed: int) -> dict[str, Any]:
    """Run a search with a confirmation, and return its verdict."""
    automl = Path(sys.executable).parent / "automl"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AUTOML_CACHE": str(Path(folder) / "cache")}
        environment.pop("MLFLOW_TRACKING_URI", None)
        command = [
            str(automl), "search", "--space", "recall", "--trials", str(TRIALS), "--seed", str(seed),
            "--name", "recall", "--confirm", "--top", "1", "--json",
        ]  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    return {"seed": seed, "seconds": round(seconds, 1), **judge(json.loads(done.stdout.splitlines()[-1]))}


def judge(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what a confirmation concluded, and the layers of its leading finalist."""
    confirmation = verdict["confirmation"]
    finalist = next(v for v in confirmation["variants"] if v["name"] == confirmation["finalist"])
    model = finalist["config"]["model"]
    placement = model["placement"]
    layers = [placement.get(site_name(i), {"type": FULL})["type"] for i in range(model["options"]["depth"])]
    # Controls are trained only where there is a gain to explain.
    named = (c for c in confirmation["comparisons"] if c["variant"].startswith("random placement"))
    random = next(named, None)
    return {
        "search_seconds": verdict["seconds"],
        "verdict": confirmation["verdict"],
        "figures": confirmation["figures"],
        "layers": layers,
        "after_mixing": any(kind in MIXING and FULL in layers[i:] for i, kind in enumerate(layers)),
        "random": random and random["variant"],
        "better_than_random": random is not None and random["lead"]["interval"][0] > 0,
        "lead_over_random": random and random["lead"],
    }


def summarise_searches(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "trials": TRIALS,
        "better": sum(row["verdict"] == "better" for row in rows),
        "better_than_random": sum(row["better_than_random"] for row in rows),
        "after_mixing": sum(row["after_mixing"] for row in rows),
        "seconds": float(np.median([row["seconds"] for row in rows])),
        "searches": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("table", "search"))
    parser.add_argument("--seeds", type=int, default=SEARCHES, help="number of searches")
    parser.add_argument("--anew", action="store_true", help="repeat the searches of the result file")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    file = RESULTS / "recall-cpu.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    parts = {key: results[key] for key in ("table", "search") if key in results}
    if options.part == "table":
        write_values("recall", {**parts, "table": run_table(options.processes)})
        return
    rows = [] if options.anew else parts.get("search", {}).get("searches", [])
    for seed in sorted(set(range(options.seeds)) - {row["seed"] for row in rows}):
        row = search(seed)
        print(row, flush=True)
        rows = sorted([*rows, row], key=lambda row: row["seed"])
        write_values("recall", {**parts, "search": summarise_searches(rows)})


if __name__ == "__main__":
    main()
