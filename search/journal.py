"""The lines of a study's file: checks of each, and its trials, without Optuna, which takes a quarter second.

The file has the format of Optuna's `JournalFileBackend`: one line of JSON for each change. The `Journal` of
`search.optuna_internals` writes it.

Optuna skips a change that it cannot apply, so a study that has lost a line looks like one with fewer trials.
`StudyLines` therefore checks that each line is a change that a search makes to an existing, open trial. Only
the leftovers of a kill or a full disk are accepted: an incomplete last line, or an empty file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.serialise import parse_json, read_file


def damaged_line(file: Path, number: int, reason: str) -> InputError:
    """Return the error for a damaged line."""
    return InputError(
        f"line {number} of {file} is damaged ({reason}); restore a copy of the file, or delete this line and "
        f"all after it to resume from there"
    )


def truncate_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line, left by a full disk or a kill. Raises OSError."""
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


BEGIN = b'{"op_code":'  # the beginning of every line


class TrialState(IntEnum):
    """State of a trial, with the number that Optuna writes for it."""

    RUNNING, COMPLETE, PRUNED, FAIL, WAITING = range(5)

    def is_finished(self) -> bool:
        """Return True if the trial does not change any more."""
        return self not in (TrialState.RUNNING, TrialState.WAITING)


@dataclass
class StoredTrial:
    """A trial as its lines describe it: the part of a `FrozenTrial` that records are made of."""

    number: int
    state: TrialState
    params: dict[str, Any] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)

    def constrain(self, attributes: Mapping[str, Any]) -> None:
        """Add the constraints among system attributes. Earlier versions wrote a list of them."""
        for key, value in attributes.items():
            if key.startswith("constraints"):
                values = enumerate(value) if isinstance(value, list) else [("", value)]
                self.constraints |= {f"{key}{i}": each for i, each in values}


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
        self.trials: list[StoredTrial] = []
        self.user_attrs: dict[str, Any] = {}  # of the study
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
        else:
            self.user_attrs |= change.get("user_attr", {})

    def _create(self, change: Mapping[str, Any], number: int) -> None:
        state = TrialState(change.get("state", TrialState.RUNNING))
        if state.is_finished() and "datetime_complete" not in change:
            raise InputError("datetime_complete is missing or of the wrong kind")
        trial, distributions = StoredTrial(len(self.trials), state), change.get("distributions", {})
        for name, value in change.get("params", {}).items():
            if name not in distributions:
                raise InputError(f"parameter {name!r} has no distribution")
            trial.params[name] = _read_parameter(name, value, distributions[name])
        for step, value in change.get("intermediate_values", {}).items():
            if not step.isdecimal() or not (value is None or _is_number(value)):
                raise InputError("intermediate_values is missing or of the wrong kind")
        value = change.get("value")  # used if there is a single score
        self._check_values(state, change.get("values") if value is None else [value])
        _check_constraints(change.get("system_attrs", {}))
        trial.constrain(change.get("system_attrs", {}))
        trial.user_attrs |= change.get("user_attrs", {})
        self.trials.append(trial)
        self.lines[trial.number, ""] = number
        self.lines |= {(trial.number, key): number for key in trial.user_attrs}

    def _change(self, change: Mapping[str, Any], number: int) -> None:
        if (key := change["trial_id"]) >= len(self.trials):
            raise InputError(f"it changes trial {key}, which no line before it creates")
        trial = self.trials[key]
        if trial.state.is_finished():
            raise InputError(f"it changes trial {key}, which has ended")
        if change["op_code"] == SET_PARAM:
            name, value = change["param_name"], change["param_value_internal"]
            trial.params[name] = _read_parameter(name, value, change["distribution"])
        elif change["op_code"] == SET_STATE:
            state = TrialState(change["state"])
            needed = "datetime_complete" if state.is_finished() else "datetime_start"
            if state is not TrialState.WAITING and needed not in change:
                raise InputError(f"{needed} is missing or of the wrong kind")
            self._check_values(state, change["values"])
            trial.state = state
            self.lines[key, "values"] = number
        _check_constraints(change.get("system_attr", {}))
        trial.constrain(change.get("system_attr", {}))
        trial.user_attrs |= change.get("user_attr", {})
        self.lines |= {(key, name): number for name in change.get("user_attr", {})}

    def _check_values(self, state: TrialState, values: list[float] | None) -> None:
        counts = (self.values,) if state is TrialState.COMPLETE else (0, self.values)
        if len(values or ()) not in counts:
            raise InputError(f"values must be {self.values} numbers; got {json.dumps(values)}")


@lru_cache(maxsize=4096)
def _read_distribution(text: str) -> tuple[str, Any]:
    """Return the name of a distribution, and its choices if it has a list of them."""
    value = json.loads(text)
    name, attributes = value["name"], value["attributes"]
    if name != "CategoricalDistribution" and not attributes["low"] <= attributes["high"]:
        raise ValueError
    return name, attributes.get("choices")


def _read_parameter(name: str, value: Any, distribution: Any) -> Any:
    """Return the value of a parameter from the number that Optuna writes for it."""
    try:
        if not _is_text(distribution) or not _is_number(value):
            raise TypeError
        kind, choices = _read_distribution(distribution)
        if kind == "CategoricalDistribution":
            return choices[int(value)]
        return {"FloatDistribution": float, "IntDistribution": int}[kind](value)
    except Exception as error:  # values of any kind in the file
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
