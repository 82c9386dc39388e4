"""Check pull requests that change nothing, and such that gain one standard deviation of a run.

The training is that of `docs/examples/pull-requests`, with its steps shortened from 300,000 to 400: some
20 seconds become a few hundredths. Its score still varies with the seed as that of a training does. A pull
request without effect draws other random numbers, so its scores are independent of the base's at the same
seed. One with a gain also adds one standard deviation of the score to what it prints.

`decide` judges comparisons as `automl referee` does, whose scores are of that training in this process, for
several largest numbers of pairs. `full` runs the steps of `action.yml` on a git repository of the example:
two working copies, a process for each run, MLflow. Minutes are those of runs of 20 s on two cores.

    python benchmarks/bench_pull_requests.py decide    # five minutes on one core
    python benchmarks/bench_pull_requests.py full --count 20    # continues where it stopped
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bench_referee import DESIGN, VARIANTS
from harness import RESULTS, write_values

from automl.judge.judge import judge
from automl.judge.scores import Scores, TrainingCost

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "pull-requests"
sys.path += [str(EXAMPLE), str(ROOT / "scripts")]

import run_action  # noqa: E402
import train  # type: ignore[import-not-found]  # noqa: E402

STEPS = 400
BANK = 3000  # runs from which scores are drawn
PAIRS = (10, 16, 20, 24)  # largest numbers of pairs; 45 pairs of 20 s take 15 minutes on two cores
COUNT, REPEATED = 100, 2000  # comparisons, and those that show a rate to a point
SECONDS, CORES = 20, 2
HEAD = ("name", "device", "versions", "command")  # of the file of results
KEPT = RESULTS / "pull-requests-cpu.json"


@cache
def bank() -> np.ndarray:
    """Return the scores of many trainings, in points."""
    return np.array([100 * train.train(seed, STEPS) for seed in range(BANK)])


def decide(pairs: int, gain: float, count: int) -> dict[str, Any]:
    """Return the outcomes of comparisons with at most so many pairs, and the distribution of their runs."""
    rng, outcomes, runs = np.random.default_rng(pairs), Counter[str](), []
    scores, size = bank(), gain * bank().std(ddof=1)
    design = replace(DESIGN, seeds=range(pairs), equal="none")
    for _ in range(count):
        drawn = rng.choice(scores, (2, pairs), replace=False) + np.array([[0.0], [size]])
        scored = {
            variant.name: Scores(
                scores=dict(enumerate(values.tolist())), costs={i: TrainingCost() for i in range(pairs)}
            )
            for variant, values in zip(VARIANTS, drawn, strict=True)
        }
        verdict = judge(design, VARIANTS, scored)
        outcomes[str(verdict.final)] += 1
        runs.append(2 * len(verdict.used))
    return {"outcomes": dict(sorted(outcomes.items())), **describe(runs)}


def describe(runs: list[int]) -> dict[str, Any]:
    """Return the distribution of the numbers of runs, and of the minutes that they take."""
    quantiles = {f"{q:.0%}": float(np.quantile(runs, q)) for q in (0.1, 0.5, 0.9, 1.0)}
    minutes = {name: round(count * SECONDS / CORES / 60, 1) for name, count in quantiles.items()}
    return {
        "runs": {"mean": round(float(np.mean(runs)), 1), **quantiles},
        "minutes": {"mean": round(float(np.mean(runs)) * SECONDS / CORES / 60, 1), **minutes},
    }


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def make_repository(folder: Path) -> None:
    """Make a repository of the example, with its training shortened."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "train.py").write_text((EXAMPLE / "train.py").read_text())
    (folder / ".gitignore").write_text("__pycache__/\nsearches/\nmlruns/\nmlflow.db*\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Train a network")


def commit_change(folder: Path, number: int, size: float) -> None:
    """Commit a change that draws other random numbers, and adds `size` to the score."""
    git(folder, "switch", "--quiet", "--force-create", f"change-{number}-{size > 0:d}", "main")
    text = (EXAMPLE / "train.py").read_text()
    text = text.replace("default_rng(seed)", f"default_rng([seed, {number + 1}])")
    text = re.sub(r"\{(100 \* train\(.*?\))(:\.2f\})", rf"{{\1 + {size:.4f}\2", text)
    (folder / "train.py").write_text(text)
    git(folder, "commit", "--quiet", "--all", "--message", f"Change {number}")


def check_pull_request(folder: Path) -> dict[str, Any]:
    """Run the action on the newest commit. Return the verdict, its runs, and the time that it took."""
    start = time.perf_counter()
    inputs = {"command": f"{sys.executable} train.py --steps {STEPS} --seed {{seed}}", "metric": "acc=(.*)"}
    program = Path(sys.executable).with_name("automl")
    inputs |= {"program": str(program), "options": "--any-time\n--concurrent=1"}
    ended = run_action.run_action(inputs, folder)
    cost = re.search(r"Cost: (\d+) runs?, ", ended.summary)
    if cost is None or ended.code not in (0, 3):
        raise RuntimeError(ended.printed)
    seconds = round(time.perf_counter() - start, 1)
    return {"verdict": ended.outputs["verdict"], "runs": int(cost[1]), "seconds": seconds}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return comparisons with their number, their outcomes, and the distribution of their runs."""
    return {
        "count": len(rows),
        "outcomes": dict(sorted(Counter(row["verdict"] for row in rows).items())),
        **describe([row["runs"] for row in rows]),
        "each": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("decide", "full"))
    parser.add_argument("--count", type=int, default=COUNT, help="comparisons of each kind, with full")
    parser.add_argument("--folder", type=Path, default=Path("pull-requests"), help="of the repository")
    asked = parser.parse_args()
    values: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    values = {name: value for name, value in values.items() if name not in HEAD}
    if asked.what == "decide":
        values["noise"] = {"mean": round(float(bank().mean()), 2), "sd": round(float(bank().std(ddof=1)), 3)}
        for pairs in PAIRS:
            for gain in (0.0, 1.0):
                for count in (COUNT, REPEATED):
                    case = f"{count} comparisons, at most {pairs} pairs, gain of {gain:g} sd"
                    if case not in values:
                        values[case] = decide(pairs, gain, count)
                        print(f"{case}: {values[case]}", flush=True)
                        write_values("pull-requests", values)
        return
    folder = asked.folder.resolve()
    if not folder.exists():
        make_repository(folder)
    for number in range(asked.count):
        for gain in (0, 1):
            case = f"full path, gain of {gain} sd"
            rows = values.setdefault(case, {"each": []})["each"]
            if len(rows) > number:
                continue
            commit_change(folder, number, gain * values["noise"]["sd"])
            rows.append(check_pull_request(folder))
            print(gain, number, rows[-1], flush=True)
            values[case] = summarise(rows)
            write_values("pull-requests", values)


if __name__ == "__main__":
    main()
