"""Is it really better? Finalists and the tuned baseline, trained anew with fresh paired seeds.

The seeds are ones that no trial of the search has had. Each gives all arms the same order of the images and
the same initial trunk, so that what differs between two arms at one seed is what sits in them. Each arm has
the same time, as in the search, and is scored once, after its last epoch, on the test split.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attention import InputError
from automl.confirm.arms import choose_arms
from automl.confirm.protocol import FILE, FOLDER, Confirmation, Options, confirmations, study_in, write
from automl.data import shared
from automl.storage.folder import About, named, old_folder, provenance
from automl.confirm.scheduler import Jury
from automl.listeners.retention import Keeper
from automl.storage.lasting import check_lasting
from automl.config.limits import Limits
from automl.storage.logs import chatter_to
from automl.tasks.same_data import check_same
from automl.search.run import Stopped, Traces, share
from automl.config.settings import command, draw_baseline
from automl.storage.storage import Storage
from automl.tasks import TASKS, Task, open_task
from automl.tracking.process import Apart
from automl.tracking.run_spec import confirmation_subject
from automl.tracking.tracker import Tracker
from automl.confirm.verdict import Verdict
from search.config import TrialConfig
from search.ledger import Plan
from search.record import State, TrialRecord
from search.roster import Roster
from search.spaces import load
from search.study import read_records


@dataclass(frozen=True, kw_only=True)
class ConfirmResult:
    """A confirmation as it stands.

    folder: with its study and checkpoints. value: what `verdict.json` holds.
    untracked: trials that MLflow lacks.
    """

    search: str
    number: int
    folder: Path
    verdict: Verdict
    value: dict[str, Any]
    untracked: int = 0


def run_confirm(
    search: str | None = None,
    *,
    top: int | None = None,
    seeds: int | None = None,
    margin: float | None = None,
    sequential: bool | None = None,
    ablate: bool = False,
    again: bool = False,
    storage: str = "searches",
) -> ConfirmResult:
    """Confirm a search's finalists against its best baseline, or go on with a confirmation that was stopped.

    search: its name; the latest one where not given. The options are those of `Options`, with its defaults; a
        confirmation that has begun keeps its own.
    ablate: afterwards, train the winner, or the leading finalist where there is none, without each of its
        modules.
    again: a new confirmation with further fresh seeds, beside those there are.

    Raises InputError when there is nothing to confirm, or options contradict those that it began with.
    """
    given: dict[str, Any] = {"top": top, "seeds": seeds, "margin": margin, "sequential": sequential}
    chosen = {key: value for key, value in given.items() if value is not None}
    Options(**chosen)  # a mistake shows before anything is read
    check_lasting(storage)
    with old_folder(named(search, storage), storage) as (folder, about):
        shared.recall(folder, Storage(storage))
        records = read_records(folder, about.name)
        place, confirmation = _begin(folder, about, records, chosen, again=again)
        with chatter_to(place / "log.txt"):
            return _run(place, about, confirmation, ablate=ablate)


def _begin(
    folder: Path, about: About, records: list[TrialRecord], chosen: dict[str, Any], *, again: bool
) -> tuple[Path, Confirmation]:
    """The folder and plan of the confirmation that is to go on, or of a new one."""
    there = confirmations(folder)
    if there and not again:
        confirmation = Confirmation.read(there[-1])
        began = asdict(confirmation.options)
        other = {key: value for key, value in chosen.items() if began[key] != value}
        if other:
            told = ", ".join(f"--{key} {began[key]}" for key in other)
            raise InputError(
                f"the confirmation of {about.name!r} began with {told} and keeps it: to choose anew after "
                f"scores were seen would make the verdict worthless. Leave it out, or start another one on "
                f"fresh seeds with --again."
            )
        return there[-1], confirmation
    options = Options(**chosen)
    plan = Plan(**about.plan)
    field = choose_arms(records, plan, load(about.settings.space), about.settings, top=options.top)
    used = {record.config.seed for record in records}
    used |= {seed for path in there for seed in Confirmation.read(path).seeds}
    first = max(used) + 1
    task = _open_data(folder, about, field.arms[0].config)
    confirmation = Confirmation(
        number=1 + max((Confirmation.read(path).number for path in there), default=0),
        options=options,
        seeds=[(first + i) % 2**32 for i in range(options.seeds)],
        field=field,
        provenance=provenance(),
        inputs=task.size("test"),
        chance=task.chance("test"),
    )
    place = folder / (FOLDER if confirmation.number == 1 else f"{FOLDER}-{confirmation.number}")
    place.mkdir(exist_ok=True)
    write(place / FILE, confirmation.to_json())
    return place, confirmation


def _run(place: Path, about: About, confirmation: Confirmation, *, ablate: bool) -> ConfirmResult:
    # Ray takes seconds to import; a mistake in the arguments is told before that.
    from automl.listeners.prometheus import Meter
    from automl.listeners.progress import Progress
    from automl.trials.session import open_workers, settle

    settings = about.settings
    advice = f"go on with: {command('confirm --search', about.name, settings.storage)}"
    if len(confirmation.seeds) < confirmation.least:
        print(
            f"warning: {len(confirmation.seeds)} seeds can show no difference, however large; it takes "
            f"{confirmation.least}",
            file=sys.stderr,
        )
    jury = open_jury(place, about, confirmation)
    roster = jury.roster
    jury.look(ablate)
    signal = None
    kept = about.kept / place.name
    with Apart(confirmation_subject(kept, about, confirmation)) as mirror:
        tracker = Tracker(mirror)
        try:
            for record in roster.records.values():
                tracker.update(record)
            if roster.left:
                task = _open_data(place.parent, about, confirmation.field.arms[0].config)
                with open_workers(settings, place / "log.txt", advice) as workers:
                    plan, records = roster.plan, roster.records
                    metric = jury.question.metric
                    data = share(task, place.parent, about, "train", "validation", "test")
                    keeper = _ArmKeeper(kept, plan, records.values(), metric=metric, told=tracker.update)
                    meter = Meter(f"{about.name}/{place.name}", records, workers)
                    print(
                        f"confirming {about.name} in {kept}; if anything ends it, {advice}", file=sys.stderr
                    )
                    while roster.left and workers.interrupt.signal is None and not roster.hopeless:
                        before = len(records)
                        progress = Progress(
                            replace(plan, trials=max(plan.trials or 0, len(roster.entries))),
                            records,
                            summary=jury.summary,
                            devices=workers.devices,
                            device=workers.device,
                        )
                        roster.listeners = [keeper, tracker, jury, progress, meter, Traces(place)]
                        with progress:
                            workers.run(
                                roster,
                                place,
                                kept,
                                baseline=draw_baseline(load(settings.space), settings),
                                limits=Limits(),
                                test=True,
                                data=data,
                            )
                        jury.look(ablate)  # and what follows from it
                        if len(records) == before and not roster.unfinished:
                            break
                    signal = workers.interrupt.signal
        finally:
            missing = conclude_in(tracker, about, jury)
            settle(place)
    if signal is not None:
        print(advice, file=sys.stderr)
        raise Stopped(signal)
    return ConfirmResult(
        search=about.name,
        number=confirmation.number,
        folder=place,
        verdict=jury.verdict,
        value=jury.value(),
        untracked=missing,
    )


def open_jury(place: Path, about: About, confirmation: Confirmation, *, retry: bool = True) -> Jury:
    """The jury of the confirmation in `place`, with all that was tried so far. retry: errors are no end."""
    task = TASKS[confirmation.field.arms[0].config.task]
    question = confirmation.question(task, about.settings.equal)
    study = study_in(place, about, maximize=question.maximize)
    roster = Roster(study, confirmation.plan(task, about.plan["budget"]), [], retry=retry)
    return Jury(place, about.name, confirmation, question, roster, kept=about.kept / place.name)


def _open_data(folder: Path, about: About, config: TrialConfig) -> Task:
    """Decodes the images where they no longer are. Raises InputError for others than the search had."""
    check_same(config, folder, about.name)
    return open_task(config, about.settings.runtime)


def conclude_in(tracker: Tracker, about: About, jury: Jury, **patience: float) -> int:
    """End the confirmation's run in MLflow, with the verdict if there is one.

    Returns how many trials MLflow has not taken, 0 if it has all of it.
    """
    roster, best = jury.roster, jury.best_of_lead()
    counts = Counter(record.state for record in roster.records.values())
    missing = tracker.finish(
        best=best,
        metric=None,  # the largest of many seeds' scores says nothing
        counts=counts,
        stopped=roster.left + counts[State.RUNNING] > 0,
        **patience,
    )
    if jury.verdict.complete:
        winner = tracker.runs.get(best.number) if best is not None and jury.verdict.winner else None
        missing += tracker.conclude(about.identity, jury.value(), winner)
    return missing


class _ArmKeeper(Keeper):
    """Keeps the checkpoint of each arm's training with the best validation."""

    def __init__(
        self, kept: Storage, plan: Plan, records: Iterable[TrialRecord], *, metric: str, told: Any
    ) -> None:
        super().__init__(kept, plan, records, keep=1, told=told)
        self.metric = metric

    def staying(self) -> list[TrialRecord]:
        sign = 1 if self.plan.maximize else -1
        best: dict[str, TrialRecord] = {}
        for record in sorted(self.held.values(), key=lambda r: r.number):  # of equals the first, as the jury
            if record.state is State.COMPLETE:
                other = best.get(record.arm)
                if other is None or sign * record.value(self.metric) > sign * other.value(self.metric):
                    best[record.arm] = record
        return list(best.values())
