"""`automl referee` on a local Ray: a kill in the middle, the verdict, and the commands that read it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

AUTOML = Path(sys.executable).parent / "automl"

# A training of some milliseconds. It counts its runs, and one seed of the candidate fails at first.
TRAIN = """
import json, pathlib, random, sys, time
seed, gain, out = int(sys.argv[1]), float(sys.argv[2]), pathlib.Path(sys.argv[3])
with open("runs", "a") as runs:
    print(gain, seed, file=runs)
time.sleep(0.1)
if gain and seed == 101 and not pathlib.Path("fixed").exists():
    raise SystemExit("out of luck")
accuracy = random.Random(seed).gauss(90 + gain, 1) + random.Random(str(gain) + str(seed)).gauss(0, 0.1)
(out / "log.csv").write_text(f"epoch,accuracy\\n1,50\\n2,{accuracy}\\n")
"""


def test_a_killed_comparison_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    train = f"{shlex.quote(sys.executable)} -S train.py {{seed}}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [AUTOML, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    begin = [
        *(AUTOML, "referee", "--baseline", f"{train} 0 {{out}}", "--candidate", f"{train} 2 {{out}}"),
        *("--metric", "accuracy", "--metric-file", "log.csv", "--seed", "100", "--name", "mine"),
        *("--equal", "none", "--unit", "%"),
    ]
    runs = tmp_path / "runs"
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(begin, cwd=tmp_path, env=environment, stdout=output, stderr=output)
        until = time.monotonic() + 120
        while not (runs.exists() and len(runs.read_text().splitlines()) >= 7):
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = runs.read_text().splitlines()
    assert run("status", "mine").stdout.splitlines()[0].startswith("search    mine: stopped")

    failed = run("referee", "--resume", "mine")
    assert failed.returncode == 2, failed.stderr
    assert "candidate failed with seed 101: exit code 1: out of luck" in failed.stdout
    (tmp_path / "fixed").touch()
    resumed = run("referee", "--resume", "mine", "--json")
    assert resumed.returncode == 0, resumed.stderr
    verdict = json.loads(resumed.stdout)
    assert verdict["winner"] == "candidate"
    assert verdict["difference"] > 1

    # The kill interrupts at most one run for each slot, and the failed one is repeated twice.
    count = len(runs.read_text().splitlines())
    trained = sum(len(variant["scores"]) for variant in verdict["variants"])
    assert trained <= count <= trained + (os.cpu_count() or 1) + 2
    assert len(before) >= 7

    report = run("report", "--search", "mine")
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "searches" / "mine" / "report" / "index.html").read_text()
    assert "candidate beats the baseline" in page
    assert "artifacts in report/" in report.stdout, "the run in MLflow has it"
