"""Trials that are commands: the metric, the measured time, and the end of all processes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.tasks.command import COMMAND, CommandModel, CommandTraining, loop
from automl.tasks.command.loop import train
from automl.trials import supervise
from automl.trials.job import CommandFailed, Job, classify_error
from search.config import Data, TrialConfig
from search.metric import Metric
from search.record import Metrics

HERE = Runtime(device=torch.device("cpu"))
DEEP = '{"a":' * 20_000
LOGGED = "epoch,train,val_acc\n1,0.1,0.5\n2,0.2,0.75\n3,0.3,\n"


def python(program: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-S", "-c", program, *arguments])


def run(folder: Path, command: str, seed: int = 7, **training: Any) -> Metrics:
    """Run a command as a trial, and return its metrics."""
    reports = Metric(name="acc", maximize=True, margin=0)
    trial = Storage(training.pop("storage", str(folder / "trial")))
    training = {"epochs": 1, "metric": "acc=(.*)", "reports": reports} | training
    config = TrialConfig(
        task=COMMAND,
        data=Data(path=str(folder)),
        model=CommandModel(command=command),
        training=CommandTraining(**training),
        seed=seed,
    )
    job = Job(config=config, runtime=HERE, folder=trial, test=True)
    (history,) = train(job)
    (metrics,) = history
    assert job.is_spent(history)
    return metrics


def test_other_options_of_the_metric_read_the_same_output(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[1], 'a').write('x'); print('acc=0.75')"
    command = python(program, str(tmp_path / "runs"), "{seed}")
    for _ in range(2):
        with pytest.raises(CommandFailed, match="the command printed no metric"):
            run(tmp_path, command, metric="accuracy=(.*)")
    assert run(tmp_path, command)["acc"] == 0.75
    assert (tmp_path / "runs").read_text() == "x"


def prints(*lines: str, to: str = "stdout") -> str:
    return python(f"import sys; sys.{to}.write(sys.argv[1])", "\n".join((*lines, "seed {seed}", "")))


def writes(content: str, times: int = 1) -> str:
    """Return a command that writes content, with its last character several times."""
    text = f"sys.argv[2] + sys.argv[2][-1] * {times - 1}"
    program = f"import pathlib, sys; pathlib.Path(sys.argv[1], 'log').write_text({text})"
    return python(program, "{out}", content, "{seed}")


@pytest.mark.parametrize(
    ("command", "training"),
    [
        (prints("loss=3", "acc=0.75"), {}),
        (prints("epoch 1 acc=0.75, loss=2"), {"metric": r"acc=([\d.]+)"}),
        (prints("acc=0.75."), {"metric": r"acc=([\d.]+)"}),
        (prints("progress 50 %\racc=0.75"), {}),
        (prints("acc=7.5e-1"), {}),
        (prints("acc=0.5", "acc=0.75"), {"last": True}),
        (prints("INFO acc=0.75", to="stderr"), {}),
        (prints('{"loss": 1}', "{no JSON}", '{"val/acc": 0.75}'), {"metric": "val/acc"}),
        (prints("\ufeff caf\u00e9 acc=0.75"), {}),
    ],
)
def test_metric_in_the_output(tmp_path: Path, command: str, training: dict[str, Any]) -> None:
    assert run(tmp_path, command, **training)["acc"] == 0.75


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (LOGGED, "val_acc"),
        (LOGGED.replace(",", ", "), "val_acc"),
        ('{"epoch": 1, "acc": 0.5}\n{"epoch": 2, "acc": 0.75}\n', "acc"),
        ('{\n  "acc": 0.75\n}', "acc"),
        ("metrics/mAP50(B)\n0.75\n", "metrics/mAP50(B)"),
    ],
)
def test_metric_in_a_file(tmp_path: Path, content: str, key: str) -> None:
    assert run(tmp_path, writes(content), metric=key, metric_file="log")["acc"] == 0.75


@pytest.mark.parametrize(
    ("command", "training", "reason"),
    [
        (prints("loss=3"), {}, r"printed no metric: no line matches --metric 'acc=\(\.\*\)'"),
        (prints("loss=3"), {"metric": "acc"}, r"JSON object with the key 'acc'. .* --metric 'acc=\(\.\*\)'$"),
        (prints("acc=1", "acc=2"), {}, r"printed --metric .* 2 times \(1, ..., 2\); .* add --last"),
        (prints("acc=1.2e-05 s"), {"metric": r"acc=([\d.]+)"}, r"cuts off the exponent of 1.2e-05; use"),
        ("no-such-program {seed} db://me:pw@host", {}, r"^cannot start .* db://\*\*\*@host': No such"),
        (prints("acc=high"), {}, "is 'high', which is no number"),
        (prints("acc=0_5"), {}, "is '0_5', which is no number"),
        (prints("acc=75%"), {}, "is '75%'; print percentages with all commands and give --unit %, or print"),
        (prints(DEEP, "loss=3"), {"metric": "acc"}, "no line is a JSON object with the key 'acc'"),
        (writes(DEEP), {"metric_file": "log"}, "has no value of"),
        (writes("acc\n1", times=200_000), {"metric_file": "log"}, "log cannot be read as CSV: field larger"),
        (prints("x" * 40), {"metric": "(x+)+y"}, "was not found in 1 s; repeat no group that repeats"),
        (prints("acc=nan"), {}, "the metric acc became nan"),
        (writes(LOGGED), {"metric": "acc", "metric_file": "log"}, "no value of 'acc'; it has epoch, train"),
        (prints(), {"metric_file": "log.csv"}, "wrote no --metric-file log.csv into its folder"),
        (python("raise ValueError({seed})"), {}, "^exit code 1: ValueError: 7$"),
        (python("import os; os.kill(os.getpid(), 9 + 0 * {seed})"), {}, "^signal 9$"),
    ],
)
def test_failed_commands(
    tmp_path: Path, command: str, training: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PATIENCE", 1.0)
    with pytest.raises(CommandFailed) as raised:
        run(tmp_path, command, **training)
    report = classify_error(raised.value, Storage(str(tmp_path)))
    assert re.search(reason, report.error or "")
    assert "Traceback" not in (report.traceback or "") or "ValueError" in report.error


def test_only_placeholders_are_replaced(tmp_path: Path) -> None:
    program = """
import os, sys
print(*sys.argv[1:], os.getcwd(), os.environ["OMP_NUM_THREADS"], sep="|")
print("acc=1")
"""
    run(tmp_path, python(program, '{"lr": {x}, "seed": {seed}}', "{out}/a b"), seed=12)
    received = (tmp_path / "trial" / "stdout.txt").read_text().splitlines()[0].split("|")
    out = tmp_path / "trial" / "out"
    assert received == ['{"lr": {x}, "seed": 12}', f"{out}/a b", str(tmp_path), str(torch.get_num_threads())]


def test_runs_are_not_repeated_or_continued(tmp_path: Path) -> None:
    command = python("import time; print(f'acc={time.time_ns()}')", "{seed}")
    first = run(tmp_path, command)
    assert run(tmp_path, command) == first
    assert run(tmp_path, command, seed=8) != first
    (tmp_path / "trial" / "out").mkdir(parents=True)
    (tmp_path / "trial" / "out" / "log").write_text(LOGGED)
    with pytest.raises(CommandFailed, match="wrote no --metric-file"):
        run(tmp_path, prints("{out}"), metric="val_acc", metric_file="log")


def test_output_is_kept_in_an_object_store(tmp_path: Path) -> None:
    storage = f"file://{tmp_path / 'store' / 'trial'}"
    with pytest.raises(CommandFailed):
        run(tmp_path, prints("loss=3"), storage=storage)
    assert (tmp_path / "store" / "trial" / "stdout.txt").read_text().startswith("loss=3")
    command = python("import time; print(f'acc={time.time_ns()}')", "{seed}")
    assert run(tmp_path, command, storage=storage) == run(tmp_path, command, storage=storage)


def test_processor_time_is_that_of_all_processes(tmp_path: Path) -> None:
    """Count children, and a process that was left behind in a session of its own."""
    burn = "import time\nwhile time.process_time() < {}: pass"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-S', '-c', {burn.format(0.3)!r}])
left = subprocess.Popen([sys.executable, '-S', '-c', {burn.format(0.2)!r}], start_new_session=True)
child.wait()
while open(f'/proc/{{left.pid}}/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
print('acc=1')
"""
    metrics = run(tmp_path, python(program, "{seed}"))
    assert 0.5 <= metrics["processor_seconds"] < 1.5
    assert metrics["seconds"] > 0


def test_all_processes_end_with_the_caller(tmp_path: Path) -> None:
    """Also those in a session of their own, if the caller was killed."""
    inner = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    run_inner = f"subprocess.run([sys.executable, '-S', '-c', {inner!r}], start_new_session=True)"
    outer = f"import subprocess, sys; {run_inner}"
    arguments = [sys.executable, "-I", "-S", supervise.__file__, "out", "err", *shlex.split(python(outer))]
    caller = (
        f"import subprocess, time; subprocess.Popen({arguments!r}, stdin=subprocess.PIPE); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", caller], cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    file = tmp_path / "pid"
    _wait(lambda: file.exists() and file.read_text())
    inner_pid = int(file.read_text())
    for child in psutil.Process(process.pid).children():  # as Ray does with the children of a worker
        child.kill()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _wait(lambda: not Path(f"/proc/{inner_pid}").exists())


def _wait(condition: Any) -> None:
    while not condition():  # The timeout of each test ends it.
        time.sleep(0.01)


def test_the_length_of_a_training() -> None:
    model = CommandModel(command="train {seed} --for={budget} 'a {budget:1000}' {budget:7} {\"b\":1}")
    assert [*model.problems()] == []
    assert model.arguments(3, "out") == ["train", "3", "--for=1", "a 1000", "7", "{b:1}"]
    assert model.arguments(3, "out", 1.1) == ["train", "3", "--for=1.1", "a 1100", "8", "{b:1}"]
