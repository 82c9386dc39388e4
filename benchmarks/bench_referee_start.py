"""Measure how soon a referee begins, what its lists cost, and how long a ledger of five changes takes.

The training is a script that computes for 0.7 s of processor time and prints a score, whose noise depends on
the seed. Changes differ in its options: two are clear gains, one is a clear loss, one changes nothing, one
has other random numbers. A gain is eight standard deviations of the noise, which anybody would see at once.

- `first run`: seconds by the clock from the command to the first line of the first run.
- `status`, `searches`, `ledger`: processor seconds of the command, with all processes that it starts.
- `change ...`: seconds by the clock, runs and outcome of each change, and the sum of the seconds.

Everything is in a new folder with a MLflow of its own. Takes two minutes on two idle cores.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import write_values

SECONDS, NOISE, GAIN = 0.7, 0.005, 0.04  # of a run; standard deviation of a score; a clear difference
METRIC = ["--metric", "acc=(.*)", "--any-time"]
REPEATS = 5
PROGRAM = Path(sys.executable).with_name("automl")
TRAINING = f"""
import argparse, random, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--gain", type=float, default=0.0)
parser.add_argument("--draw", default="same")
parser.add_argument("--mark")
asked = parser.parse_args()
if asked.mark:
    with open(asked.mark, "a") as file:
        file.write(f"{{time.time()}}\\n")
while time.process_time() < {SECONDS}:
    sum(i * i for i in range(10_000))
noise = random.Random(f"{{asked.draw}} {{asked.seed}}").gauss(0, {NOISE})
print(f"acc={{0.8 + asked.gain + noise:.5f}}")
"""
CHANGES = {
    "change with a gain": f"--gain {GAIN}",
    "change with a loss": "--gain 0.0",
    "change of nothing": f"--gain {GAIN} --draw same",
    "change with other random numbers": f"--gain {GAIN} --draw other",
    "change with another gain": f"--gain {2 * GAIN}",
}


def run(folder: Path, *words: str) -> tuple[float, float, str]:
    """Run `automl`. Return its seconds by the clock, its processor seconds, and what it printed."""
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, os.times()
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, spent, done.stdout


def command(options: str = "") -> str:
    return f"{shlex.quote(sys.executable)} train.py --seed {{seed}} {options}".strip()


def measure_first_run(folder: Path, mark: Path) -> float:
    """Return the seconds from `automl referee` to the first line of its first run."""
    mark.unlink(missing_ok=True)
    baseline, candidate = command(f"--mark {mark}"), command(f"--gain {GAIN} --mark {mark}")
    words = ["referee", "--baseline", baseline, "--candidate", candidate, *METRIC]
    begin = time.time()
    run(folder, *words)
    return min(map(float, mark.read_text().split())) - begin


def judge_changes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return seconds, runs and outcome of each change of a new ledger."""
    rows, baseline = {}, ["--baseline", command()]
    for name, options in CHANGES.items():
        words = ["referee", "--ledger", "runs", *baseline, "--candidate", command(options)]
        seconds, processor, _ = run(folder, *words, *METRIC)
        last = json.loads(run(folder, "ledger", "runs", "--json")[2])["comparisons"][-1]
        rows[name] = {
            "seconds": round(seconds, 1),
            "processor seconds": round(processor, 1),
            "runs": last["trainings"],
            "outcome": last["outcome"],
        }
        print(f"{name}: {rows[name]}", flush=True)
        baseline = []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each short measurement")
    asked = parser.parse_args()
    values: dict[str, Any] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING)
        starts = [measure_first_run(folder, folder / "mark") for _ in range(asked.repeats)]
        values["first run"] = describe(starts)
        print(f"first run: {values['first run']}", flush=True)
        changes = judge_changes(folder)
        for words in (["status"], ["searches"], ["ledger", "runs"]):
            values[words[0]] = describe([run(folder, *words)[1] for _ in range(asked.repeats)])
            print(f"{words[0]}: {values[words[0]]}", flush=True)
        total = sum(row["seconds"] for row in changes.values())
        values["ledger of five changes"] = {"seconds": round(total, 1), "changes": changes}
    print(f"ledger of five changes: {total:.1f} s")
    write_values("referee-start", values)


def describe(seconds: list[float]) -> dict[str, float]:
    """Return the median and the largest of several times."""
    return {"median": round(statistics.median(seconds), 2), "largest": round(max(seconds), 2)}


if __name__ == "__main__":
    main()
