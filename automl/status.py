"""How a search stands, read from its folder: beside the process that runs it, or after its end."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from automl.confirmation import VERDICT, confirmations
from automl.folder import find_latest, find_search, is_running
from automl.settings import command
from automl.units import duration
from search.ledger import Plan, leaders
from search.record import State, TrialRecord
from search.study import read_records


@dataclass(frozen=True, kw_only=True)
class Status:
    """A search at one moment.

    running: a process is at it. trials: planned, None for as many as there is time for. states: how many
    trials stand how. best, baseline: names and scores of the best trial and of the best without attention.
    quiet: seconds since the last epoch ended, None before the first. hours: of training, over all slots.
    left: seconds that the rest takes at the pace so far. verdict: of the latest confirmation, in words.
    resume: the command that goes on with it.
    """

    search: str
    folder: str
    running: bool
    trials: int | None
    states: dict[str, int]
    metric: str
    best: tuple[str, float] | None
    baseline: tuple[str, float] | None
    quiet: float | None
    hours: float
    left: float | None
    verdict: str | None
    resume: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """For a terminal."""
        ended = sum(count for state, count in self.states.items() if state != State.RUNNING)
        of = f" of {self.trials}" if self.trials else ""
        parts = [f"{count} {state}" for state, count in self.states.items() if count]
        lines = [
            f"search    {self.search}: {'running' if self.running else 'not running'}, {self.folder}",
            f"trials    {ended}{of} ended" + (f" ({', '.join(parts)})" if parts else ""),
        ]
        for title, one in (("best", self.best), ("baseline", self.baseline)):
            if one is not None:
                lines.append(f"{title:9} {self.metric} {one[1]:.4f}  {one[0]}")
        timing = f"time      {self.hours:.3g} hours of training"
        if self.quiet is not None:
            timing += f", the last epoch ended {duration(self.quiet)} ago"
        if self.left is not None:
            timing += f", about {duration(self.left)} left"
        lines.append(timing)
        if self.verdict is not None:
            lines.append(f"verdict   {self.verdict}")
        if not self.running and (self.states.get(State.RUNNING) or (self.trials or 0) > ended):
            lines.append(f"next      {self.resume}")
        return lines


def read_status(name: str | None = None, storage: str = "searches") -> Status:
    """The status of the search called `name`, or of the latest one. Raises InputError when there is none."""
    folder, about = find_search(name or find_latest(storage), storage)
    plan = Plan(**about.plan)
    records = read_records(folder, about.name)
    counts = Counter(record.state for record in records)
    best, baseline = leaders(records, plan)
    first = plan.objectives[0]

    def told(record: TrialRecord | None) -> tuple[str, float] | None:
        return None if record is None else (record.name, record.value(first))

    epochs = [metrics for record in records for metrics in record.history]
    times = [metrics["time"] for metrics in epochs if "time" in metrics]
    ended = len(records) - counts[State.RUNNING]
    running = is_running(folder, about.kept)
    left = None
    if running and plan.trials is not None and 0 < ended < plan.trials and len(times) > 1:
        left = (max(times) - min(times)) / ended * (plan.trials - ended)
    places = [place for place in confirmations(folder) if (place / VERDICT).exists()]
    return Status(
        search=about.name,
        folder=str(about.kept),
        running=running,
        trials=plan.trials,
        states={str(state): counts[state] for state in State},
        metric=first,
        best=told(best),
        baseline=told(baseline),
        quiet=max(0.0, time.time() - max(times)) if times else None,
        hours=sum(metrics.get("seconds", 0.0) for metrics in epochs) / 3600,
        left=left,
        verdict=json.loads((places[-1] / VERDICT).read_text())["sentence"] if places else None,
        resume=command("search --resume", about.name, storage),
    )
