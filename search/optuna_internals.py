"""The writer of a study's file, and all that is used of Optuna beside its public API, with the reason.

The file has the format of Optuna's `JournalFileBackend`. That backend locks, appends and waits for the disk
for each change: about 25 changes for a trial of ten epochs, 16 ms on a local disk. Here the search has
already locked its folder, so all changes of a step are one write (2 ms a trial). A kill leaves no half of a
step, and a failed write leaves no half line. Writes do not wait for the disk: they survive the process at
once, and a crash of the machine after a second. See docs/decisions/0012-journal-writer.md.

Tested with Optuna 5.0.0. `tests/house/test_packages.py` compares Optuna with the names in
`tests/helpers/private_names.py`. The interface of storages, with identifiers of studies and trials, is public
for authors of storages, but a study does not expose its own.
"""

import json
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from heapq import nlargest
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from automl.base.errors import InputError
from automl.base.serialise import parse_json
from search.journal import damaged_line

LAG = 1.0  # seconds until writes are flushed to the disk


def storage_of(study: optuna.Study) -> tuple[BaseStorage, int]:
    """Return the storage of a study and the study's identifier in it.

    Reason: a trial is added in one write and needs its number. `Study.add_trial` does not return the trial,
    and `get_trials` reads every open trial again. Without it, adding a trial takes a second with 512 open
    trials.
    """
    return study._storage, study._study_id


def backend_of(study: optuna.Study) -> BaseJournalBackend | None:
    """Return the backend of a study's journal, or None if the study has no journal.

    Reason: several changes of a trial are one write. Without it, a search that is killed between two writes
    leaves a trial with some of its parameters.
    """
    storage = study._storage
    return storage._backend if isinstance(storage, JournalStorage) else None


def identifier_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return the identifier of a trial in its storage, with which `optuna.Trial` opens it again.

    Reason: a waiting trial is started with parameters that were drawn elsewhere. Without it, each call
    searches all trials for a number.
    """
    return trial._trial_id


class TrialLimit:
    """Limits the trials of a study that a sampler sees to the newest ones and the best older ones.

    The latter are chosen again after `newest` / 2 trials. Reason: Optuna's TPE reads all trials for each
    group of parameters. Without it, a draw takes a third of a second after ten thousand trials.
    """

    def __init__(self, *, newest: int, best: int) -> None:
        self._newest, self._best = newest, best
        self._leading: list[FrozenTrial] = []
        self._older = 0  # number of trials that the best ones were chosen from

    def __call__(self, study: Study) -> Study:
        """Return a view of the study, or the study if it has few trials."""
        trials = study.get_trials(deepcopy=False)
        if len(trials) <= self._newest:
            return study
        if not 0 <= len(trials) - self._newest - self._older < self._newest // 2:
            self._older = len(trials) - self._newest
            sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
            older = [trial for trial in trials[: self._older] if trial.state is TrialState.COMPLETE]
            self._leading = nlargest(self._best, older, key=lambda trial: sign * trial.values[0])
            self._leading.sort(key=lambda trial: trial.number)
        return cast(Study, _LimitedStudy(study, [*self._leading, *trials[self._older :]]))


class _LimitedStudy:
    """View of a study with some of its trials."""

    def __init__(self, study: Study, trials: Sequence[FrozenTrial]) -> None:
        self._study, self._trials = study, trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(
        self, deepcopy: bool = True, states: Collection[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials if states is None or trial.state in states]

    get_trials = _get_trials


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
                try:
                    change = parse_json(line) if number >= log_number_from else None
                except InputError as error:
                    raise damaged_line(self.path, number + 1, str(error)) from error
                self._read = (number + 1, offset + len(line))
                if change is not None:
                    yield change
        yield from self._held[max(0, log_number_from - self._read[0]) :]

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
