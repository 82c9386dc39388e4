"""Optuna's journal in a file that one process writes, a step of a search at a time.

The file is the one that Optuna's own `JournalFileBackend` makes and reads: a line of JSON for each change.
That backend locks, appends and flushes for each of them, of which an epoch's report makes two and the end of
a trial five. A search has locked its folder already, and here what belongs together is one write.
"""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import BaseJournalBackend


class Journal(BaseJournalBackend):
    """The file `path`, which any number of processes may read meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = (0, 0)  # how many of its lines have been read, and where the next one begins
        self._held: list[dict[str, Any]] = []  # what follows the last one
        self._blocks = 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The changes from that number on. Raises ValueError where a line is damaged."""
        if log_number_from < self._read[0]:
            self._read = (0, 0)
        with open(self.path, "rb") as file:
            file.seek(self._read[1])
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                number, at = self._read
                self._read = (number + 1, at + len(line))
                if number >= log_number_from:
                    yield json.loads(line)
        yield from self._held[max(0, log_number_from - self._read[0]) :]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Raises OSError when they cannot be written, such as for a full disk."""
        self._held += logs
        if not self._blocks:
            self._write()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is appended in the block is written at its end, whatever ends it. Raises OSError."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks and self._held:
                self._write()

    def _write(self) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in self._held)
        before = self.path.stat().st_size
        try:
            with open(self.path, "ab") as file:
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, before)  # half a line would spoil what is written next
            raise
        self._held.clear()


def at_once(study: optuna.Study) -> AbstractContextManager[None]:
    """All changes to a study in the block are one write, where a `Journal` keeps it. Raises OSError."""
    backend = getattr(study._storage, "_backend", None)
    return backend.at_once() if isinstance(backend, Journal) else nullcontext()
