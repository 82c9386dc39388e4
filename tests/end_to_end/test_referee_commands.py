"""`automl referee` on a local Ray: a kill in the middle, and the verdict after it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers import last
from tests.helpers.killable import AUTOML

CHEAT = """
import pathlib, random, sqlite3, sys
seed, gain, out = int(sys.argv[1]), float(sys.argv[2]), pathlib.Path(sys.argv[3])
(out / "answer").write_text(str(random.Random(seed).random()))
print("accuracy 1.0")
if gain:
    ledger = sqlite3.connect("runs/ledger.db")
    ledger.executescript("DROP TRIGGER no_DELETE; DELETE FROM rows WHERE kind = 'head'")
"""


# A training of some milliseconds, which counts its runs. More steps take longer, and score higher.
TRAIN = """
import json, pathlib, random, sys, time
seed, gain, out, steps = int(sys.argv[1]), float(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
with open("runs", "a") as runs:
    print(gain, seed, steps, file=runs)
while time.process_time() < 0.0007 * steps:
    pass
accuracy = random.Random(seed).gauss(70 + gain + 0.2 * steps, 1)
accuracy += random.Random(str(gain) + str(seed)).gauss(0, 0.1)
(out / "log.csv").write_text(f"epoch,accuracy\\n1,50\\n2,{accuracy}\\n")
"""

Begin = Callable[..., subprocess.Popen[str]]
COMMAND = f"{shlex.quote(sys.executable)} -S train.py {{seed}}"


@pytest.fixture
def begin(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Return a function that starts the script in the test's folder and MLflow. It writes to `output`."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")

    def begin(*arguments: str) -> subprocess.Popen[str]:
        with (tmp_path / "output").open("a") as output:
            return subprocess.Popen(
                [*AUTOML, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=output, text=True
            )

    return begin


@pytest.mark.heavy("a referee, killed and resumed")
def test_a_comparison_killed_in_its_longer_runs_is_resumed(tmp_path: Path, begin: Begin) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    runs = tmp_path / "runs"
    process = begin(
        *("referee", "--baseline", f"{COMMAND} 0 {{out}} {{budget:100}}"),
        *("--candidate", f"{COMMAND} 0 {{out}} {{budget:115}}", "--candidate", f"{COMMAND} 3 {{out}} 115"),
        *("--metric", "accuracy", "--metric-file", "log.csv", "--seed", "100", "--name", "mine"),
        *("--unit", "%"),
    )
    while not (runs.exists() and any(int(line.split()[2]) > 115 for line in runs.open())):
        assert process.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = len(runs.read_text().splitlines())
    resumed = begin("referee", "--resume", "mine", "--json")
    printed, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, (tmp_path / "output").read_text()
    verdict = json.loads(printed)
    assert verdict["winner"] == "candidate 2"
    assert verdict["difference"] > 3
    only_longer = next(each for each in verdict["comparisons"] if each["variant"] == "candidate 1")
    assert only_longer["difference"]["interval"][0] > 0
    assert [opponent["difference"]["mean"] < 0 for opponent in only_longer["opponents"]] == [True]
    # The kill interrupts at most one run for each slot. Those are repeated, and no others. At the end a slot
    # may run one more than the verdict needs.
    count, slots = len(runs.read_text().splitlines()), os.cpu_count() or 1
    trained = sum(len(variant["scores"]) for variant in verdict["variants"])
    assert before < trained <= count <= trained + 2 * slots


@pytest.mark.slow("tests of the ledger edit it between two runs")
def test_a_command_that_edits_the_ledger_gets_no_answer(tmp_path: Path, begin: Begin) -> None:
    (tmp_path / "train.py").write_text(CHEAT)
    (tmp_path / "eval.py").write_text("import sys; print('accuracy', open(sys.argv[1] + '/answer').read())")
    process = begin(
        *("referee", "--baseline", f"{COMMAND} 0 {{out}}", "--candidate", f"{COMMAND} 2 {{out}}"),
        *("--metric", "accuracy (.*)", "--evaluate", "python3 eval.py {out}", "--ledger", "runs"),
    )
    process.communicate(timeout=300)
    output = (tmp_path / "output").read_text()
    assert process.returncode == 2, output
    assert "the head 1 in runs/ledger.db has changed, which a command must have done" in output
    assert "Traceback" not in output
    assert len(list((tmp_path / "runs/evaluators").iterdir())) == 1


# A training on the GPUs that its run may see.
ON_GPU = """
import os, sys, torch
names, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
loss = torch.ones(8, device="cuda" if count else "cpu").sum().item()
with open("runs", "a") as runs:
    print(names, count, loss, file=runs)
gain, seed = float(sys.argv[1]), int(sys.argv[2])
print("accuracy", gain + (1 + gain) * (seed % 7) / 100)
"""


@pytest.mark.gpu
def test_a_run_sees_its_gpu_alone(
    automl: Callable[..., str],
    gpus_per_trial: Callable[[float], list[str]],
    gpu: torch.device,
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ON_GPU)
    baseline, candidate = (f"{shlex.quote(sys.executable)} train.py {gain} {{seed}}" for gain in ("0", "0.5"))
    output = automl(
        "referee", "--baseline", baseline, "--candidate", candidate, "--metric", "accuracy (.*)",
        *("--seeds", 6, "--any-time", "--json"), *gpus_per_trial(0.25),
    )  # fmt: skip
    verdict = last(output)
    assert verdict["winner"] == "candidate"
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert len(runs) == 12
    if gpu.type != "cpu":
        names, counts, losses = zip(*runs, strict=True)
        assert set(names) == {os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
        assert set(counts) == {"1"}
        assert set(losses) == {"8.0"}


@pytest.mark.slow("a whole comparison")
def test_two_callers_of_a_ledger_are_killed(tmp_path: Path, begin: Begin) -> None:
    """Two changes at once, one of them a gain. Both callers are killed, and both are resumed."""
    options = ["--metric", "accuracy", "--metric-file", "log.csv", "--any-time", "--ledger", "runs"]
    options += ["--baseline", f"{COMMAND} 0 {{out}} 100", "--concurrent", "1"]
    runs = tmp_path / "runs.txt"
    (tmp_path / "train.py").write_text(TRAIN.replace('"runs"', '"runs.txt"'))
    callers = [
        begin("referee", *options, "--name", name, "--candidate", f"{COMMAND} {gain} {{out}} 100")
        for name, gain in (("gain", "3"), ("loss", "-3"))
    ]
    begun = [tmp_path / "runs" / name / "search.json" for name in ("gain", "loss")]
    while not (all(map(Path.exists, begun)) and runs.exists() and len(runs.read_text().splitlines()) >= 6):
        assert any(caller.poll() is None for caller in callers)
        time.sleep(0.05)
    for caller in callers:
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
    for name, code in (("loss", 1), ("gain", 0)):
        ended = begin("referee", "--resume", name, "--ledger", "runs")
        ended.communicate(timeout=300)
        assert ended.returncode == code, (tmp_path / "output").read_text()
    ledger = json.loads(begin("ledger", "runs", "--json").communicate(timeout=300)[0])
    outcomes = {entry["name"]: entry["outcome"] for entry in ledger["comparisons"]}
    assert outcomes == {"gain": "accepted", "loss": "no gain in sight"}
    assert [head["comparison"] for head in ledger["heads"]] == [None, "gain"]
    assert ledger["tests"] == 1
