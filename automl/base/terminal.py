"""Escape control characters in the output of commands, so that no file name can control the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from automl.base.escape import printable

KEPT = "\n\r\t"  # progress bars of libraries use \r


class EscapedStream:
    """Text stream that escapes control characters and characters missing in its encoding.

    `plain` is the underlying stream.
    """

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def write(self, text: str) -> int:
        encoding = self.plain.encoding or "utf-8"
        safe = printable(text, keep=KEPT).encode(encoding, "backslashreplace").decode(encoding)
        self.plain.write(safe)
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
