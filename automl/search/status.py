"""State of a search, while it runs or afterwards, and the list of all searches of a storage."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.serialise import convert_fields, without_torch
from automl.base.terminal import wrap
from automl.base.units import format_duration, pluralize
from automl.judge.protocol import confirmations, is_open, trials_of
from automl.judge.scheduler import latest_verdict
from automl.storage import folder as search_folder
from automl.storage.metadata import SearchMetadata
from automl.storage.storage import Storage
from automl.storage.trial_files import describe_original
from search.halving import ROUNDING
from search.record import NOT_NEEDED, State, TrialRecord
from search.study import STUDY_FILE, read_records
from search.trial_scheduler import Plan, estimate_left

INTERRUPTED = "interrupted"  # state of a running trial without a process


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of a search.

    Attributes:
        state: `running`, `confirming`, `stopped`, `finished`, or `lost` if its study is missing.
        trials: Number of planned trials. None: only the time is limited.
        states: Number of trials by state. Running ones without a process are `interrupted`, and trainings
            that a verdict did without are `not needed`.
        rungs: The resource of each rung [epochs], and the number of trials that reached it.
        metric: Name of the metric.
        best: Name and score of the best trial.
        baseline: Name and score of the best trial without attention.
        original: Trained model that the search starts from, and what the best trial saves. Empty without one.
        shown: Score of these two with its unit.
        steps: Training steps of these two, if known.
        quiet: Time since the last report of a trial [s]. None before the first.
        hours: Training time of all slots [h].
        left: Estimated remaining time with the slots in use [s].
        outcome: Outcome of the latest confirmation that is complete, or `unfinished`. None without a
            confirmation.
        verdict: Headline of its verdict.
        verdict_lines: The verdict in at most three lines, and its cause in another one.
        resume: The command that resumes the search or its confirmation. Empty if it is lost.
    """

    search: str
    space: str
    folder: str
    state: str
    trials: int | None
    states: dict[str, int]
    rungs: list[tuple[float, int]]
    metric: str
    best: tuple[str, float] | None
    baseline: tuple[str, float] | None
    original: str
    shown: dict[str, str]
    steps: dict[str, int]
    quiet: float | None
    hours: float
    left: float | None
    outcome: str | None
    verdict: str | None
    verdict_lines: list[str]
    resume: str

    @property
    def running(self) -> bool:
        """True if a process is running the search."""
        return self.state in ("running", "confirming")

    @property
    def ended(self) -> int:
        """Number of trials that have ended."""
        return sum(self.states.values()) - self.states[State.RUNNING] - self.states[INTERRUPTED]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON."""
        return {**convert_fields(self), "running": self.running}

    def lines(self) -> list[str]:
        """Return the state as lines for a terminal."""
        lines = [f"search    {self.search}: {self.state}, {self.folder}"]
        if self.state == "lost":
            return [
                *lines,
                f"trials    unknown: {STUDY_FILE} is missing or empty, but trials were started",
                f"next      restore {STUDY_FILE} from a backup, or delete the search with its folder",
            ]
        planned = f" of {self.trials}" if self.trials else ""
        counts = ", ".join(f"{count} {state}" for state, count in self.states.items() if count)
        lines.append(f"trials    {self.ended}{planned} ended" + (f" ({counts})" if counts else ""))
        if self.rungs:
            reached = ", ".join(f"{count} reached epoch {round(rung, 2):g}" for rung, count in self.rungs)
            lines.append(f"rungs     {reached}")
        for title, leader in (("best", self.best), ("baseline", self.baseline)):
            if leader is not None:
                name, score = leader[0], self.shown[title]
                after = f" after {pluralize(self.steps[title], 'steps')}" if title in self.steps else ""
                lines.append(f"{title:9} {self.metric} {score}{after}  {name}")
        lines += wrap("original", self.original)
        timing = f"time      {format_duration(3600 * self.hours)} of training"
        if self.quiet is not None:
            timing += f", the last report {format_duration(self.quiet)} ago"
        if self.left is not None:
            timing += f", about {format_duration(self.left)} left"
        lines.append(timing)
        for i, line in enumerate(self.verdict_lines):
            lines += wrap("" if i else "verdict", line)
        if self.state == "stopped":
            lines.append(f"next      {self.resume}")
        return lines


def read_status(search: str | search_folder.NamedSearch | None = None, storage: str | None = None) -> Status:
    """Read how far a search is, while it runs or afterwards.

    Args:
        search: The name of the search, or its result. By default the latest search in `storage`.
        storage: The storage of the search. By default that of the result, or `searches`.

    Returns:
        The state, the number of trials, the best ones, the time that is left, and the verdict.

    Raises:
        InputError: There is no such search, or one of its files is damaged.

    Example:
        After the example of `run_search`:

        >>> automl.read_status("example").running
        False
    """
    return _read(*search_folder.resolve_search(search, storage))


@without_torch()
def _read(name: str, storage: str, *, configs: bool = True) -> Status:
    """Read the state of a search. Without `configs`, best trial and baseline have no names."""
    folder, metadata = search_folder.find_search(name, storage)
    started = confirmations(folder)
    trials_folder, study, plan = trials_of(folder, metadata)
    records = read_records(trials_folder, study, plan.needed, configs=configs)
    settings = metadata.settings
    best, baseline = metadata.leaders(records, plan)
    milestones = metadata.milestones(plan)
    leaders = {title: trial for title, trial in (("best", best), ("baseline", baseline)) if trial is not None}
    scores = {
        title: (leader.name if configs else "", leader.value(plan.metric.name))
        for title, leader in leaders.items()
    }

    epochs = [metrics for record in records for metrics in record.history]
    times = [metrics["time"] for metrics in epochs if "time" in metrics]
    latest = latest_verdict(folder, metadata)
    verdict_folder, verdict = latest or (None, None)
    # A confirmation is complete with its verdict and, if there is a winner, the trainings of controls.
    is_complete = (
        verdict is not None
        and verdict_folder == started[-1]
        and verdict.complete
        and not (verdict.winner and verdict.pending)
    )
    unfinished = bool(started) and not is_complete
    settled = latest_verdict(folder, metadata, complete=True) if unfinished else latest
    if unfinished and settled and settled[0] == started[-1]:  # its controls have not ended
        settled = None
    state, command = _find_state(folder, metadata, plan, records, bool(started), unfinished)
    counts = Counter(record.condition for record in records)
    if state in ("stopped", "finished"):
        counts[INTERRUPTED] = counts.pop(State.RUNNING, 0)
    return Status(
        search=metadata.name,
        space=settings.question.space_name,
        folder=str(metadata.location),
        state=state,
        trials=plan.trials,
        states={state: counts[state] for state in (*map(str, State), NOT_NEEDED, INTERRUPTED)},
        rungs=[(m, sum(record.resource > m - ROUNDING for record in records)) for m in milestones],
        metric=plan.metric.name,
        best=scores.get("best"),
        baseline=scores.get("baseline"),
        original=describe_original(folder, plan.metric, best if configs else None),
        shown={title: plan.metric.show(score) for title, (_, score) in scores.items()},
        steps={title: leader.steps for title, leader in leaders.items() if leader.steps is not None},
        quiet=max(0.0, time.time() - max(times)) if times else None,
        hours=sum(metrics.get("seconds", 0.0) for metrics in epochs) / 3600,
        left=_left(records, plan) if state == "running" else None,
        outcome=(settled[1].final if settled else "unfinished") if started else None,
        verdict=verdict.headline if verdict else None,
        verdict_lines=[*verdict.lines, *([verdict.cause] if verdict.cause else [])] if verdict else [],
        resume=format_command(command, metadata.name, storage) if command else "",
    )


def _find_state(
    folder: Path,
    metadata: SearchMetadata,
    plan: Plan,
    records: Sequence[TrialRecord],
    started: bool,
    unfinished: bool,
) -> tuple[str, str]:
    """Return the state of a search and the command that resumes it, if one does."""
    # `started` tells that it has a confirmation, and `unfinished` that the latest one has no final verdict.
    if not records and search_folder.is_lost(folder, metadata.location):
        return "lost", ""
    resume = metadata.resume_command
    if search_folder.is_running(folder, metadata.location):
        return "confirming" if unfinished else "running", resume
    if not metadata.has_trials:  # a verdict may need fewer runs than were planned
        return "stopped" if unfinished or not started else "finished", resume
    if unfinished:
        return "stopped", "confirm --search"
    return "stopped" if is_open(plan, records) else "finished", resume


def _left(records: Sequence[TrialRecord], plan: Plan) -> float | None:
    """Estimate the remaining time [s]. None if unknown."""
    # Only training time counts, since a search may have been stopped overnight.
    running = [record for record in records if record.state is State.RUNNING]
    if plan.trials is None or len(records) - len(running) >= plan.trials:
        return None
    now = time.time()
    elapsed = {
        r.number: now - r.history[-1]["time"] for r in running if r.history and r.history[-1].get("time")
    }
    return estimate_left(plan, records, trials=plan.trials, slots=max(1, len(running)), elapsed=elapsed)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Row of the list of searches.

    Attributes:
        state: As of `Status`, or `damaged`.
        ended: Number of trials that have ended.
        trials: Number of planned trials. None: only the time is limited.
        metric: Name of the metric.
        best: Its value in the best trial.
        shown: This value with its unit.
        verdict: Outcome of the latest confirmation.
        age: Time since a process last wrote to the search [s].
        size: Size with checkpoints [bytes].
        problem: Error message of a damaged search.
    """

    name: str
    space: str = ""
    state: str = "damaged"
    ended: int = 0
    trials: int | None = None
    metric: str = ""
    best: float | None = None
    shown: str = ""
    verdict: str | None = None
    age: float
    size: int
    problem: str | None = None


def list_searches(storage: str = "searches") -> list[Listed]:
    """List the searches of a storage, the last used first. A damaged one is listed with its problem.

    Args:
        storage: The folder of all searches, or its address.

    Returns:
        Name, state, trials, best score, verdict, age and size of each search.

    Raises:
        InputError: The storage cannot be read.

    Example:
        After the example of `run_search`:

        >>> [row.name for row in automl.list_searches() if row.name == "example"]
        ['example']
    """
    now, worked = time.time(), search_folder.last_worked(storage)
    return [
        _listed(name, storage, max(0.0, now - worked[name]))
        for name in sorted(worked, key=lambda name: worked[name], reverse=True)
    ]


def _listed(name: str, storage: str, age: float) -> Listed:
    location, size = Storage(storage) / name, 0
    try:
        with search_folder.reached(location):
            size = location.total()
        status = _read(name, storage, configs=False)
    except (InputError, OSError) as error:
        return Listed(name=name, age=age, size=size, problem=str(error))
    except Exception as error:  # a defect of this project must not hide the other searches
        return Listed(name=name, age=age, size=size, problem=f"it cannot be read ({error!r})")
    best, shown = status.best and status.best[1], status.shown.get("best", "")
    same = {key: getattr(status, key) for key in ("space", "state", "ended", "trials", "metric")}
    return Listed(name=name, **same, best=best, shown=shown, verdict=status.outcome, age=age, size=size)
