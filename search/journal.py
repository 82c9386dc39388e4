"""Optuna's journal storage with a single writer, which appends a step of a search at a time.

The file is the one that Optuna's own `JournalFileBackend` makes and reads: a line of JSON for each change.
That backend locks, appends and waits for the disk for each of them: some 25 changes of a trial of ten epochs,
16 ms on a local disk. Here, where the search has locked its folder already, what belongs together is one
write (2 ms a trial), so that a kill leaves no half of a step; a write that fails leaves no half line; and
there is no wait for the disk: a write survives the process at once, and a crash of the machine after
a second. docs/decisions/0012-journal-writer.md says why it is our own.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import BaseJournalBackend

from attention import InputError
from search.optuna_internals import backend_of
from search.serialise import parse_json

LAG = 1.0  # seconds after which the disk has what was written


class Journal(BaseJournalBackend):
    """The file `path`, which any number of processes may read meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.touch()
        self._read = (0, 0)  # how many of its lines have been read, and where the next one begins
        self._held: list[dict[str, Any]] = []  # what follows the last one
        self._blocks = 0
        self._flusher: threading.Thread | None = None
        self._trouble: OSError | None = None  # of the flusher

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The changes from that number on. Raises InputError where a line is damaged."""
        if log_number_from < self._read[0]:
            self._read = (0, 0)
        with open(self.path, "rb") as file:
            file.seek(self._read[1])
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                number, at = self._read
                change = self._parsed(line, number) if number >= log_number_from else None
                self._read = (number + 1, at + len(line))
                if change is not None:
                    yield change
        yield from self._held[max(0, log_number_from - self._read[0]) :]

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            change: dict[str, Any] = parse_json(line)
        except InputError as error:
            raise InputError(
                f"line {number + 1} of {self.path} is damaged ({error}); restore a copy of the file, or "
                f"delete this line and all after it to resume from there"
            ) from error
        return change

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Raises OSError when they, or those before them, cannot be written: the disk is full."""
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
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in self._held)
        before = self.path.stat().st_size
        try:
            with open(self.path, "ab") as file:
                file.write(lines.encode())
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, before)  # half a line would spoil what is written next
            raise
        self._held.clear()
        if self._flusher is None:
            self._flusher = threading.Timer(LAG, self._flush)
            self._flusher.daemon = True  # the kernel has it all, whatever becomes of us
            self._flusher.start()

    def _flush(self) -> None:
        self._flusher = None  # what is written from now on is for the next one
        try:
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:  # a search that was given up before its first trial
            pass
        except OSError as error:
            self._trouble = error


def batch_writes(study: optuna.Study) -> AbstractContextManager[None]:
    """All changes to a study in the block are one write, where a `Journal` keeps it. Raises OSError."""
    backend = backend_of(study)
    return backend.at_once() if isinstance(backend, Journal) else nullcontext()


def truncate_incomplete_line(path: Path) -> None:
    """Take off the last line if a full disk or a kill has cut it short. Raises OSError."""
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
