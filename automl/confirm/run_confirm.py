"""Train the finalists and the tuned baseline with fresh paired seeds.

No trial of the search has had these seeds. At one seed, all variants have the same order of images and the
same initial weights of the backbone, so two variants differ only in their modules. Each variant has the same
time, as in the search. It is scored once, after its last epoch, on the test split.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from automl.base.command_line import format_command, format_option, option_name
from automl.base.errors import InputError
from automl.base.options import with_keywords_of
from automl.base.serialise import write_json
from automl.callbacks.retention import CheckpointRetention
from automl.callbacks.user import UserCallbacks
from automl.config.baseline import draw_baseline
from automl.config.user_code import announce, user_code
from automl.confirm.confirm_result import ConfirmResult
from automl.confirm.confirmation_run import confirmation_run_spec
from automl.confirm.options import ConfirmOptions
from automl.confirm.protocol import (
    CONFIRM_FILE,
    FORMAT,
    Confirmation,
    Options,
    best_of_variant,
    confirmations,
    study_in,
)
from automl.confirm.scheduler import ConfirmationScheduler
from automl.confirm.solved import read_finalist
from automl.confirm.variants import select_variants
from automl.confirm.written import CONFIRM_FOLDER
from automl.data import shared
from automl.storage.folder import (
    SearchMetadata,
    check_not_lost,
    old_folder,
    resolve_search,
)
from automl.storage.logs import capture_library_logs
from automl.storage.provenance import collect_provenance
from automl.storage.storage import Storage
from automl.storage.working_dir import check_not_temporary
from automl.tasks import Task, open_task
from automl.tasks.same_data import check_same_data
from automl.tracking.process import MlflowProcess
from automl.tracking.tracker import PATIENCE, Tracker
from automl.trials.interrupt import Stopped
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler
from search.record import CHECKPOINT_FILE, Report, Role, State, TrialRecord
from search.space import Space
from search.study import read_records, read_trials, score_noise
from search.trial_scheduler import Plan

SEEDS = 2**32  # seeds are below it
OF_SEARCHES = ("top", "init", "solve", "controls", "ablate")  # options that a referee does not have


@with_keywords_of(ConfirmOptions)
def run_confirm(*search: Any, **options: Any) -> ConfirmResult:
    """Compare the finalists of a search with its tuned baseline on fresh seeds.

    An unfinished confirmation is resumed.

    Returns:
        The confirmation with its verdict.

    Raises:
        InputError: There is nothing to confirm, or options contradict those that the confirmation began with.

    Example:
        >>> import automl
        >>> confirmed = automl.run_confirm("example", top=1, seeds=6)
        >>> confirmed.verdict.complete
        True
    """
    asked = ConfirmOptions(*search, **options)
    if asked.solve is not None and asked.top not in (None, 1):
        raise InputError(f"--solve has one finalist; leave --top {asked.top} out")
    chosen = {f.name: value for f in fields(Options) if (value := getattr(asked, f.name)) is not None}
    if asked.solve is not None:
        chosen["top"] = 1
    Options(**chosen)  # Report a mistake before anything is read.
    name, storage = resolve_search(asked.search, asked.storage)
    check_not_temporary(storage)
    with old_folder(name, storage) as (folder, metadata):
        shared.use_saved(folder, Storage(storage))
        records = read_records(folder, metadata.name, metadata.plan.needed)
        check_not_lost(folder, metadata)
        if asked.callbacks is not None:
            metadata = replace(metadata, settings=replace(metadata.settings, callbacks=asked.callbacks))
        announce(f"confirming {metadata.name!r}", user_code(metadata.settings, records))
        called = UserCallbacks(metadata.settings.callbacks)
        load_space = cache(partial(metadata.load_space, asked.space))  # Only new trainings need the space.
        refused = [option_name(name) for name in OF_SEARCHES if getattr(asked, name)]
        if metadata.settings.is_referee and refused:
            raise InputError(f"{metadata.name!r} compares commands; leave {', '.join(refused)} out")
        finalist = None
        if asked.solve is not None:
            trials = read_trials(folder, metadata.name, metadata.plan.needed)
            finalist = read_finalist(Path(asked.solve), metadata, load_space(), trials)
        confirm_folder, confirmation = _begin(
            folder, metadata, load_space, records, chosen, finalist, again=asked.again
        )
        announce(f"comparing {metadata.name!r}", confirmation.commands())
        with capture_library_logs(confirm_folder / "log.txt"):
            return run_trainings(
                confirm_folder,
                metadata,
                confirmation,
                called,
                baseline=lambda: draw_baseline(load_space(), metadata.settings),
                controls=asked.controls,
                ablate=asked.ablate,
            )


def _begin(
    folder: Path,
    metadata: SearchMetadata,
    space: Callable[[], Space],
    records: list[TrialRecord],
    chosen: dict[str, Any],
    finalist: TrialRecord | None,
    *,
    again: bool,
) -> tuple[Path, Confirmation]:
    """Return the folder and the plan of the confirmation to resume, or of a new one."""
    existing = confirmations(folder)
    if existing and not again:
        confirmation = Confirmation.read(existing[-1])
        began = vars(confirmation.options)
        other = {key: value for key, value in chosen.items() if began[key] != value}
        if other:
            kept = ", ".join(format_option(key, began[key]) for key in other)
            raise InputError(
                f"the confirmation of {metadata.name!r} began with {kept} and keeps it: changing "
                f"options after seeing scores would invalidate the verdict. Leave it out, or start another "
                f"one on fresh seeds with --again."
            )
        finalists = [v.config for v in confirmation.variant_set.variants if v.role is Role.FINALIST]
        if finalist is not None and finalist.config.model not in [config.model for config in finalists]:
            raise InputError(
                f"the confirmation of {metadata.name!r} began with another finalist than that of --solve; "
                f"start another one on fresh seeds with --again"
            )
        return existing[-1], confirmation
    earlier = [Confirmation.read(path) for path in existing]
    number = 1 + max((confirmation.number for confirmation in earlier), default=0)
    used = {record.config.seed for record in records}
    used |= {seed for confirmation in earlier for seed in confirmation.seeds}
    if metadata.settings.is_referee:  # It compares the same commands once more.
        if not earlier:
            remove = format_command("remove", metadata.name, metadata.settings.storage)
            raise InputError(f"{metadata.name!r} was stopped before it began. Delete it: {remove}")
        options = Options(**{**vars(earlier[-1].options), **chosen})
        seeds = fresh_seeds(used, options.seeds)
        return begin(
            folder,
            replace(
                earlier[-1], number=number, options=options, seeds=seeds, provenance=collect_provenance()
            ),
        )
    options = Options(**chosen)
    noise = score_noise(folder, metadata.name) if records else None
    variant_set = select_variants(
        records,
        metadata.plan,
        space(),
        metadata.settings,
        top=options.top,
        init=options.init,
        noise=noise,
        finalist=finalist,
    )
    task = _open_data(folder, metadata, variant_set.variants[0].config)
    confirmation = Confirmation(
        number=number,
        options=options,
        seeds=fresh_seeds(used, options.seeds),
        variant_set=variant_set,
        provenance=collect_provenance(),
        inputs=task.size("test"),
        chance=task.chance("test"),
    )
    return begin(folder, confirmation)


def fresh_seeds(used: Collection[int], number: int) -> list[int]:
    """Return `number` seeds above those of `used`, or from 0 on where none is left."""
    following = (seed % SEEDS for seed in count(max(used) + 1))
    return list(islice((seed for seed in following if seed not in used), number))


def begin(folder: Path, confirmation: Confirmation) -> tuple[Path, Confirmation]:
    """Write `confirm.json` in a folder of its own in that of the search. Return the folder, too."""
    number = confirmation.number
    path = folder / (CONFIRM_FOLDER if number == 1 else f"{CONFIRM_FOLDER}-{number}")
    path.mkdir(exist_ok=True)
    write_json(path / CONFIRM_FILE, confirmation, format=FORMAT)
    return path, confirmation


def run_trainings(
    folder: Path,
    metadata: SearchMetadata,
    confirmation: Confirmation,
    callbacks: UserCallbacks,
    *,
    baseline: Callable[[], TrialConfig],
    controls: bool = False,
    ablate: bool = False,
) -> ConfirmResult:
    """Train what a confirmation still needs, and judge it.

    Args:
        folder: The folder of the confirmation.
        metadata: The metadata of the search.
        confirmation: The content of `confirm.json`.
        callbacks: The callbacks of the user.
        baseline: Returns the configuration whose epoch is the unit of time, if anything has to be trained.
        controls: As in `run_confirm`.
        ablate: As in `run_confirm`.

    Raises:
        InputError: The space or the data have changed, or nothing can be trained.
    """
    # Ray takes seconds to import, so mistakes in the arguments are reported before.
    from automl.trials.session import delete_tune_files, open_workers, share_data

    settings = metadata.settings
    options = [option for option, is_set in (("--controls", controls), ("--ablate", ablate)) if is_set]
    asked = " ".join(["confirm", *options, "--search"])
    if confirmation.of_commands:
        asked = "referee --resume"
    advice = f"resume with: {format_command(asked, metadata.name, settings.storage)}"
    if len(confirmation.seeds) < confirmation.least:
        print(
            f"warning: run at least {confirmation.least} seeds; {len(confirmation.seeds)} cannot show any "
            f"difference",
            file=sys.stderr,
        )
    scheduler = open_scheduler(folder, metadata, confirmation, controls=controls)
    planned = scheduler.planned
    scheduler.update(ablate)
    # Its epoch is the unit of time. With shared partial trainings this is the plain training's.
    unit = confirmation.variant_set.variants[0].config
    if planned.left and not confirmation.of_commands:
        drawn = baseline()  # Report a missing space before anything begins.
        unit = unit if scheduler.design.shared_trainings else drawn
    signal = None
    location = metadata.location / folder.name
    callbacks.on_confirmation_start(metadata.record(folder))
    with MlflowProcess(confirmation_run_spec(location, metadata, confirmation)) as writer:
        tracker = Tracker(writer)
        try:
            for record in planned.records.values():
                tracker.update(record)
            if planned.left:
                task = None
                if not confirmation.of_commands:
                    task = _open_data(folder.parent, metadata, confirmation.variant_set.variants[0].config)
                with open_workers(settings, folder / "log.txt", advice) as workers:
                    plan, records = planned.plan, planned.records
                    metric = scheduler.design.metric
                    data = None
                    if task is not None:
                        data = share_data(task, folder.parent, metadata, "train", "validation", "test")
                    workers = workers.share_gpus(folder.parent, metadata, unit, trials=plan.trials, data=data)
                    retention = _VariantRetention(
                        location, plan, records.values(), metric=metric, deleted=tracker.update
                    )
                    word = "comparing" if confirmation.of_commands else "confirming"
                    print(
                        f"{word} {metadata.name} in {location}; if it stops, {advice}",
                        file=sys.stderr,
                    )
                    while planned.left and workers.interrupt.signal is None and not planned.repeated_failure:
                        before = len(records)
                        workers.run(
                            planned,
                            folder=folder,
                            location=location,
                            callbacks=[retention, tracker, scheduler, callbacks],
                            summary=scheduler.summary,
                            baseline=unit,
                            test=True,
                            data=data,
                            stop=lambda: confirmation.of_commands and scheduler.verdict.complete,
                        )
                        if confirmation.of_commands and scheduler.verdict.complete:
                            for record in records.values():  # their scores would change nothing
                                if record.state is State.RUNNING:
                                    planned.end(record.number, Report())
                        scheduler.update(ablate)
                        if len(records) == before and not planned.unfinished:
                            break
                    signal = workers.interrupt.signal
            running = any(record.state is State.RUNNING for record in planned.records.values())
            if scheduler.verdict.complete and not planned.left and not running:
                _keep_exported(location, scheduler, tracker)
        finally:
            missing = conclude_in(tracker, metadata, scheduler)
            delete_tune_files(folder)
    result = ConfirmResult(
        search=metadata.name,
        number=confirmation.number,
        folder=folder,
        verdict=scheduler.verdict,
        value=scheduler.value(),
        storage=settings.storage,
        untracked=missing,
        user_code=[
            name for variant in confirmation.variant_set.variants for name in variant.config.user_code()
        ],
        logs={
            f"{record.variant} with seed {record.config.seed}": record.traceback or ""
            for record in planned.standing
            if record.state is State.ERROR
        },
    )
    callbacks.on_confirmation_end(result)
    if signal is not None:
        print(advice, file=sys.stderr)
        raise Stopped(signal)
    return result


def open_scheduler(
    folder: Path,
    metadata: SearchMetadata,
    confirmation: Confirmation,
    *,
    retry: bool = True,
    controls: bool = False,
) -> ConfirmationScheduler:
    """Open the scheduler of the confirmation in `folder`, with all trials so far.

    Args:
        folder: The folder of the confirmation.
        metadata: The metadata of the search.
        confirmation: The content of `confirm.json`.
        retry: Train again after an error.
        controls: Train the controls whatever the verdict.
    """
    plan = metadata.plan
    design = confirmation.design(plan.metric, metadata.settings.equal)
    variants = confirmation.plan(plan)
    study = study_in(
        folder, metadata, maximize=design.maximize, needed=[plan.metric.name, variants.metric.name]
    )
    planned = FixedScheduler(study, variants, [], retry=retry)
    return ConfirmationScheduler(
        folder,
        metadata.name,
        confirmation,
        design,
        planned,
        location=metadata.location / folder.name,
        controls=controls,
    )


def _open_data(folder: Path, metadata: SearchMetadata, config: TrialConfig) -> Task:
    """Decode the data if they are not cached. Raise InputError if they are not the search's."""
    config = config.load()
    check_same_data(config, folder, metadata.name)
    return open_task(config, metadata.settings.runtime)


def conclude_in(
    tracker: Tracker, metadata: SearchMetadata, scheduler: ConfirmationScheduler, patience: float = PATIENCE
) -> int:
    """End the confirmation's run in MLflow, with the verdict if there is one.

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
        missing += tracker.conclude(metadata.identity, scheduler.value(), winner)
    return missing


def _keep_exported(location: Storage, scheduler: ConfirmationScheduler, tracker: Tracker) -> None:
    """Delete a finished confirmation's checkpoints, except those of the leading finalist and the baseline."""
    records = scheduler.planned.records.values()
    names = [
        scheduler.variants[0].name,
        *([scheduler.verdict.lead.variant.name] if scheduler.verdict.lead else []),
    ]
    kept = [best_of_variant(records, name, scheduler.design) for name in names]
    for record in records:
        if record not in kept:
            with suppress(OSError):  # It was deleted before, or uses disk space until it is.
                (location / record.folder).remove(CHECKPOINT_FILE)
                tracker.update(record)


class _VariantRetention(CheckpointRetention):
    """Keep the checkpoint of each variant's best validated training until the confirmation ends."""

    def __init__(
        self, location: Storage, plan: Plan, records: Iterable[TrialRecord], *, metric: str, deleted: Any
    ) -> None:
        super().__init__(location, plan, records, keep=1, deleted=deleted)
        self.metric = metric

    def staying(self) -> list[TrialRecord]:
        sign = self.plan.metric.sign
        best: dict[str, TrialRecord] = {}
        for record in sorted(
            self.held.values(), key=lambda r: r.number
        ):  # the first of equals, as in the scheduler
            if record.state is State.COMPLETE:
                other = best.get(record.variant)
                if other is None or sign * record.value(self.metric) > sign * other.value(self.metric):
                    best[record.variant] = record
        return list(best.values())
