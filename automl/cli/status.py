"""The state of a search, read from its folder while it runs or after its end."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automl.config.command_line import format_command
from automl.config.units import format_duration
from automl.confirm.protocol import confirmations, latest_verdict
from automl.storage.folder import find_search, is_lost, is_running, resolve_search
from search.record import State, TrialRecord
from search.serialise import convert_fields
from search.study import PLACEMENT_VERDICT, STUDY_FILE, read_attribute, read_records
from search.trial_scheduler import Plan, select_leaders

INTERRUPTED = "interrupted"  # a trial that has not ended, where no process is running it


@dataclass(frozen=True, kw_only=True)
class Status:
    """A search at one moment.

    state: `running`; `confirming`; `stopped`, where `resume` is the command for it or its confirmation;
        `finished`; `lost`, when its study is gone.
    space: of the search. trials: planned, None where a time is given instead.
    states: the number of trials by state; running ones without a process are `interrupted`.
    best, baseline: names and scores of the best trial and of the best without attention. steps: the training
        steps of these two, where they are known.
    quiet: seconds since the last epoch ended, None before the first. hours: of training, over all slots.
    left: seconds that the rest takes at the rate so far, in as many slots as are in use.
    said: the latest confirmation's verdict in one word, `unfinished` before it has one, None without any.
    verdict, figures: its headline and the line of figures below it. resume: the command that resumes it.
    """

    search: str
    space: str
    folder: str
    state: str
    trials: int | None
    states: dict[str, int]
    metric: str
    best: tuple[str, float] | None
    baseline: tuple[str, float] | None
    steps: dict[str, int]
    quiet: float | None
    hours: float
    left: float | None
    said: str | None
    verdict: str | None
    figures: str | None
    resume: str

    @property
    def running(self) -> bool:
        """A process is running it."""
        return self.state in ("running", "confirming")

    @property
    def ended(self) -> int:
        """Trials that have."""
        return sum(self.states.values()) - self.states[State.RUNNING] - self.states[INTERRUPTED]

    def to_json(self) -> dict[str, Any]:
        return {**convert_fields(self), "running": self.running}

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = [f"search    {self.search}: {self.state}, {self.folder}"]
        if self.state == "lost":
            return [
                *lines,
                f"trials    unknown: {STUDY_FILE} is missing or empty, but there were trials",
                f"next      restore {STUDY_FILE} from a copy, or {self.resume}",
            ]
        of = f" of {self.trials}" if self.trials else ""
        parts = [f"{count} {state}" for state, count in self.states.items() if count]
        lines.append(f"trials    {self.ended}{of} ended" + (f" ({', '.join(parts)})" if parts else ""))
        for title, leader in (("best", self.best), ("baseline", self.baseline)):
            if leader is not None:
                name, score = leader
                after = f" after {self.steps[title]} steps" if title in self.steps else ""
                lines.append(f"{title:9} {self.metric} {score:.4f}{after}  {name}")
        timing = f"time      {self.hours:.3g} hours of training"
        if self.quiet is not None:
            timing += f", the last epoch ended {format_duration(self.quiet)} ago"
        if self.left is not None:
            timing += f", about {format_duration(self.left)} left"
        lines.append(timing)
        if self.verdict is not None:
            lines += [f"verdict   {self.verdict}", f"          {self.figures}"]
        if self.state == "stopped":
            lines.append(f"next      {self.resume}")
        return lines


def read_status(name: str | None = None, storage: str = "searches") -> Status:
    """The status of the search called `name`, or of the latest one.

    Raises InputError when there is none, or when one of its files is damaged.
    """
    folder, metadata = find_search(*resolve_search(name, storage))
    plan = metadata.plan
    records = read_records(folder, metadata.name, plan.needed)
    counts = Counter(str(record.state) for record in records)
    best, baseline = select_leaders(records, plan)
    first = plan.objectives[0]

    def shown(record: TrialRecord | None) -> tuple[str, float] | None:
        return None if record is None else (record.name, record.value(first))

    epochs = [metrics for record in records for metrics in record.history]
    times = [metrics["time"] for metrics in epochs if "time" in metrics]
    found = latest_verdict(folder)
    begun = confirmations(folder)
    # A confirmation that was begun is whole when its verdict is, and what explains a gain has been trained.
    whole = (
        found is not None
        and found[0] == begun[-1]
        and found[1].complete
        and not (found[1].winner and found[1].pending)
    )
    unfinished = bool(begun) and not whole
    is_shared = metadata.settings.shares_training and records
    decided = read_attribute(folder, metadata.name, PLACEMENT_VERDICT) if is_shared else None
    open_trials = counts[State.RUNNING] > 0 or (len(records) < (plan.trials or 0) and not decided)
    resume = format_command("search --resume", metadata.name, storage)
    running = is_running(folder, metadata.location)
    if not records and is_lost(folder, metadata):
        state = "lost"
        resume = f"delete the search: {format_command('remove', metadata.name, storage)}"
    elif running:
        state = "confirming" if unfinished else "running"
    else:
        counts[INTERRUPTED] = counts.pop(State.RUNNING, 0)
        state = "stopped" if open_trials or unfinished else "finished"
        if unfinished:
            resume = format_command("confirm --search", metadata.name, storage)
    return Status(
        search=metadata.name,
        space=metadata.settings.space_name,
        folder=str(metadata.location),
        state=state,
        trials=plan.trials,
        states={state: counts[state] for state in (*map(str, State), INTERRUPTED)},
        metric=first,
        best=shown(best),
        baseline=shown(baseline),
        steps={
            title: record.steps
            for title, record in (("best", best), ("baseline", baseline))
            if record is not None and record.steps is not None
        },
        quiet=max(0.0, time.time() - max(times)) if times else None,
        hours=sum(map(_seconds, records)) / 3600,
        left=_left(records, plan) if state == "running" else None,
        said=(found[1].verdict if found and not unfinished else "unfinished") if begun else None,
        verdict=found[1].headline if found else None,
        figures=found[1].figures if found else None,
        resume=resume,
    )


def _left(records: Sequence[TrialRecord], plan: Plan) -> float | None:
    """Seconds until all trials have ended, if they take what the ended ones took; None where unknown.

    What is counted is time in which something was trained: a search may have been stopped overnight.
    """
    at_it = [record for record in records if record.state is State.RUNNING]
    ended = [record for record in records if record.state is not State.RUNNING]
    mean = sum(map(_seconds, ended)) / len(ended) if ended else 0.0
    if plan.trials is None or len(ended) >= plan.trials or not mean:
        return None
    left = mean * (plan.trials - len(ended)) - sum(min(mean, _seconds(record)) for record in at_it)
    return left / max(1, len(at_it))


def _seconds(record: TrialRecord) -> float:
    """Of training."""
    return sum(metrics.get("seconds", 0.0) for metrics in record.history)
