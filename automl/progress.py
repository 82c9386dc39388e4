"""A search as it goes: a live table on a terminal, one line an event in a log. Both on stderr."""

import time
from collections import Counter

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from search.record import State, TrialRecord

ROWS = 15


def duration(seconds: float) -> str:
    """Readable time: `45s`, `3m20s`, `2h05m`."""
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m{s % 60:02d}s" if s < 3600 else f"{s // 3600}h{s % 3600 // 60:02d}m"


class Progress:
    """A listener that shows the trials, the best so far and the time left. Use as a context."""

    def __init__(self, *, trials: int, concurrent: int, metric: str, maximize: bool) -> None:
        self.trials, self.concurrent, self.metric = trials, concurrent, metric
        self.sign = 1 if maximize else -1
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, transient=True) if self.console.is_terminal else None
        self.records: dict[int, TrialRecord] = {}
        self.begun = time.monotonic()

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def started(self, trial: TrialRecord) -> None:
        self.records[trial.number] = trial
        self._show()

    def reported(self, trial: TrialRecord) -> None:
        self._show()

    def ended(self, trial: TrialRecord) -> None:
        if not self.live:
            self.console.print(
                f"{time.strftime('%H:%M:%S')} {self._event(trial)}",
                soft_wrap=True,
                highlight=False,
                markup=False,  # an error's text may hold brackets
            )
        self._show()

    def saved(self, trial: TrialRecord) -> None:
        pass

    def _event(self, trial: TrialRecord) -> str:
        text = f"{trial.name}: {trial.state}"
        if trial.history:
            last = trial.history[-1]
            text += f" at epoch {last['epoch']:.0f}, {self.metric} {last[self.metric]:.4f}"
        if trial.reason:
            text += f" ({trial.reason})"
        return f"{text} | {self._summary()}"

    def _summary(self) -> str:
        counts = Counter(record.state for record in self.records.values())
        ended = sum(counts.values()) - counts[State.RUNNING]
        text = f"{ended}/{self.trials} trials"
        for state in (State.RUNNING, State.PRUNED, State.INFEASIBLE, State.ERROR):
            if counts[state]:
                text += f", {counts[state]} {state}"
        done = [r for r in self.records.values() if r.state is State.COMPLETE]
        if done:
            best = max(done, key=lambda r: self.sign * r.history[-1][self.metric])
            text += f", best {best.history[-1][self.metric]:.4f} ({best.name})"
        if 0 < ended < self.trials:
            left = (time.monotonic() - self.begun) / ended * (self.trials - ended)
            text += f", about {duration(left)} left"
        return text

    def _show(self) -> None:
        if not self.live:
            return
        table = Table(box=None, pad_edge=False)
        for heading in ("trial", "state", "epoch", self.metric):
            table.add_column(heading)
        for record in sorted(self.records.values(), key=lambda r: r.number)[-ROWS:]:
            last = record.history[-1] if record.history else None
            table.add_row(
                record.name,
                str(record.state),
                f"{last['epoch']:.0f}/{record.config.training.epochs}" if last else "",
                f"{last[self.metric]:.4f}" if last else "",
            )
        self.live.update(Group(table, Text(self._summary())), refresh=True)
