"""Progress on stderr: a line for each trial that ends, and for long epochs."""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from textwrap import wrap

from rich.console import Console

from automl.base.escape import printable
from automl.base.terminal import plain
from automl.base.units import format_duration, pluralize
from search.record import Callback, State, TrialRecord, model_name
from search.trial_scheduler import Plan, estimate_left, select_leaders

ROWS = 15  # running trials whose progress is read
QUIET = 60.0  # time without a line after which one of an epoch follows [s]
SUMMED = 1.0  # minimum time between two summaries [s]
READ_INTERVAL = 5.0  # time between two checks of the progress within epochs [s]
WIDTH, LABEL, INDENT = 110, 46, 9 * " "  # of a line of a log, of a trial's name in it, and of further lines


class Progress(Callback):
    """Callback that prints trials, scores and the remaining time.

    Args:
        trials: Function that returns the planned number of trials, or None.
        summary: Function that returns a summary of the results.
        budget: Time limit [s].
        part: Function that returns the completed fraction of a trial's current epoch, or None.
    """

    def __init__(
        self,
        plan: Plan,
        records: Mapping[int, TrialRecord],
        *,
        trials: Callable[[], int | None],
        summary: Callable[[], str],
        budget: float | None = None,
        part: Callable[[TrialRecord], float | None] = lambda record: None,
    ) -> None:
        self.plan, self.records, self.trials = plan, records, trials
        self.summary, self.part = summary, part
        self.budget = budget
        self.console = Console(file=plain(sys.stderr))
        # Trials that ended in an earlier run, on which another machine may have spent its time.
        self.before = {number for number, record in records.items() if record.state is not State.RUNNING}
        self.begun = self.printed = self.looked = time.monotonic()
        self.touched: dict[int, float] = {}  # time of the last event of each running trial
        self.freed: deque[float] = deque()  # times at which slots became free
        self.slots, self.overhead = 1, 0.0  # trials at once, and the time that epochs did not take [s]
        self.parts: dict[int, float] = {}  # completed fractions of the epochs of running trials
        self.summed = float("-inf")
        self.explained, self.summarised = False, ""

    def on_trial_start(self, trial: TrialRecord) -> None:
        self.touched[trial.number] = now = time.monotonic()
        self.slots = max(self.slots, len(self.touched))
        if self.freed:
            self.overhead += now - self.freed.popleft()

    def on_epoch_end(self, trial: TrialRecord) -> None:
        self.parts.pop(trial.number, None)
        self.overhead += self._since(trial) - trial.history[-1]["seconds"]
        if time.monotonic() - self.printed >= QUIET:
            self._say(trial)

    def on_trial_end(self, trial: TrialRecord) -> None:
        self.overhead += self._since(trial)
        self.freed.append(self.touched.pop(trial.number))
        self._say(trial)

    def _since(self, trial: TrialRecord) -> float:
        """Return the time since the last event of a trial [s]. This is its next one."""
        now = time.monotonic()
        before, self.touched[trial.number] = self.touched.get(trial.number, now), now
        return now - before

    def read_progress(self) -> None:
        """Show the progress within long epochs. It is called repeatedly while trials run."""
        if time.monotonic() - self.looked < READ_INTERVAL:
            return
        running = [record for record in self.records.values() if record.state is State.RUNNING][-ROWS:]
        fractions = {record.number: self.part(record) for record in running}
        self.parts = {number: fraction for number, fraction in fractions.items() if fraction is not None}
        self.looked = time.monotonic()
        if self.parts and self.looked - self.printed >= QUIET:
            self._say(self.records[max(self.parts, key=self.parts.__getitem__)])

    def _say(self, trial: TrialRecord) -> None:
        self.printed = time.monotonic()
        if not self.explained:
            self.explained = True
            # A command reports no steps.
            steps = "" if trial.history and trial.steps is None else "steps of training   "
            self._print(f"{INDENT}trial   {self.plan.metric.name}   {steps}ended/planned   time left")
        self._print(f"{time.strftime('%H:%M:%S')} {self._event(trial)}")
        if trial.reason:
            self._print(f"{INDENT}    {trial.reason}")
        summary = self.summary()
        if summary != self.summarised and self.printed - self.summed >= SUMMED:
            self.summarised, self.summed = summary, self.printed
            self._print(f"{INDENT}{summary}")

    def _print(self, text: str) -> None:
        """Print a text. What exceeds the width of a line goes to further lines."""
        lines = wrap(
            printable(text), WIDTH, subsequent_indent=f"{INDENT}    ", replace_whitespace=False,
            drop_whitespace=False, break_on_hyphens=False,
        )  # fmt: skip
        # Messages of errors may contain brackets.
        self.console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)

    def _event(self, trial: TrialRecord) -> str:
        """Return number, name, score, steps and state of a trial, unless it is complete, and what is left."""
        last = trial.history[-1] if trial.history else {}
        value = last.get(self.plan.metric.name)
        state = "" if trial.state is State.COMPLETE else trial.condition
        if trial.number in self.parts and trial.state is State.RUNNING:
            state += f", {self.parts[trial.number]:.0%} of epoch {trial.epoch + 1}"
        records = self.records.values()
        ended = sum(record.state is not State.RUNNING for record in records)
        trials, left = self.trials(), self._left(ended)
        columns = [
            "" if value is None else f"{self.plan.metric.show(value):>7}",
            "" if trial.steps is None else f"{pluralize(trial.steps, 'steps'):>10}",
            state,
            f"{ended}/{trials}" if trials else f"{ended} ended",
            "" if left is None else f"{format_duration(left)} left",
        ]
        end = "   ".join(filter(None, columns))
        width = min(LABEL, WIDTH - len(INDENT) - 2 - len(end))
        return f"{self._label(trial, width):{width}}  {end}"

    def _label(self, trial: TrialRecord, width: int) -> str:
        """Return number and short name: no options of modules, and no model that all trials have."""
        if trial.variant:
            name, end = trial.variant, f" seed {trial.config.seed}"
        else:
            models = {model_name(record.config) for record in self.records.values()}
            model = f"{model_name(trial.config)} " if len(models) > 1 else ""
            name, end = model + trial.config.model.placement_name(options=False), ""
        specs = trial.config.model.placement.values()
        windows = sorted({str(spec.options["window"]) for spec in specs if "window" in spec.options})
        name += f", window {' and '.join(windows)}" if windows else ""
        name, room = f"{trial.number:03d} {name}", width - len(end)
        return (name if len(name) <= room else f"{name[: room - 1]}…") + end

    def _left(self, ended: int) -> float | None:
        """Estimate the remaining time [s], by the trials of this run and the time limit. None at the end."""
        now, trials = time.monotonic(), self.trials()
        ends = [] if self.budget is None else [max(0.0, self.budget - (now - self.begun))]
        if trials is not None and ended >= trials:
            return None
        if trials is not None and (new := ended - len(self.before)):
            left = estimate_left(
                self.plan,
                [record for number, record in self.records.items() if number not in self.before],
                trials=trials - len(self.before),
                slots=self.slots,
                overhead=max(0.0, self.overhead / new),
                elapsed={number: now - touched for number, touched in self.touched.items()},
            )
            ends += [] if left is None else [left]
        return min(ends, default=None)


def search_summary(plan: Plan, records: Mapping[int, TrialRecord]) -> str:
    """Return the best score and its difference from the baseline, each with the number of its trial."""
    best, baseline = select_leaders(records.values(), plan)
    metric = plan.metric
    if best is None:
        return ""
    text = f"best {metric.show(best.value(metric.name))} (trial {best.number})"
    if baseline is None or baseline is best:
        return text
    gap = metric.scale * (best.value(metric.name) - baseline.value(metric.name))
    return f"{text}, {f'{gap:+.3g} {metric.gap}'.rstrip()} to the baseline (trial {baseline.number})"
