"""`--json`: one JSON object alone on standard output, and all words on standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)


@contextmanager
def json_alone() -> Iterator[None]:
    """While this lasts, standard output gets what `print_json` prints and nothing else."""
    token = _output.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _output.reset(token)


def print_json(value: Any) -> None:
    """One line of JSON on standard output. Raises TypeError for what JSON has no type for."""
    print(json.dumps(value), file=_output.get() or sys.stdout, flush=True)
