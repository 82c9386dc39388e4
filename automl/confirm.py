"""Is it really better? Finalists and the tuned baseline, trained anew with fresh paired seeds.

The seeds are ones that no trial of the search has had. Each gives all arms the same order of the images and
the same initial trunk, so that what differs between two arms at one seed is what sits in them. Each arm has
the same time, as in the search, and is scored once, after its last epoch, on the test split.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.study import StudyDirection

from attention import InputError
from automl.arms import Arm, Field, ablations, choose_arms
from automl.folder import About, find_latest, old_folder, provenance
from automl.keeper import Keeper
from automl.limits import Limits
from automl.logs import chatter_to
from automl.search import Stopped, Traces
from automl.settings import draw_baseline, reference
from automl.statistics import ALPHA, least_pairs
from automl.tasks import Task, open_task
from automl.verdict import Question, Scores, Verdict, collect, judge
from search.ledger import Plan
from search.record import Role, State, TrialRecord
from search.roster import Entry, Roster
from search.spaces import load
from search.study import FILE as STUDY
from search.study import close_study, create_study, open_study, own_trials, read_record

# Ray and MLflow take seconds to import; a mistake in the arguments is told before that.

FOLDER, FILE, VERDICT = "confirm", "confirm.json", "verdict.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen. Raises InputError for what cannot work.

    top: finalists. seeds: of each arm. margin: the least difference that matters, in the metric's unit, such
    as points. sequential: stop adding seeds as soon as the question is decided.
    """

    top: int = 3
    seeds: int = 10
    margin: float = 0.5
    sequential: bool = False

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputError(f"--top must be 1 or more; got {self.top}")
        if self.seeds < 2:
            raise InputError(
                f"--seeds must be 2 or more, and {least_pairs(ALPHA / self.top)} or more to show anything: "
                f"one seed says nothing of how far seeds differ; got {self.seeds}"
            )
        if not self.margin >= 0:
            raise InputError(f"--margin must be 0 or more, in points; got {self.margin:g}")


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What `confirm.json` holds: fixed before the first trial, so that nobody chooses after seeing scores.

    number: 1 for a search's first. seeds: of each arm, in order. field: who takes part.
    """

    number: int
    options: Options
    seeds: list[int]
    field: Field
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            **vars(self),
            "options": asdict(self.options),
            "field": self.field.to_json(),
        }

    @classmethod
    def read(cls, folder: Path) -> "Confirmation":
        """Raises InputError when the file is damaged."""
        try:
            value = json.loads((folder / FILE).read_text())
            if value.pop("format") != 1:
                raise KeyError("format")
            options, field = Options(**value.pop("options")), Field.from_json(value.pop("field"))
            return cls(**value, options=options, field=field)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{folder / FILE} is damaged or not one of ours ({error!r})") from error


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
    name = search or find_latest(storage)
    with old_folder(name, storage) as (folder, about):
        about = replace(about, settings=replace(about.settings, storage=storage))
        records = _read(folder, about.name)
        place, confirmation = _begin(folder, about, records, chosen, again=again)
        task = open_task(confirmation.field.arms[0].config, about.settings.runtime)
        with chatter_to(place / "log.txt"):
            return _run(place, about, confirmation, task, ablate=ablate)


def confirmations(folder: Path) -> list[Path]:
    """The folders of a search's confirmations, the first one first."""
    found = [path.parent for path in folder.glob(f"{FOLDER}*/{FILE}")]
    return sorted(found, key=lambda path: Confirmation.read(path).number)


def _read(folder: Path, name: str) -> list[TrialRecord]:
    """The trials of the study in `folder`."""
    if not (folder / STUDY).exists():
        return []
    study = open_study(folder, name=name)
    found = [read_record(trial) for trial in own_trials(study)]
    close_study(study)
    return [record for record in found if record is not None]


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
    confirmation = Confirmation(
        number=len(there) + 1,
        options=options,
        seeds=[(first + i) % 2**32 for i in range(options.seeds)],
        field=field,
        provenance=provenance(),
    )
    place = folder / (FOLDER if not there else f"{FOLDER}-{confirmation.number}")
    place.mkdir(exist_ok=True)
    write(place / FILE, confirmation.to_json())
    return place, confirmation


def _run(place: Path, about: About, confirmation: Confirmation, task: Task, *, ablate: bool) -> ConfirmResult:
    from automl.progress import Progress
    from automl.tracking import conclude, open_confirmation
    from automl.workers import open_workers, settle

    settings, options = about.settings, confirmation.options
    question = Question(
        seeds=confirmation.seeds,
        equal=f"equal {settings.equal}",
        margin=options.margin,
        sequential=options.sequential,
        metric=task.metric,
        maximize=task.direction == "maximize",
        scale=task.scale,
        unit=task.unit,
    )
    metric = f"test_{task.metric}"
    plan = Plan(
        trials=len(confirmation.seeds) * len(confirmation.field.arms) + len(confirmation.field.rivals),
        budget=about.plan["budget"],
        metric=metric,
        maximize=question.maximize,
        objectives=[metric],
        baseline_share=0,
    )
    name = f"{about.name}-{place.name}"
    study = (
        open_study(place, name=name)
        if (place / STUDY).exists()
        else create_study(
            place,
            name=name,
            directions=[StudyDirection.MAXIMIZE if question.maximize else StudyDirection.MINIMIZE],
        )
    )
    roster = Roster(study, plan, [])
    bench = _Bench(place, about, confirmation, question, roster, metric)
    advice = f"go on with: automl confirm --search {about.name}" + (
        f" --storage {settings.storage}" if settings.storage != "searches" else ""
    )
    least = least_pairs(ALPHA / sum(arm.role is Role.FINALIST for arm in confirmation.field.arms))
    if options.seeds < least:
        print(
            f"warning: {options.seeds} seeds can show no difference, however large; it takes {least}",
            file=sys.stderr,
        )
    bench.look(ablate)
    signal, missing = None, 0
    tracker = open_confirmation(
        place,
        about,
        confirmation.number,
        about_it={**asdict(options), "first_seed": confirmation.seeds[0]},
        plan=confirmation.to_json(),
    )
    try:
        for record in roster.records.values():
            tracker.update(record)
        if roster.left:
            with open_workers(settings, place / "log.txt", advice) as workers:
                keeper = _ArmKeeper(
                    place, plan, roster.records.values(), metric=task.metric, told=tracker.update
                )
                print(f"confirming {about.name} in {place}; if anything ends it, {advice}", file=sys.stderr)
                while roster.left and workers.interrupt.signal is None and not roster.hopeless:
                    before = len(roster.records)
                    plan = replace(plan, trials=max(plan.trials or 0, len(roster.entries)))
                    progress = Progress(
                        plan,
                        roster.records,
                        summary=bench.summary,
                        devices=workers.devices,
                        device=workers.device,
                    )
                    roster.listeners = [keeper, tracker, bench, progress, Traces(place)]
                    with progress:
                        workers.run(
                            roster,
                            place,
                            reference=reference(draw_baseline(load(settings.space), settings)),
                            limits=Limits(),
                            test=True,
                        )
                    bench.look(ablate)
                    if len(roster.records) == before and not roster.unfinished:
                        break
                signal = workers.interrupt.signal
    finally:
        best = bench.best_of_lead()
        counts = Counter(record.state for record in roster.records.values())
        missing = tracker.finish(
            best=best, metric=metric, counts=counts, stopped=bool(roster.left) or counts[State.RUNNING] > 0
        )
        settle(place, roster)
    value = bench.value()
    if signal is not None:
        print(advice, file=sys.stderr)
        raise Stopped(signal)
    if bench.verdict.complete:
        winner = tracker.runs.get(best.number) if best is not None and bench.verdict.winner else None
        try:
            conclude(about, value, winner)
        except Exception as error:
            print(f"warning: MLflow did not take the verdict ({error}); later: automl sync", file=sys.stderr)
            missing = max(1, missing)
    return ConfirmResult(
        search=about.name,
        number=confirmation.number,
        folder=place,
        verdict=bench.verdict,
        value=value,
        untracked=missing,
    )


def _entries(arms: Iterable[Arm], seeds: Iterable[int]) -> list[Entry]:
    """Each arm with each seed, seed after seed, so that pairs are whole as early as can be."""
    arms = list(arms)
    return [
        Entry(arm=arm.name, role=arm.role, config=replace(arm.config, seed=seed))
        for seed in seeds
        for arm in arms
    ]


class _Bench:
    """A listener that judges as the scores come in, and says what is still to be trained.

    First come the rivals, once each; then all arms with every seed, against the best baseline; then the
    ablations, if they are asked for. All of it follows from the study, so that it goes on where it was.

    arms: those that are judged, the baseline first.
    """

    def __init__(
        self,
        place: Path,
        about: About,
        confirmation: Confirmation,
        question: Question,
        roster: Roster,
        metric: str,
    ) -> None:
        self.place, self.about, self.confirmation = place, about, confirmation
        self.question, self.roster, self.metric = question, roster, metric
        self.arms: list[Arm] = []
        self.verdict = Verdict(question=question)

    def started(self, trial: TrialRecord) -> None:
        pass

    def reported(self, trial: TrialRecord) -> None:
        pass

    def ended(self, trial: TrialRecord) -> None:
        self.look(False)

    def look(self, ablate: bool) -> None:
        """Judge anew, and write down what came of it. ablate: train the ablations when the rest is over."""
        field, roster = self.confirmation.field, self.roster
        first = [Entry(arm=arm.name, role=arm.role, config=arm.config) for arm in field.rivals]
        ended = {r.arm: r for r in roster.records.values() if r.state is not State.RUNNING}
        if any(arm.name not in ended for arm in field.rivals):
            roster.entries = first
            return
        self.arms = [self._baseline(ended), *field.arms[1:]]
        self._judge()
        seeds = list(self.question.seeds)
        if self.verdict.complete:  # what nobody needs any more is not begun, and cut where it runs
            seeds = [seed for seed in seeds if seed in self.verdict.used]
        roster.entries = [*first, *_entries(self.arms, seeds)]
        if self.verdict.complete and self.verdict.lead is not None:
            made = ablations(self.verdict.lead.arm)
            if ablate or any(arm.name in ended for arm in made):
                self.arms += made
                roster.entries += _entries(made, seeds)
                self._judge()
        write(self.place / VERDICT, self.value())

    def _baseline(self, ended: dict[str, TrialRecord]) -> Arm:
        """The best by validation of the search's own baseline and its rivals."""
        field, sign = self.confirmation.field, 1 if self.question.maximize else -1
        best, score = field.arms[0], sign * field.score
        for arm in field.rivals:
            record = ended[arm.name]
            if record.state is State.COMPLETE and sign * record.value(self.question.metric) > score:
                best, score = arm, sign * record.value(self.question.metric)
        return best

    def _judge(self) -> None:
        self.verdict = judge(self.question, self.arms, self._scores())

    def _scores(self) -> dict[str, Scores]:
        return collect(self.arms, self.roster.records.values(), self.metric, self.question.seeds)

    def value(self) -> dict[str, Any]:
        value = self.verdict.to_json(self.arms, self._scores())
        value["warnings"] = [*self.confirmation.field.warnings, *value["warnings"]]
        return {"search": self.about.name, "confirmation": self.confirmation.number, **value}

    def summary(self) -> str:
        lead = self.verdict.lead
        if lead is None:
            return "" if self.arms else "looking for the best baseline"
        d = lead.difference
        return (
            f"{len(self.verdict.used)} seeds, {lead.arm.name} {d.mean:+.2f} {self.question.unit} "
            f"({d.low:.2f} to {d.high:.2f})"
        )

    def best_of_lead(self) -> TrialRecord | None:
        """Of the leading finalist's trainings the one with the best validation: test chooses nothing."""
        if self.verdict.lead is None:
            return None
        sign = 1 if self.question.maximize else -1
        trials = [
            record
            for record in self.roster.records.values()
            if record.arm == self.verdict.lead.arm.name and record.state is State.COMPLETE
        ]
        return max(trials, key=lambda r: sign * r.value(self.question.metric), default=None)


class _ArmKeeper(Keeper):
    """Keeps the checkpoint of each arm's training with the best validation."""

    def __init__(
        self, folder: Path, plan: Plan, records: Iterable[TrialRecord], *, metric: str, told: Any
    ) -> None:
        super().__init__(folder, plan, records, keep=1, told=told)
        self.metric = metric

    def staying(self) -> list[TrialRecord]:
        sign = 1 if self.plan.maximize else -1
        best: dict[str, TrialRecord] = {}
        for record in self.held.values():
            if record.state is State.COMPLETE:
                other = best.get(record.arm)
                if other is None or sign * record.value(self.metric) > sign * other.value(self.metric):
                    best[record.arm] = record
        return list(best.values())


def write(file: Path, value: dict[str, Any]) -> None:
    """Write JSON, atomically."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(value, indent=2))
    os.replace(new, file)
