"""Short text and notebook representations of results."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from html import escape

from automl.base.escape import printable

WIDTH = 9  # characters of the column of names, as in the output of commands


class Summary(ABC):
    """Base class of results with a `repr` of a few lines, and a table in notebooks."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each line."""

    def __repr__(self) -> str:
        return "\n".join(f"{name:{WIDTH}} {printable(text)}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        return html(self.lines())


def html(lines: Iterable[tuple[str, str]]) -> str:
    """Format names and texts as an HTML table for a notebook."""
    left = 'style="text-align:left"'
    rows = (
        f"<tr><th {left}>{escape(printable(name))}</th><td {left}>{escape(printable(text))}</td></tr>"
        for name, text in lines
    )
    return f"<table>{''.join(rows)}</table>"


def call(function: str, *arguments: object, **options: object) -> str:
    """Format a call in Python, such as `automl.run_confirm('digits-1')`."""
    texts = [repr(argument) for argument in arguments]
    texts += [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"automl.{function}({', '.join(texts)})"
