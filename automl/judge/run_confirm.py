"""Train the finalists and the tuned baseline with fresh paired seeds.

No trial of the search has had these seeds. At one seed, all variants have the same order of images and the
same initial weights of the backbone, so two variants differ only in their modules. Each variant has the same
time, as in the search. It is scored once, after its last epoch, on the test split.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.options import format_command, format_option, option_name, with_keywords_of
from automl.base.process import capture_library_logs
from automl.base.serialise import read_json, write_json
from automl.base.units import pluralize
from automl.callbacks.retention import CheckpointRetention
from automl.callbacks.user import UserCallbacks
from automl.config.runtime import Runtime
from automl.data import shared
from automl.judge.design import Design
from automl.judge.options import ConfirmOptions
from automl.judge.protocol import (
    CONFIRM_FILE,
    FORMAT,
    Confirmation,
    Options,
    best_of_variant,
    confirmations,
    is_open,
)
from automl.judge.scheduler import ConfirmationScheduler
from automl.judge.variants import select_variants, with_placement
from automl.judge.verdict import ConfirmResult
from automl.storage.folder import check_not_lost, old_folder, resolve_search
from automl.storage.metadata import SearchMetadata, collect_provenance
from automl.storage.storage import Storage, check_not_temporary
from automl.storage.user_code import check_trusted, user_code
from automl.task import Task, open_task
from automl.task.opening import check_same_data
from automl.tracking.process import MlflowProcess
from automl.tracking.tracker import PATIENCE, Tracker
from automl.trials import session
from automl.trials.trial import Trainings
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Report, Role, State, TrialRecord
from search.space import Space
from search.study import read_records, score_noise

SEEDS = 2**32  # seeds are below it
OF_SEARCHES = ("top", "init", "solve", "controls", "ablate")  # options that a referee does not have


@dataclass(frozen=True, kw_only=True)
class SolvedPlacement:
    """Answer of `automl solve`: a placement to confirm, as parameters of the search's space.

    It holds no names of code, so a file of another author can only choose from the space of the search.

    Attributes:
        search: The name of the search.
        identity: The identifier of the search.
        trial: The number of the trial whose hyperparameters it has.
        params: The parameters of the placement.
    """

    search: str
    identity: str
    trial: int
    params: dict[str, Any]


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
    values = {f.name: getattr(asked, f.name, None) for f in fields(Options)}
    values |= {} if asked.solve is None else {"top": 1}
    chosen = {name: value for name, value in values.items() if value is not None}
    Options(**chosen)  # Report a mistake before anything is read.
    name, storage = resolve_search(asked.search, asked.storage)
    check_not_temporary(storage)
    with old_folder(name, storage) as (folder, metadata):
        shared.use_saved(folder, Storage(storage))
        records = read_records(folder, metadata.name, metadata.plan.needed)
        check_not_lost(folder, metadata)
        if asked.callbacks is not None:
            settings = metadata.settings.change(place={"callbacks": asked.callbacks})
            metadata = replace(metadata, settings=settings)
        code = user_code(metadata.settings.user_code(), records)
        check_trusted(f"confirming {metadata.name!r}", code, trust=asked.trust)
        called = UserCallbacks(metadata.settings.place.callbacks)
        draw_space = cache(partial(metadata.draw_space, asked.space))  # Only new trainings need the space.
        earlier = [Confirmation.read(path) for path in confirmations(folder)]
        if asked.again and earlier and earlier[-1].options.screen:
            raise InputError(f"{name!r} is of a ledger, which decides once; compare the change again there")
        is_comparison, finalist = not metadata.has_trials, None
        if is_comparison:
            _check_referee(name, storage, earlier, [option_name(n) for n in OF_SEARCHES if getattr(asked, n)])
        if asked.solve is not None:
            solve = format_command("solve", name, storage, "--out", str(asked.solve))
            finalist = _read_finalist(
                Path(asked.solve), metadata.identity, solve, draw_space().space, records
            )
        if earlier and not asked.again:
            confirmation = earlier[-1]
            _check_unchanged(name, confirmation, chosen, finalist)
        elif is_comparison:
            confirmation = _compare_again(earlier, chosen)
            begin(folder, confirmation)
        else:
            confirmation = _plan(
                folder, metadata, lambda: draw_space().space, records, chosen, finalist, earlier
            )
            begin(folder, confirmation)
        check_trusted(f"comparing {metadata.name!r}", confirmation.commands(), trust=asked.trust)
        confirm_folder = folder / confirmation.folder
        with capture_library_logs(confirm_folder / "log.txt"):
            if is_comparison:
                return run_trainings(confirm_folder, metadata, confirmation, called)
            config = confirmation.variant_set.variants[0].config
            return run_trainings(
                confirm_folder,
                metadata,
                confirmation,
                called,
                baseline=lambda: draw_space().baseline,
                data=lambda: open_data(folder, name, config, metadata.settings.terms.runtime),
                controls=asked.controls,
                ablate=asked.ablate,
            )


def _check_referee(name: str, storage: str, earlier: Sequence[Confirmation], refused: list[str]) -> None:
    """Raise InputError if options of searches are values for commands, or if there are no commands yet."""
    if refused:
        raise InputError(f"{name!r} compares commands; leave {', '.join(refused)} out")
    if not earlier:
        remove = format_command("remove", name, storage)
        raise InputError(f"{name!r} was stopped before it began. Delete it: {remove}")


def _check_unchanged(
    name: str,
    confirmation: Confirmation,
    chosen: Mapping[str, Any],
    finalist: TrialRecord | None,
) -> None:
    """Raise InputError if the options contradict those that the confirmation began with."""
    began = vars(confirmation.options)
    other = {key: value for key, value in chosen.items() if began[key] != value}
    if other:
        kept = ", ".join(format_option(key, began[key]) for key in other)
        raise InputError(
            f"the confirmation of {name!r} began with {kept} and keeps it: changing options after "
            f"seeing scores would invalidate the verdict. Leave it out, or start another one on fresh seeds "
            f"with --again."
        )
    finalists = [v.config for v in confirmation.variant_set.variants if v.role is Role.FINALIST]
    if finalist is not None and finalist.config.model not in [config.model for config in finalists]:
        raise InputError(
            f"the confirmation of {name!r} began with another finalist than that of --solve; "
            f"start another one on fresh seeds with --again"
        )


def _read_finalist(
    file: Path, identity: str, solve: str, space: Space, trials: Iterable[TrialRecord]
) -> TrialRecord:
    """Return the finalist in a file of the command `solve`, as a trial of the search with these `trials`."""
    # Raises InputError if the file is damaged, or is that of another search.
    solved = read_json(SolvedPlacement, file, strict=False)
    if solved.identity != identity:
        raise InputError(f"{file} is the answer of another search, {solved.search!r}; run {solve}")
    trial = next((trial for trial in trials if trial.number == solved.trial), None)
    if trial is None:
        raise InputError(f"{file} names trial {solved.trial}, which the search does not have; run {solve}")
    config = with_placement(space, trial.config, {**trial.params, **solved.params})
    if space.as_baseline(config) == config:
        raise InputError(f"{file} has the baseline as its answer, so there is nothing to confirm")
    return TrialRecord(trial.number, config)


def _plan(
    folder: Path,
    metadata: SearchMetadata,
    space: Callable[[], Space],
    records: list[TrialRecord],
    chosen: Mapping[str, Any],
    finalist: TrialRecord | None,
    earlier: Sequence[Confirmation],
) -> Confirmation:
    """Return the plan of a new confirmation, with seeds that neither a trial nor an earlier one had."""
    if is_open(metadata.plan, records):
        resume = format_command("search --resume", metadata.name, metadata.storage)
        print(
            f"warning: the search is unfinished; finalists are chosen among its "
            f"{pluralize(len(records), 'trials')} so far. To complete it first: {resume}",
            file=sys.stderr,
        )
    number = 1 + max((confirmation.number for confirmation in earlier), default=0)
    used = {record.config.seed for record in records}
    used |= {seed for confirmation in earlier for seed in confirmation.seeds}
    options = Options(**chosen).check_new()
    variant_set = select_variants(
        records,
        metadata.plan,
        space(),
        metadata.settings.question,
        search=(metadata.name, metadata.storage),
        top=options.top,
        seeds=options.seeds,
        init=options.init,
        noise=score_noise(folder, metadata.name) if records else None,
        finalist=finalist,
    )
    task = open_data(folder, metadata.name, variant_set.variants[0].config, metadata.settings.terms.runtime)
    return Confirmation(
        number=number,
        options=options,
        seeds=fresh_seeds(used, options.seeds),
        variant_set=variant_set,
        provenance=collect_provenance(),
        inputs=task.size("test"),
        chance=task.chance("test"),
    )


def _compare_again(earlier: Sequence[Confirmation], chosen: Mapping[str, Any]) -> Confirmation:
    """Return the plan of another comparison of the same commands, with unused seeds."""
    latest, used = earlier[-1], {seed for confirmation in earlier for seed in confirmation.seeds}
    options = Options(**{**vars(latest.options), **chosen}).check_new()
    seeds, provenance = fresh_seeds(used, options.seeds), collect_provenance()
    return replace(latest, number=latest.number + 1, options=options, seeds=seeds, provenance=provenance)


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
    data: Callable[[], Task | None] = lambda: None,
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
    # Its epoch is the unit of time. With shared partial trainings this is the plain training's.
    unit = confirmation.variant_set.variants[0].config
    if planned.left and baseline is not None:
        drawn = baseline()  # Report a missing space before anything begins.
        unit = unit if scheduler.design.shared_trainings else drawn
    callbacks.on_confirmation_start(metadata.record(folder))
    with MlflowProcess(confirmation.run_spec(scheduler.location, metadata)) as writer:
        tracker = Tracker(writer)
        try:
            for record in planned.records.values():
                tracker.update(record)
            if planned.left:
                signal = _train(metadata, scheduler, tracker, callbacks, unit, advice, data, ablate=ablate)
            running = any(record.state is State.RUNNING for record in planned.records.values())
            if scheduler.verdict.complete and not planned.left and not running:
                _keep_exported(scheduler, tracker)
        finally:
            missing = conclude_in(tracker, metadata.identity, scheduler)
            session.delete_tune_files(folder)
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
    open_data: Callable[[], Task | None],
    *,
    ablate: bool,
) -> int | None:
    """Train until nothing is left, and return the signal that stopped it before, if one did."""
    folder, location, planned = scheduler.folder, scheduler.location, scheduler.planned
    kind, records = scheduler.design.kind, planned.records
    task = open_data()
    with session.open_workers(metadata.settings.place, folder / "log.txt", advice) as workers:
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


def open_data(folder: Path, name: str, config: TrialConfig, runtime: Runtime) -> Task:
    """Decode the data if they are not cached. Raise InputError if they are not those of the search `name`."""
    config = config.load()
    check_same_data(config, folder, name)
    return open_task(config, runtime)


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


def _keep_exported(scheduler: ConfirmationScheduler, tracker: Tracker) -> None:
    """Delete a finished confirmation's checkpoints, except those of the leading finalist and the baseline."""
    records = scheduler.planned.records.values()
    baseline = best_of_variant(records, scheduler.variants[0].name, scheduler.design)
    kept = (baseline, scheduler.best_of_lead())
    for record in records:
        if record not in kept:
            with suppress(OSError):  # It was deleted before, or uses disk space until it is.
                (scheduler.location / record.folder).remove(CHECKPOINT_FILE)
                tracker.update(record)


class _VariantRetention(CheckpointRetention):
    """Keep the checkpoint of each variant's best validated training until the confirmation ends."""

    def __init__(self, *args: Any, design: Design, **options: Any) -> None:
        super().__init__(*args, keep=1, **options)
        self.design = design

    def staying(self) -> list[TrialRecord]:
        held = sorted(self.held.values(), key=lambda r: r.number)  # the first of equals, as in the scheduler
        best = (best_of_variant(held, name, self.design) for name in {record.variant for record in held})
        return [record for record in best if record is not None]
