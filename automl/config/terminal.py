"""Escapes control characters in what commands print, so that no name of a file can write to the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from automl.config.escape import printable

KEPT = "\n\r\t"  # lines, columns, and the bars of libraries that draw one over the other


class EscapedStream:
    """A text stream that escapes what it writes; `plain` is the stream behind it.

    Characters that the stream's encoding lacks are escaped, too.
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
    """Return the stream for what draws with control characters and escapes its texts itself."""
    return stream.plain if isinstance(stream, EscapedStream) else stream


@contextmanager
def escaped_output() -> Iterator[None]:
    """Inside the block, standard output and standard error are escaped."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = EscapedStream(sys.stdout), EscapedStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
