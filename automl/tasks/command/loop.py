"""Runs a trial that is a command, measures it, and finds the metric that it printed or wrote into a file."""

import csv
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.text import read_text
from automl.storage.trial_files import LEFT_FILE
from automl.tasks.command import CommandModel, CommandTraining
from automl.tasks.command.commits import with_imports
from automl.tasks.command.evaluator import delete, evaluating, pack, unpack, watching
from automl.trials import match_output, supervise
from automl.trials.job import CommandFailed, Interrupted, Job
from search.record import NOT_STARTED, Metrics

OUTPUT, ERRORS, OUT = "stdout.txt", "stderr.txt", "out"  # in the folder of the trial
EVALUATED = ("evaluator-stdout.txt", "evaluator-stderr.txt")  # beside them
RESULT = "result.json"  # the metrics of a finished run, which is not repeated
RUN = "run.json"  # the measurement of a run that has ended, which is not repeated
# Variables that Ray and this program set for workers, and that would tell a command that it is judged.
MARKS = re.compile(
    "(RAY_|TUNE_).*|SPT_NOENV|PYTHONBREAKPOINT=ray.*|(GLOO|NCCL)_SOCKET_IFNAME=lo0?", re.DOTALL
)
TAIL = 2000  # characters of output in a message
PATIENCE = 30.0  # time of a search for a pattern [s]
STOPS, GRACE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM), 2.0  # signals to all processes of a job [s]
LISTED = 20  # largest number of columns in a message


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
    arguments = model.arguments(job.config.seed, str(out), job.config.longer)
    try:
        if (run := _run_before(job, arguments, files)) is None:
            run = {"arguments": arguments, **_run_once(job, model, training, arguments, folder)}
            job.folder.write(RUN, json.dumps(run).encode())
        else:
            unpack(out)
        return _read_metrics(job, run, folder, training)
    finally:
        if job.folder.local is not None:  # other runs must not continue from what they find there
            pack(out)


def _run_once(
    job: Job, model: CommandModel, training: CommandTraining, arguments: list[str], folder: Path
) -> dict[str, Any]:
    """Run a command, and return its measurement, or the reason why it has none."""
    out, directory = folder / OUT, job.config.data.path
    delete(out)  # an interrupted run may have left files
    out.mkdir(parents=True)
    try:
        with watching(training.guard, Path(directory or "."), folder) as left:
            files = [folder / OUTPUT, folder / ERRORS]
            measured = _supervise(job, arguments, directory, files, training.imports)
    except CommandFailed as failure:
        if str(failure).startswith(NOT_STARTED):
            raise
        return {"refused": str(failure)}
    job.folder.write(LEFT_FILE, json.dumps(left).encode())
    if "error" in measured:
        raise CommandFailed(f"{NOT_STARTED} {model.command!r}: {measured['error']}")
    if -measured["code"] in STOPS:
        _wait_for_end(job)
    return {"measured": measured}


def _read_metrics(job: Job, run: dict[str, Any], folder: Path, training: CommandTraining) -> Metrics:
    """Return the metrics of a run that has ended. Raise CommandFailed if it failed."""
    if "refused" in run:
        raise CommandFailed(run["refused"])
    guard, measured = training.guard, run["measured"]
    out, files = folder / OUT, [folder / OUTPUT, folder / ERRORS]
    tail = _tail(files)
    if measured["code"]:
        raise CommandFailed(_exit_reason(measured["code"], tail), tail)
    if guard.evaluate:
        files = [folder / name for name in EVALUATED]
        with evaluating(guard, job.config.seed, out) as (words, copy):
            code = _supervise(job, words, copy, files)["code"]
        tail = _tail(files)
        if code:
            raise CommandFailed(f"--evaluate failed with {_exit_reason(code, tail)}", tail)
    try:
        value = find_metric(training, files, out)
    except InputError as error:
        raise CommandFailed(str(error), tail) from None
    name = training.reports.name
    metrics = {"epoch": 1, "resource": training.epochs, name: value}
    metrics["seconds"] = measured["seconds"]
    if job.runtime is None or job.runtime.device.type == "cpu":
        metrics["processor_seconds"] = measured["processor_seconds"]
    return {**metrics, "time": time.time()}


def _run_before(job: Job, arguments: list[str], files: list[Path]) -> dict[str, Any] | None:
    """Return a run that has ended before the answer was written."""
    # If it failed, it has failed: a second one could be luckier. A run that was interrupted has no such file.
    with suppress(OSError, ValueError, KeyError):
        run: dict[str, Any] = json.loads(job.folder.read(RUN))
        if run["arguments"] == arguments and ("refused" in run or all(file.exists() for file in files)):
            return run
    return None


def _wait_for_end(job: Job) -> None:
    """Wait for a moment. If all processes got a signal, this one ends, and the run was interrupted."""
    if job.stop is None:
        time.sleep(GRACE)
    elif select.select([job.stop], [], [], GRACE)[0]:
        raise Interrupted


def _supervise(
    job: Job, arguments: list[str], folder: str | None, files: list[Path], imports: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a command to its end, and return what `supervise` measured. Raise Interrupted if it must end."""
    first = [Path(os.path.normpath(Path(folder or ".", path))) for path in imports]
    environment = with_imports(first).items()
    own = {name: value for name, value in environment if not MARKS.fullmatch(f"{name}={value}")}
    threads = {"OMP_NUM_THREADS": str(_count_threads() if job.threads is None else job.threads)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__, *map(str, files), *arguments],
            stdin=subprocess.PIPE,  # its end stays open as long as this process lives
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**own, **threads},
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise CommandFailed(
            f"{NOT_STARTED}, since the folder {folder} of the command does not exist on this machine"
        ) from None
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if job.stop is not None:
            either: list[Any] = [process.stdout, job.stop]
            ready, _, _ = select.select(either, [], [])
            if process.stdout not in ready:
                process.stdin.close()
                process.stdout.read()  # until all processes of the command have ended
                raise Interrupted
        line = process.stdout.read()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()
    if not line:
        _wait_for_end(job)
        raise CommandFailed("the process that watches the command was killed", "")
    return dict(json.loads(line))


def _count_threads() -> int:
    import torch  # in a worker of Ray, which has imported it

    return torch.get_num_threads()


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
            for name in (OUTPUT, ERRORS, *EVALUATED):
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


def find_metric(training: CommandTraining, printed: Iterable[Path], out: Path) -> float:
    """Return the metric that a command reported, in the folder `out` of its run or in what it `printed`.

    Loggers print to standard error, the second file of `printed`. Raises InputError if the metric is missing,
    not a finite number, or was printed more than once.
    """
    if training.metric_file:
        text = _read_file(out / training.metric_file, training)
    else:
        text = _find_printed(training, printed)
    number = text.strip().rstrip(".,;%")
    try:
        value = float("_" if "_" in number else number)  # Python reads 0_5 as 5
    except ValueError:
        raise InputError(f"--metric {training.metric!r} is {text!r}, which is no number") from None
    if "%" in text and training.reports.unit != "%":
        raise InputError(
            f"--metric {training.metric!r} is {text.strip()!r}; print percentages with all commands and give "
            f"--unit %, or print fractions"
        )
    if not isfinite(value):
        raise InputError(f"the metric {training.metric_name} became {text.strip()}")
    return value


def _find_printed(training: CommandTraining, printed: Iterable[Path]) -> str:
    who = "--evaluate" if training.guard.evaluate else "the command"
    for file in printed:
        values = list(_match(training.metric, file) if training.is_pattern else _keys(training.metric, file))
        if len(values) > 1 and not training.last:
            raise InputError(
                f"{who} printed --metric {training.metric!r} {len(values)} times ({values[0]}, ..., "
                f"{values[-1]}); print it once, or add --last to use the last one"
            )
        if values:
            return values[-1]
    if training.is_pattern:
        raise InputError(f"{who} printed no metric: no line matches --metric {training.metric!r}")
    raise InputError(
        f"{who} printed no metric: no line is a JSON object with the key {training.metric!r}. For other "
        f"lines, pass a regular expression with a group, as in --metric '{training.metric}=(.*)'"
    )


def _match(pattern: str, file: Path) -> Iterator[str]:
    program = [sys.executable, "-I", "-S", match_output.__file__, pattern, str(file)]
    try:
        printed = subprocess.run(program, capture_output=True, check=True, timeout=PATIENCE).stdout
    except subprocess.TimeoutExpired:
        raise InputError(
            f"--metric {pattern!r} was not found in {PATIENCE:.0f} s; repeat no group that repeats something "
            f"itself, as in (x+)+"
        ) from None
    for value, cut in json.loads(printed):
        if cut is not None:
            raise InputError(f"--metric {pattern!r} cuts off the exponent of {cut}; use (\\S+) instead")
        yield value


def _keys(key: str, file: Path) -> Iterator[str]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                value = json.loads(line) if line.lstrip().startswith("{") else None
                if isinstance(value, dict) and key in value:
                    yield _text(value[key])


def _text(value: object) -> str:
    return "" if value is None else str(value) if type(value) in (int, float, str) else repr(value)


def _read_file(file: Path, training: CommandTraining) -> str:
    """Return the value in the last row of a CSV file, or in the last line of a JSON file, that has one."""
    name = training.metric_file
    try:
        content = read_text(file, errors="replace")
    except OSError as error:
        raise InputError(
            f"the command wrote no --metric-file {name} into its folder ({error.strerror}); it must write "
            f"below the path that replaces {{out}}"
        ) from None
    rows: list[dict[str, str]] = []
    if content.lstrip().startswith("{"):
        try:
            values = [json.loads(content)]
        except (ValueError, RecursionError):
            values = []
            for line in content.splitlines():
                with suppress(ValueError, RecursionError):  # a log may have lines of other kinds
                    values.append(json.loads(line))
        rows = [{key: _text(v) for key, v in value.items()} for value in values if isinstance(value, dict)]
    else:
        table = csv.reader(content.splitlines(), skipinitialspace=True)
        try:
            header = [column.strip() for column in next(table, [])]
            rows = [dict(zip(header, row, strict=False)) for row in table]
        except csv.Error as error:  # such as a field of more than 131,072 characters
            raise InputError(f"--metric-file {name} cannot be read as CSV: {error}") from None
    reported = [row[training.metric] for row in rows if row.get(training.metric, "").strip()]
    if not reported:
        known = list(dict.fromkeys(key for row in rows for key in row))
        raise InputError(
            f"--metric-file {name} has no value of {training.metric!r}; it has "
            f"{', '.join(known[:LISTED]) or 'no rows'}"
        )
    return reported[-1]
