"""`--json`: JSON on standard output, and text on standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)


@contextmanager
def json_alone() -> Iterator[None]:
    """Redirect text to standard error inside the block. Only `print_json` writes to standard output."""
    token = _output.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _output.reset(token)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on standard output."""
    print(json.dumps(value), file=_output.get() or sys.stdout, flush=True)
