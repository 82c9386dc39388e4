"""Output on a terminal: escaped, so that no file name controls it, progress, and results in a few lines."""

import re
import sys
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, TextIO

from automl.base.escape import printable
from automl.base.units import format_duration

KEPT = "\n\r\t"  # progress bars of libraries use \r
RESET = "\x1b[0m"  # colorama, which Ray uses, writes it to a terminal at the end of the process


class EscapedStream:
    """Text stream that escapes control characters and those missing in the encoding of the stream `plain`."""

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def write(self, text: str) -> int:
        encoding = self.plain.encoding or "utf-8"
        safe = RESET if text == RESET else printable(text, keep=KEPT)
        self.plain.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)


def plain(stream: Any) -> Any:
    """Return the underlying stream, for output that uses control characters and escapes its own text."""
    return stream.plain if isinstance(stream, EscapedStream) else stream


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape standard output and standard error inside the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = EscapedStream(sys.stdout), EscapedStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def tell(text: str) -> None:
    """Print a line to standard error, at once."""
    print(text, file=sys.stderr, flush=True)


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

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=plain(sys.stderr)), transient=True) as bar:
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
            tell(f"{self.title}: {self.done:,} of {self.total:,}, about {format_duration(left)} left")


WIDTH = 9  # characters of the column of names, as in the output of commands
ROWS, COLUMNS = 24, 100  # of a screen, which the ending of a command fits


def wrap(name: str, text: str) -> list[str]:
    """Return the lines of a text behind its name, as wide as a screen. A command at its end is not split."""
    whole = re.sub(r"(?<=: )automl .{1,60}$", lambda match: match[0].replace(" ", "\xa0"), printable(text))
    width = COLUMNS - WIDTH - 1
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [f"{'' if i else name:{WIDTH}} {line}".replace("\xa0", " ") for i, line in enumerate(lines)]


def count_rows(lines: Iterable[str]) -> int:
    """Return how many rows of a screen lines take. Those that are too wide take several."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)


class Summary(ABC):
    """Base class of results with a `repr` of a few lines, and a table in notebooks."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each line."""

    def __repr__(self) -> str:
        return "\n".join(f"{name:{WIDTH}} {printable(text)}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        left = 'style="text-align:left"'
        rows = (
            f"<tr><th {left}>{escape(printable(name))}</th><td {left}>{escape(printable(text))}</td></tr>"
            for name, text in self.lines()
        )
        return f"<table>{''.join(rows)}</table>"


def call(function: str, *arguments: object, **options: object) -> str:
    """Format a call in Python, such as `automl.run_confirm('digits-1')`."""
    texts = [repr(argument) for argument in arguments]
    texts += [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"automl.{function}({', '.join(texts)})"
