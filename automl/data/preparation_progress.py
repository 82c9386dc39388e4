"""Show the progress of a long preparation: a bar on a terminal, occasional lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from automl.base.terminal import plain
from automl.base.units import format_duration

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield `advance(count)`, which shows on stderr how many of `total` inputs are done."""
    if not sys.stderr.isatty():
        yield _Lines(title, total).advance
        return
    # Import rich only for a terminal, so that training on a bare GPU machine does not need it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=plain(sys.stderr))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


class _Lines:
    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self.start = self.last = time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES and self.done:
            self.last = now
            left = (now - self.start) * max(0, self.total - self.done) / self.done
            print(
                f"{self.title}: {self.done:,} of {self.total:,}, about {format_duration(left)} left",
                file=sys.stderr,
                flush=True,
            )
