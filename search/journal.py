"""Optuna's journal storage with a single writer, which appends one step of a search at a time.

The file has the format of Optuna's `JournalFileBackend`: one line of JSON for each change. That backend
locks, appends and waits for the disk for each change: about 25 changes for a trial of ten epochs, 16 ms on a
local disk. Here the search has already locked its folder, so all changes of a step are one write (2 ms a
trial). A kill leaves no half of a step, and a failed write leaves no half line. Writes do not wait for the
disk: they survive the process at once, and a crash of the machine after a second. See
docs/decisions/0012-journal-writer.md.
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

from automl.base.errors import InputError
from automl.base.serialise import parse_json
from search.optuna_internals import backend_of

LAG = 1.0  # seconds until writes are flushed to the disk


class Journal(BaseJournalBackend):
    """Journal in the file `path`, which other processes may read at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.touch()
        self._read = (0, 0)  # lines read so far, and the offset of the next one
        self._held: list[dict[str, Any]] = []  # changes that are not yet written
        self._blocks = 0
        self._flusher: threading.Thread | None = None
        self._trouble: OSError | None = None  # error of the flusher, raised by the next write

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the changes from this number on. Raises InputError if a line is damaged."""
        if log_number_from < self._read[0]:
            self._read = (0, 0)
        with open(self.path, "rb") as file:
            file.seek(self._read[1])
            for line in file:
                if not line.endswith(b"\n"):  # the line is being written
                    break
                number, offset = self._read
                change = self._parsed(line, number) if number >= log_number_from else None
                self._read = (number + 1, offset + len(line))
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
        """Append changes. Raises OSError if they, or earlier ones, cannot be written."""
        self._held += logs
        if not self._blocks:
            self._write()

    @contextmanager
    def batch_writes(self) -> Iterator[None]:
        """Write the changes of the block at its end, even if it fails. Raises OSError."""
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
                os.truncate(self.path, before)  # half a line would damage the next one
            raise
        self._held.clear()
        if self._flusher is None:
            self._flusher = threading.Timer(LAG, self._flush)
            self._flusher.daemon = True  # the kernel has the data even if this process dies
            self._flusher.start()

    def _flush(self) -> None:
        self._flusher = None  # later writes start a new flusher
        try:
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:  # the search was aborted before its first trial
            pass
        except OSError as error:
            self._trouble = error


def batch_writes(study: optuna.Study) -> AbstractContextManager[None]:
    """Write all changes to a study in the block at once, if it has a `Journal`. Raises OSError."""
    backend = backend_of(study)
    return backend.batch_writes() if isinstance(backend, Journal) else nullcontext()


def truncate_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line, left by a full disk or a kill. Raises OSError."""
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
