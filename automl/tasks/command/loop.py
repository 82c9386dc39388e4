"""Runs a trial that is a command, and measures it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from automl.base.errors import InputError
from automl.config.device import is_gpu
from automl.tasks.command.config import CommandModel, CommandTraining
from automl.tasks.command.metric import find_metric
from automl.trials import supervise
from automl.trials.job import CommandFailed, Job
from search.record import Metrics

OUTPUT, ERRORS, OUT = "stdout.txt", "stderr.txt", "out"  # in the folder of the trial
RESULT = "result.json"  # the metrics of a finished run, which is not repeated
RUN = "run.json"  # the measurement of a run whose metric was not read, for other options of the metric
TAIL = 2000  # characters of output in a message


def train(job: Job) -> Iterator[list[Metrics]]:
    """Run the command of a job. Yield its metrics, as those of one epoch.

    Raises CommandFailed if the command cannot be started, failed, or reported no metric.
    """
    description = job.config.to_json()
    with suppress(OSError, ValueError):
        result = json.loads(job.folder.read(RESULT))
        if result["config"] == description:
            yield [result["metrics"]]
            return
    with _local_folder(job) as folder:
        metrics = _run(job, folder)
    job.folder.write(RESULT, json.dumps({"config": description, "metrics": metrics}).encode())
    yield [metrics]


def _run(job: Job, folder: Path) -> Metrics:
    model, training = job.config.model, job.config.training
    assert isinstance(model, CommandModel)
    assert isinstance(training, CommandTraining)
    out, files = folder / OUT, [folder / OUTPUT, folder / ERRORS]
    arguments = model.arguments(job.config.seed, str(out))
    measured = _measured_before(job, arguments, files)
    if measured is None:
        shutil.rmtree(out, ignore_errors=True)  # an interrupted run may have left files
        out.mkdir(parents=True)
        measured = _supervise(arguments, job.config.data.path, files)
        if "error" in measured:
            raise CommandFailed(f"cannot start {model.command!r}: {measured['error']}", "")
    run = {"arguments": arguments, "training": job.config.to_json()["training"], "measured": measured}
    job.folder.write(RUN, json.dumps(run).encode())
    tail = _tail(files)
    if measured["code"]:
        raise CommandFailed(_exit_reason(measured["code"], tail), tail)
    try:
        value = find_metric(training, files, out)
    except InputError as error:
        raise CommandFailed(str(error), tail) from None
    name = training.reports.name
    metrics = {"epoch": 1, "resource": training.epochs, name: value}
    metrics["seconds"] = measured["seconds"]
    if not is_gpu(job.runtime.device):
        metrics["processor_seconds"] = measured["processor_seconds"]
    return {**metrics, "time": time.time()}


def _measured_before(job: Job, arguments: list[str], files: list[Path]) -> dict[str, Any] | None:
    """Return the measurement of a run whose output is here, if only options of the metric have changed."""
    with suppress(OSError, ValueError, KeyError):
        run = json.loads(job.folder.read(RUN))
        is_other = run["arguments"] == arguments and run["training"] != job.config.to_json()["training"]
        if is_other and run["measured"]["code"] == 0 and all(file.exists() for file in files):
            measured: dict[str, Any] = run["measured"]
            return measured
    return None


def _supervise(arguments: list[str], folder: str | None, files: list[Path]) -> dict[str, Any]:
    """Run a command to its end, and return what `supervise` measured."""
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__, *map(str, files), *arguments],
            stdin=subprocess.PIPE,  # its end stays open as long as this process lives
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **threads},
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise CommandFailed(
            f"the folder {folder} of the command does not exist on this machine", ""
        ) from None
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.read()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()
    if not line:
        raise CommandFailed("the process that watches the command was killed", "")
    measured: dict[str, Any] = json.loads(line)
    return measured


@contextmanager
def _local_folder(job: Job) -> Iterator[Path]:
    """Yield a folder on this machine for the files of a run. Copy its output to the folder of the trial."""
    if job.folder.local is not None:
        job.folder.local.mkdir(parents=True, exist_ok=True)
        yield job.folder.local
        return
    with tempfile.TemporaryDirectory() as temporary:
        try:
            yield Path(temporary)
        finally:
            for name in (OUTPUT, ERRORS):
                if (Path(temporary) / name).exists():
                    job.folder.send(Path(temporary) / name, name)


def _exit_reason(code: int, tail: str) -> str:
    """Return the exit code or the signal, and the last line of the output."""
    what = f"signal {-code}" if code < 0 else f"exit code {code}"
    lines = tail.strip().splitlines()
    return f"{what}: {lines[-1].strip()}" if lines else what


def _tail(files: list[Path]) -> str:
    """Return the end of the output: of standard error, or else of standard output."""
    for file in reversed(files):
        with open(file, "rb") as content:
            content.seek(max(0, file.stat().st_size - TAIL))
            if text := content.read().decode(errors="replace").strip():
                return text
    return ""
