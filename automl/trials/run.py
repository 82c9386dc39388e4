"""Runs a scheduler's trials with their callbacks, for searches and confirmations."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from automl.callbacks.error_traces import ErrorTraces
from automl.callbacks.progress import Progress
from automl.callbacks.prometheus import PrometheusGauges
from automl.config.limits import Limits
from automl.storage.epoch_progress import read_part
from automl.storage.folder import SearchMetadata
from automl.storage.storage import Storage
from automl.tasks import Split, Task
from automl.trials.session import Workers
from cluster.connect import joins
from search.callback import Callback
from search.config import TrialConfig
from search.trial_scheduler import Plan, TrialScheduler


def run_scheduler(
    scheduler: TrialScheduler,
    workers: Workers,
    *,
    name: str,
    folder: Path,
    location: Storage,
    callbacks: Sequence[Callback],
    summary: Callable[[], str],
    baseline: TrialConfig,
    plan: Plan,
    best: bool,
    limits: Limits = Limits(),  # noqa: B008 (it is frozen)
    test: bool = False,
    data: Mapping[str, Any] | None = None,
    budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the trials of `scheduler` on `workers` until there are no more, or a signal comes.

    name: by which Prometheus knows them. folder, location: theirs on this machine, and where checkpoints go.
    callbacks: called for each trial first, before the progress display, the gauges and the error traces.
    summary: the end of the progress line. plan: of the trials. best: whether the best trial gets a gauge.
    baseline, limits, test, data: as in `automl.trials.trial.assignment`. budget: seconds, for the time left.
    Raises InputError as `Workers.run` does.
    """
    progress = Progress(
        plan,
        scheduler.records,
        trials=lambda: scheduler.trials,
        summary=summary,
        budget=budget,
        devices=workers.devices,
        device=workers.device,
        part=lambda record: read_part(location / record.folder, after=record.epoch),
    )

    def stops() -> bool:  # asked several times a second
        progress.look()
        return stop()

    gauges = PrometheusGauges(
        name,
        scheduler.records,
        plan if best else None,
        slots=workers.capacity.slots,
        devices=workers.devices,
        device=workers.device,
    )
    scheduler.callbacks = [*callbacks, progress, gauges, ErrorTraces(folder)]
    with progress:
        workers.run(
            scheduler,
            folder,
            location,
            baseline=baseline,
            limits=limits,
            test=test,
            data=data,
            stop=stops,
        )


def share_data(task: Task, folder: Path, metadata: SearchMetadata, *splits: Split) -> dict[str, Any] | None:
    """Share the data with trials that may run on machines without them."""
    if metadata.location.local is not None and not joins():
        return None
    return task.share_data(Storage(metadata.settings.storage), folder, splits)
