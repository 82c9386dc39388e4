"""The file of a study: Optuna's journal with a single writer, and checks of its lines.

The file has the format of Optuna's `JournalFileBackend`: one line of JSON for each change. That backend
locks, appends and waits for the disk for each change: about 25 changes for a trial of ten epochs, 16 ms on a
local disk. Here the search has already locked its folder, so all changes of a step are one write (2 ms a
trial). A kill leaves no half of a step, and a failed write leaves no half line. Writes do not wait for the
disk: they survive the process at once, and a crash of the machine after a second. See
docs/decisions/0012-journal-writer.md.

Optuna skips a change that it cannot apply, so a study that has lost a line looks like one with fewer trials.
`StudyLines` therefore checks that each line is a change that a search makes to an existing, open trial. Only
the leftovers of a kill or a full disk are accepted: an incomplete last line, or an empty file.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import json_to_distribution
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState

from automl.base.errors import InputError
from automl.base.serialise import parse_json, read_file
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


def damaged_line(file: Path, number: int, reason: str) -> InputError:
    """Return the error for a damaged line."""
    return InputError(
        f"line {number} of {file} is damaged ({reason}); restore a copy of the file, or delete this line and "
        f"all after it to resume from there"
    )


def batch_writes(study: optuna.Study) -> AbstractContextManager[None]:
    """Write all changes to a study in the block at once, if it has a `Journal`. Raises OSError."""
    backend = backend_of(study)
    return backend.batch_writes() if isinstance(backend, Journal) else nullcontext()


def truncate_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line, left by a full disk or a kill. Raises OSError."""
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


BEGIN = b'{"op_code":'  # the beginning of every line

Check = Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    try:
        datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


KINDS: Mapping[str, Check] = {
    "text": _is_text,
    "number": _is_number,
    "time": _is_time,
    "count": lambda value: type(value) is int and 0 <= value < 2**31,
    "object": lambda value: isinstance(value, dict),
    "pair": lambda value: isinstance(value, dict) and len(value) == 1,
    "scores": lambda value: isinstance(value, list) and all(_is_number(v) and isfinite(v) for v in value),
    "state": lambda value: type(value) is int and value in {int(state) for state in TrialState},
    "directions": lambda value: (
        isinstance(value, list) and bool(value) and all(type(v) is int and v in (1, 2) for v in value)
    ),
}
# Kinds of the content of a line, by Optuna's code of the operation. Keys with a question mark are optional,
# and values of kinds with one may be null.
OPERATIONS: Mapping[int, Mapping[str, str]] = {
    0: {"study_name": "text", "directions": "directions"},
    2: {"study_id": "count", "user_attr": "pair"},
    3: {"study_id": "count", "system_attr": "pair"},
    4: {
        "study_id": "count",
        "datetime_start": "time?",
        "datetime_complete?": "time",
        "state?": "state",
        "value?": "number?",
        "values?": "scores?",
        **dict.fromkeys(("distributions?", "params?", "user_attrs?", "system_attrs?"), "object"),
        "intermediate_values?": "object",
    },
    5: {"trial_id": "count", "param_name": "text", "param_value_internal": "number", "distribution": "text"},
    6: {
        "trial_id": "count",
        "state": "state",
        "values": "scores?",
        "datetime_start?": "time",
        "datetime_complete?": "time",
    },
    7: {"trial_id": "count", "step": "count", "intermediate_value": "number?"},
    8: {"trial_id": "count", "user_attr": "pair"},
    9: {"trial_id": "count", "system_attr": "pair"},
}


CREATE_STUDY, CREATE_TRIAL, SET_PARAM, SET_STATE = 0, 4, 5, 6


class StudyLines:
    """The complete lines of the only study in `file`."""

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, ""  # the name of the study in the file
        self.values = 0  # the number of scores of a trial
        self.open: list[bool] = []  # True for each trial that may still change
        # The line that set a trial's attribute; "" for the trial's first line.
        self.lines: dict[tuple[int, str], int] = {}

    def check(self) -> bool:
        """Check all lines. Return False if none is complete, and raise InputError for a damaged one."""
        *complete, rest = read_file(self.file).split(b"\n")
        for number, line in enumerate(complete, start=1):
            try:
                self._check(parse_json(line), number)
            except InputError as error:
                raise damaged_line(self.file, number, str(error)) from error
        if not _is_cut_short(rest):
            raise damaged_line(self.file, len(complete) + 1, "it is no change of a study")
        return bool(complete)

    def line_of(self, trial: int, attribute: str) -> int:
        """Return the number of the line that set an attribute of a trial, or of the trial's first line."""
        return self.lines.get((trial, attribute), self.lines.get((trial, ""), 1))

    def _check(self, change: object, number: int) -> None:
        if not isinstance(change, dict) or type(change.get("op_code")) is not int:
            raise InputError("it is no change of a study")
        operation = change["op_code"]
        if operation not in OPERATIONS:
            raise InputError(f"no search writes the operation {operation}")
        if not _is_text(change.get("worker_id")):
            raise InputError("worker_id is missing or of the wrong kind")
        for key, kind in OPERATIONS[operation].items():
            name, value = key.rstrip("?"), change.get(key.rstrip("?"))
            is_of_kind = (value is None and kind.endswith("?")) or KINDS[kind.rstrip("?")](value)
            if (name in change or name == key) and not (name in change and is_of_kind):
                raise InputError(f"{name} is missing or of the wrong kind")
        if (operation == CREATE_STUDY) != (number == 1):
            raise InputError("a file has one study, which its first line creates")
        if change.get("study_id", 0) != 0:
            raise InputError(f"there is no study {change['study_id']}")
        if operation == CREATE_STUDY:
            self.name = change["study_name"]
            self.values = len(change["directions"])
        elif operation == CREATE_TRIAL:
            self._create(change, number)
        elif "trial_id" in change:
            self._change(change, number)

    def _create(self, change: Mapping[str, Any], number: int) -> None:
        state = TrialState(change.get("state", TrialState.RUNNING))
        if state.is_finished() and "datetime_complete" not in change:
            raise InputError("datetime_complete is missing or of the wrong kind")
        trial, distributions = len(self.open), change.get("distributions", {})
        for name, value in change.get("params", {}).items():
            if name not in distributions:
                raise InputError(f"parameter {name!r} has no distribution")
            _check_parameter(name, value, distributions[name])
        for step, value in change.get("intermediate_values", {}).items():
            if not step.isdecimal() or not (value is None or _is_number(value)):
                raise InputError("intermediate_values is missing or of the wrong kind")
        value = change.get("value")  # used if there is a single score
        self._check_values(state, change.get("values") if value is None else [value])
        _check_constraints(change.get("system_attrs", {}))
        self.open.append(not state.is_finished())
        self.lines[trial, ""] = number
        self.lines |= {(trial, key): number for key in change.get("user_attrs", {})}

    def _change(self, change: Mapping[str, Any], number: int) -> None:
        trial = change["trial_id"]
        if trial >= len(self.open):
            raise InputError(f"it changes trial {trial}, which no line before it creates")
        if not self.open[trial]:
            raise InputError(f"it changes trial {trial}, which has ended")
        if change["op_code"] == SET_PARAM:
            _check_parameter(change["param_name"], change["param_value_internal"], change["distribution"])
        elif change["op_code"] == SET_STATE:
            state = TrialState(change["state"])
            needed = "datetime_complete" if state.is_finished() else "datetime_start"
            if state is not TrialState.WAITING and needed not in change:
                raise InputError(f"{needed} is missing or of the wrong kind")
            self._check_values(state, change["values"])
            self.open[trial] = not state.is_finished()
            self.lines[trial, "values"] = number
        _check_constraints(change.get("system_attr", {}))
        self.lines |= {(trial, key): number for key in change.get("user_attr", {})}

    def _check_values(self, state: TrialState, values: list[float] | None) -> None:
        counts = (self.values,) if state is TrialState.COMPLETE else (0, self.values)
        if len(values or ()) not in counts:
            raise InputError(f"values must be {self.values} numbers; got {json.dumps(values)}")


_read_distribution = lru_cache(maxsize=4096)(json_to_distribution)


def _check_parameter(name: str, value: Any, distribution: Any) -> None:
    try:
        if not _is_text(distribution) or not _is_number(value):
            raise TypeError
        _read_distribution(distribution).to_external_repr(value)
    except Exception as error:  # Optuna raises errors of many types
        raise InputError(f"parameter {name!r} has a value or a distribution of the wrong kind") from error


def _check_constraints(attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        if key.startswith("constraints") and not all(
            map(_is_number, value if isinstance(value, list) else [value])
        ):
            raise InputError(f"{key} is of the wrong kind")


def _is_cut_short(rest: bytes) -> bool:
    """Return True if the rest is the beginning of a line, or zeros that a crash leaves."""
    rest = rest.rstrip(b"\0")
    return BEGIN.startswith(rest) or (rest.startswith(BEGIN) and all(32 <= byte < 127 for byte in rest))
