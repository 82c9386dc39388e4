"""Trains one configuration without a search, with the options of SimpleSelfAttention's training script."""

import csv
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from attention import Spec
from automl.base.errors import InputError
from automl.base.escape import shell
from automl.base.options import with_keywords_of
from automl.base.text import check_name
from automl.base.units import pluralize
from automl.config.device import SHARING, find_device
from automl.config.runtime import Runtime
from automl.storage.metadata import collect_provenance
from automl.storage.storage import Storage
from automl.storage.user_code import check_trusted, remember
from automl.task import Task, open_task
from automl.task.checks import check_attentions
from automl.tracking.run_spec import RunSpec, source
from automl.tracking.tracker import MlflowSilent, SilentWriter, Tracker, Writes
from automl.tracking.writer import MlflowWriter
from automl.training import checkpoint
from automl.training.loop import Diverged
from automl.trials.job import Job, train
from automl.trials.multi_worker import train_on_workers
from automl.trials.train_options import RunOptions, TrainArguments
from backbones import sites
from search import record
from search.config import TrialConfig
from search.metric import Metric
from search.record import CHECKPOINT_FILE, Metrics


@dataclass(frozen=True)
class TrainResult:
    """Finished training.

    Attributes:
        run_id: ID of its run in MLflow. None if MLflow did not accept it.
        checkpoint: Path of its checkpoint.
        history: Metrics of each epoch.
        user_code: Names of the user code that runs when its model is exported.
        metrics: Metrics of the task.

    Example:
        After the example of `run_train`:

        >>> trained.checkpoint.is_file()
        True
    """

    run_id: str | None
    checkpoint: Path
    history: list[Metrics]
    user_code: Sequence[str] = ()
    metrics: Sequence[Metric] = ()


def insert_attention(config: TrialConfig, spec: Spec, site: str | None = None) -> TrialConfig:
    """Return `config` with one attention module, at `site` or at the default site."""
    if site is None:  # that of SimpleSelfAttention's module, the last branch of stage 1
        task = open_task(config, Runtime(device=torch.device("cpu")))
        names = [each.name for each in sites(task.model(), task.example(2))]
        branches = [name for name in names if name.startswith("stage1.") and "branch" in name]
        if not branches:
            backbone = config.model.backbone
            raise InputError(f"{backbone} has no branch in its first stage; name a site: {', '.join(names)}")
        site = branches[-1]
    return config.change(model={"placement": {site: spec}})


@with_keywords_of(TrainArguments)
def run_train(*config: Any, **options: Any) -> TrainResult:
    """Train one configuration, track it in MLflow's experiment `train`, and keep its checkpoint.

    With `resume`, continue an earlier training with its configuration and its run in MLflow.

    Returns:
        The finished training, with all its epochs.

    Raises:
        InputError: The configuration is invalid, or its loss diverged. Or there is no training to resume, it
            has ended, or its data are missing.

    Example:
        >>> import automl
        >>> config = automl.TrialConfig().change(data={"subset": 0.1}, model={"options": {"width": 0.25}})
        >>> trained = automl.run_train(config.change(training={"epochs": 1}), name="short")
        >>> len(trained.history)
        1
        >>> automl.run_train(resume="short")
        Traceback (most recent call last):
        automl.base.errors.InputError: training 'short' has ended after 1 epoch; there is nothing to resume
    """
    asked = TrainArguments(*config, **options)
    if asked.resume is not None:
        return _resume(asked.resume, asked)
    if asked.config is None:
        raise InputError("run_train needs a configuration, or resume=NAME to continue a training")
    loaded = asked.config.load()
    remember(loaded.user_code())
    runtime = asked.runtime or Runtime(device=find_device())
    task = _open(loaded, runtime, asked.workers)
    for note in task.notes():
        print(note, file=sys.stderr)
    check_attentions([loaded], runtime)
    task.model()  # Mistakes in the placement are reported before anything is written.
    with new_folder(Path(asked.storage).resolve(), asked.name) as folder:
        trial = record.TrialRecord(0, loaded)
        epochs = _epochs(loaded, runtime, folder, asked.workers)
        if asked.log:
            _empty(Path(asked.log))
        return _train(task, epochs, trial, folder, asked)


def _resume(name: str, asked: TrainArguments) -> TrainResult:
    """Continue the training called `name`."""
    if asked.config is not None or asked.name is not None:
        raise InputError(f"training {name!r} keeps its configuration and name; leave config and name out")
    folder = Path(asked.storage).resolve() / name
    runtime = asked.runtime or Runtime(device=find_device())
    content = checkpoint.read(Storage(str(folder)), runtime.device)
    config = TrialConfig.from_json(content["config"])
    check_trusted(f"training {name!r}", config.user_code(), trust=asked.trust)
    config = config.load()
    if content["history"] and content["history"][-1]["resource"] >= config.training.epochs:
        raise InputError(
            f"training {name!r} has ended after {pluralize(content['epoch'], 'epochs')}; "
            f"there is nothing to resume"
        )
    task = _open(config, runtime, asked.workers)
    trial = record.TrialRecord(0, config, history=content["history"])
    epochs = _epochs(config, runtime, folder, asked.workers, content)
    return _train(task, epochs, trial, folder, asked)


def _open(config: TrialConfig, runtime: Runtime, workers: int) -> Task:
    """Return the task in this process. Raise `InputError` if so many workers cannot share its batches."""
    if workers < 1:
        raise InputError(f"--workers must be 1 or more; got {workers}")
    if workers > 1:
        if runtime.device.index:
            raise InputError(
                f"--device {runtime.device} trains in one process; with --workers {workers} give {SHARING}"
            )
        open_task(config, replace(runtime, workers=workers))
    return open_task(config, runtime)


def _epochs(
    config: TrialConfig, runtime: Runtime, folder: Path, workers: int, content: dict[str, Any] | None = None
) -> Iterator[Metrics]:
    """Train in this process or on workers, and yield each epoch's metrics after its checkpoint is written."""
    if workers > 1:
        epoch = 0 if content is None else len(content["history"])
        yield from train_on_workers(config, folder, workers, runtime, epoch=epoch)
        return
    location = Storage(str(folder))
    job = Job(
        config=config,
        runtime=runtime,
        folder=location,
        history=[] if content is None else content["history"],
        content=content,
    )
    for history in train(job):
        yield history[-1]


def _train(
    task: Task, epochs: Iterator[Metrics], trial: record.TrialRecord, folder: Path, asked: RunOptions
) -> TrainResult:
    location = Storage(str(folder))
    spec = RunSpec(
        experiment="train",
        checkpoint=lambda trial: location,
        source=source(collect_provenance()),
        data=task.manifest(task.config).digest,
        alone=folder.name,
    )
    writer: Writes
    try:
        writer = MlflowWriter(spec)
    except MlflowSilent as error:
        writer = SilentWriter(error)
    tracker = Tracker(writer)
    tracker.on_trial_start(trial)
    try:
        for metrics in epochs:
            trial.history.append(metrics)
            tracker.on_epoch_end(trial)
            if asked.log:
                append_line(Path(asked.log), metrics)
            if asked.tell is not None:
                asked.tell(task, metrics)
        trial.state = record.State.COMPLETE
    except Diverged as error:
        trial.state, trial.reason = record.State.INFEASIBLE, str(error)
        raise InputError(f"{error}; lower the learning rate") from error
    except BaseException as error:
        trial.state, trial.reason = record.State.ERROR, repr(error)
        raise
    finally:
        tracker.on_trial_end(trial)
        tracker.close()
    code, known = trial.config.user_code(), (*task.spec.metrics, task.metric)
    return TrainResult(tracker.runs.get(0), folder / CHECKPOINT_FILE, trial.history, code, known)


@contextmanager
def new_folder(storage: Path, name: str | None = None) -> Iterator[Path]:
    """Create a folder in `storage`, and delete it at the end of the block if it is empty.

    Without a `name`, its name contains the time. Raises InputError if it exists or cannot be created.
    """
    if name is not None:
        check_name(name)
        if (storage / name).exists():
            raise InputError(
                f"{storage / name} exists; give another --name, or resume it: --resume {shell([name])}"
            )
    stem = name or f"train-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
    folder = next(storage / name for name in names if not (storage / name).exists())
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _not_writable(error) from error
    try:
        yield folder
    finally:
        with suppress(OSError):  # Fails if the folder is not empty.
            folder.rmdir()


def _empty(log: Path) -> None:
    try:
        log.write_text("")
    except OSError as error:
        raise _not_writable(error) from error


def _not_writable(error: OSError) -> InputError:
    return InputError(f"{error.filename} cannot be written ({error.strerror})")


def append_line(file: Path, metrics: Metrics) -> None:
    """Append one line to a CSV file, in the columns of its heading. Write that if the file is empty."""
    with file.open("a+", newline="") as lines:
        lines.seek(0)
        columns = next(csv.reader(lines), None)
        writer = csv.DictWriter(lines, columns or list(metrics), extrasaction="ignore")
        if columns is None:
            writer.writeheader()
        writer.writerow(metrics)
