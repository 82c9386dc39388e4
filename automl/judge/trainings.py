"""Train what a comparison still needs, with fresh paired seeds, and judge it.

No trial of a search has had these seeds. At one seed, all variants have the same order of images and the same
initial weights of the backbone, so two variants differ only in their modules. Each variant has the same time,
as in the search. It is scored once, after its last epoch, on the test split.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.base.options import format_command
from automl.base.serialise import write_json
from automl.callbacks.retention import CheckpointRetention
from automl.callbacks.user import UserCallbacks
from automl.judge.design import COMMANDS, Design
from automl.judge.protocol import CONFIRM_FILE, FORMAT, Confirmation, best_of_variant
from automl.judge.scheduler import ConfirmationScheduler
from automl.judge.verdict import ConfirmResult
from automl.storage.metadata import SearchMetadata
from automl.tracking.process import MlflowProcess, sync_later
from automl.tracking.tracker import PATIENCE, Tracker
from automl.trials import session
from automl.trials.job import Trainings
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Report, Role, State, TrialRecord

if TYPE_CHECKING:
    from automl.task import Task

SEEDS = 2**32  # seeds are below it
SHORT = 30.0  # time within which a change of a ledger does not wait for MLflow, which takes 7 to start [s]


def fresh_seeds(used: Collection[int], number: int) -> list[int]:
    """Return `number` seeds above those of `used`, or from 0 on where none is left."""
    following = (seed % SEEDS for seed in count(max(used) + 1))
    return list(islice((seed for seed in following if seed not in used), number))


def begin(folder: Path, confirmation: Confirmation) -> Path:
    """Write `confirm.json` in a folder of its own in that of the search, and return it."""
    path = folder / confirmation.folder
    path.mkdir(exist_ok=True)
    write_json(path / CONFIRM_FILE, confirmation, format=FORMAT)
    return path


def run_trainings(
    folder: Path,
    metadata: SearchMetadata,
    confirmation: Confirmation,
    callbacks: UserCallbacks,
    *,
    baseline: Callable[[], TrialConfig] | None = None,
    data: Callable[[], "Task | None"] = lambda: None,
    controls: bool = False,
    ablate: bool = False,
) -> ConfirmResult:
    """Train what a confirmation still needs, and judge it.

    `folder` is that of the confirmation. If anything has to be trained, `baseline` returns the configuration
    whose epoch is the unit of time, by default that of the first variant, and `data` the task with its data.
    `controls` and `ablate` are options of `run_confirm`.

    Raises InputError if the space or the data have changed, or if nothing can be trained.
    """
    options = [name for name, is_set in (("--controls", controls), ("--ablate", ablate)) if is_set]
    command, *option = confirmation.kind.resume.split()
    resume = " ".join([command, *options, *option])
    advice = f"resume with: {format_command(resume, metadata.name, metadata.storage)}"
    scheduler = ConfirmationScheduler(folder, metadata, confirmation, controls=controls)
    planned, signal = scheduler.planned, None
    scheduler.update(ablate)
    unit = confirmation.variant_set.variants[0].config  # Its epoch is the unit of time.
    if planned.left and baseline is not None:
        unit = baseline()  # Report a missing space before anything begins.
    callbacks.on_confirmation_start(metadata.record(folder))
    with MlflowProcess(confirmation.run_spec(scheduler.location, metadata)) as writer:
        # It starts beside the first command, which would otherwise wait for seconds.
        delay = 0.0 if confirmation.change is None else SHORT
        tracker = Tracker(writer, at_once=confirmation.kind is not COMMANDS, delay=delay)
        try:
            for record in planned.records.values():
                tracker.update(record)
            if planned.left:
                signal = _train(metadata, scheduler, tracker, callbacks, unit, advice, data, ablate=ablate)
            running = any(record.state is State.RUNNING for record in planned.records.values())
            if scheduler.verdict.complete and not planned.left and not running:
                # Only the leading finalist and the baseline may be exported.
                best = best_of_variant(planned.records.values(), scheduler.variants[0].name, scheduler.design)
                for record in planned.records.values():
                    if record not in (best, scheduler.best_of_lead()):
                        with suppress(OSError):  # It was deleted before, or uses disk space until it is.
                            (scheduler.location / record.folder).remove(CHECKPOINT_FILE)
                            tracker.update(record)
        finally:
            postponed = delay > 0 and scheduler.verdict.complete and tracker.postpone()
            missing = 0 if postponed else conclude_in(tracker, metadata.identity, scheduler)
            session.delete_tune_files(folder)
    if postponed:
        sync_later(folder, metadata.storage)
    result = _result(scheduler, metadata.storage, missing)
    callbacks.on_confirmation_end(result)
    if signal is not None:
        print(advice, file=sys.stderr)
        raise session.Stopped(signal)
    return result


def _train(
    metadata: SearchMetadata,
    scheduler: ConfirmationScheduler,
    tracker: Tracker,
    callbacks: UserCallbacks,
    unit: TrialConfig,
    advice: str,
    open_data: Callable[[], "Task | None"],
    *,
    ablate: bool,
) -> int | None:
    """Train until nothing is left, and return the signal that stopped it before, if one did."""
    folder, location, planned = scheduler.folder, scheduler.location, scheduler.planned
    kind, records = scheduler.design.kind, planned.records
    task = open_data()
    if task is not None:
        # They import torch, which commands do without.
        from automl.trials.measurements import measure_decoding, measure_original

        measure_original(folder, task, "test")
        finalists = [v for v in scheduler.confirmation.variant_set.variants if v.role is Role.FINALIST]
        measure_decoding(folder, {variant.name: variant.config for variant in finalists}, task.runtime)
    with session.open_workers(
        metadata.settings.place, folder / "log.txt", advice, commands=kind is COMMANDS
    ) as workers:
        data = None
        if task is not None:
            data = session.share_data(task, folder.parent, metadata.storage, "train", "validation", "test")
        terms = metadata.settings.terms.confirming()
        trainings = Trainings(
            location=location, baseline=unit, terms=terms, data=data, profile=task is not None
        )
        count = planned.plan.trials
        workers = workers.share_gpus(folder.parent, metadata.gpu_fraction, trainings, trials=count)
        retention = _VariantRetention(
            location, planned.plan, records.values(), design=scheduler.design, deleted=tracker.update
        )
        print(f"{kind.doing} {metadata.name} in {location}; if it stops, {advice}", file=sys.stderr)
        while planned.left and workers.interrupt.signal is None and not planned.repeated_failure:
            before = len(records)
            workers.run(
                planned,
                trainings,
                folder=folder,
                callbacks=[retention, tracker, scheduler, callbacks],
                summary=scheduler.summary,
                stop=lambda: scheduler.has_stopped,
            )
            if scheduler.has_stopped:
                for record in records.values():  # their scores would change nothing
                    if record.state is State.RUNNING:
                        planned.end(record.number, Report())
            scheduler.update(ablate)
            if len(records) == before and not planned.unfinished:
                break
    return workers.interrupt.signal


def _result(scheduler: ConfirmationScheduler, storage: str, untracked: int) -> ConfirmResult:
    variants = scheduler.confirmation.variant_set.variants
    return ConfirmResult(
        folder=scheduler.folder,
        verdict=scheduler.verdict,
        storage=storage,
        untracked=untracked,
        user_code=[name for variant in variants for name in variant.config.user_code()],
        logs={
            f"{record.variant} with seed {record.config.seed}": record.traceback or ""
            for record in scheduler.planned.standing
            if record.state is State.ERROR
        },
    )


def conclude_in(
    tracker: Tracker, identity: str, scheduler: ConfirmationScheduler, patience: float = PATIENCE
) -> int:
    """End the confirmation's run in MLflow, with the verdict if there is one. `identity` is the search's.

    Returns the number of trials that MLflow did not take, 0 if it has all.
    """
    planned, best = scheduler.planned, scheduler.best_of_lead()
    counts = Counter(record.state for record in planned.records.values())
    missing = tracker.finish(
        best=best,
        metric=None,  # The largest score of many seeds has no meaning.
        counts=counts,
        stopped=planned.left + counts[State.RUNNING] > 0,
        patience=patience,
    )
    if scheduler.verdict.complete:
        winner = tracker.runs.get(best.number) if best is not None and scheduler.verdict.winner else None
        missing += tracker.conclude(identity, scheduler.verdict.to_json(), winner)
    return missing


class _VariantRetention(CheckpointRetention):
    """Keep the checkpoint of each variant's best validated training until the confirmation ends."""

    def __init__(self, *args: Any, design: Design, **options: Any) -> None:
        super().__init__(*args, keep=1, **options)
        self.design = design

    def staying(self) -> list[TrialRecord]:
        held = sorted(self.held.values(), key=lambda r: r.number)  # the first of equals, as in the scheduler
        best = (best_of_variant(held, name, self.design) for name in {record.variant for record in held})
        return [record for record in best if record is not None]
