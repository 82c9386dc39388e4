"""Results that show themselves in a few lines, as text and in a notebook."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from html import escape

from automl.config.escape import printable

WIDTH = 9  # of the names in front of the lines, as in what the commands print


class Summary(ABC):
    """A result whose `repr` is a few lines, and a small table in a notebook."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each line."""

    def __repr__(self) -> str:
        return "\n".join(f"{name:{WIDTH}} {printable(text)}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        return html(self.lines())


def html(lines: Iterable[tuple[str, str]]) -> str:
    """Return names and texts as a table for a notebook."""
    left = 'style="text-align:left"'
    rows = (
        f"<tr><th {left}>{escape(printable(name))}</th><td {left}>{escape(printable(text))}</td></tr>"
        for name, text in lines
    )
    return f"<table>{''.join(rows)}</table>"


def call(function: str, *arguments: object, **options: object) -> str:
    """Return a call in Python as the next step, such as `automl.run_confirm('digits-1')`."""
    given = [repr(argument) for argument in arguments]
    given += [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"automl.{function}({', '.join(given)})"
