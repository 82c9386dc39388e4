"""Conversion of dataclasses to JSON and back.

Reading rejects unknown keys and reports all problems at once, since fixing one mistake at a time costs a long
wait for each. A class may have its own format, by methods `to_json` and `from_json`. It may have a method
`problems()`, which yields what is wrong with its values. A class method `json_types(value)` returns the types
of fields that depend on other fields.
"""

import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from automl.base.atomic import replacing
from automl.base.errors import InputError

T = TypeVar("T")

LEVELS = 64  # the deepest nesting
TOO_DEEP = f"it is nested more than {LEVELS} levels deep"
LARGEST = 10**300  # integers must be below it, so that each has a float

WITHOUT_TORCH = ContextVar("WITHOUT_TORCH", default=False)  # see `without_torch`


@contextmanager
def without_torch() -> Iterator[None]:
    """Read configurations without checks of the options of models and modules, which import torch."""
    token = WITHOUT_TORCH.set(True)
    try:
        yield
    finally:
        WITHOUT_TORCH.reset(token)


def to_json(value: Any) -> Any:
    """Convert a value to dictionaries, lists, strings, numbers, booleans and None."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return convert_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def convert_fields(value: Any) -> dict[str, Any]:
    """Convert a dataclass by its fields, even if it has its own format."""
    return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text in UTF-8.

    Raises InputError for invalid JSON, and for nesting deeper than LEVELS, since recursive code would exhaust
    the stack.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except ValueError as error:  # invalid UTF-8, invalid JSON, or a number of thousands of digits
        raise InputError(str(error)) from error
    if text.count("{") + text.count("[") > LEVELS:
        _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(LEVELS):
        rows = [list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        if not rows:
            return
        level = [item for row in rows for item in row]
    raise InputError(TOO_DEEP)


def from_json(kind: type[T], value: object, name: str, *, strict: bool = True) -> T:
    """Convert the result of `to_json` to the dataclass `kind`. Missing keys get their defaults.

    `name` names the value in messages. If `strict`, unknown keys are rejected. Raises `InputError` with every
    problem if the value is invalid.
    """
    problems: list[str] = []
    read = _object(kind, value, "", problems, strict)
    if problems:
        raise InputError(join_problems(name, problems))
    assert isinstance(read, kind)
    return read


def read_json(kind: type[T], file: Path, *, format: int | None = None, strict: bool = True) -> T:
    """Read a file that `write_json` has written. Raises InputError if it is invalid."""
    try:
        value = parse_json(read_file(file))
        if format is not None and (not isinstance(value, dict) or value.pop("format", None) != format):
            raise InputError(f"its format is not {format}")
        return from_json(kind, value, "content", strict=strict)
    except InputError as error:
        raise InputError(f"{file} is corrupt or in an unsupported format ({error})") from error


def read_file(file: Path) -> bytes:
    """Return the content of a file. Raises InputError for a folder, a pipe or an unreadable file."""
    try:
        if file.exists() and not file.is_file():  # opening a pipe would wait for its other end
            raise InputError(f"{file} is no file")
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error})") from error


def write_json(file: Path, value: Any, *, format: int | None = None) -> None:
    """Write a value as JSON, atomically. Raises InputError if `file` is a folder."""
    if file.is_dir():
        raise InputError(f"{file} is no file")
    content = to_json(value)
    if format is not None:
        content = {"format": format, **content}
    with replacing(file) as new:
        new.write_text(json.dumps(content, indent=2))


def join_problems(name: str, problems: Sequence[str]) -> str:
    """Join problems to one message."""
    if len(problems) == 1:
        return f"{name}: {problems[0]}"
    return "\n  ".join([f"{name}: {len(problems)} problems", *problems])


def _object(kind: Any, value: object, prefix: str, problems: list[str], strict: bool) -> Any:
    """Return `value` as the dataclass `kind`, or None if it is invalid."""
    if not isinstance(value, Mapping):
        problems.append(f"{prefix.rstrip('.') or 'the value'} must be an object; got {value!r}")
        return None
    before = len(problems)
    known = {field.name: field for field in fields(kind)}
    # Keys of earlier versions, each with the value that has no effect, or `...` for any.
    removed = getattr(kind, "REMOVED", {})
    for key in value if strict else ():
        if key not in known and not (key in removed and removed[key] in (value[key], ...)):
            matches = get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {matches[0]!r}?" if matches else ""
            problems.append(f"unknown key {prefix + str(key)!r}; known: {', '.join(known)}.{hint}")
    hints, read = get_type_hints(kind), {}
    if hasattr(kind, "json_types"):
        try:
            hints |= kind.json_types(value)
        except InputError as error:
            problems.append(str(error))
            return None
    is_complete = True
    for key, field in known.items():
        if key in value:
            known_problems = len(problems)
            item = read_value(hints[key], value[key], f"{prefix}{key}", problems, strict)
            if len(problems) == known_problems:
                read[key] = item
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.append(f"{prefix}{key} is missing")
            is_complete = False
    if hasattr(kind, "problems"):
        if not is_complete:
            return None
        instance = kind(**read)  # a value of the wrong type is left out, so that the others are checked
        problems += instance.problems()
        return instance
    if len(problems) > before:
        return None
    try:
        return kind(**read)
    except InputError as error:
        if not prefix:
            raise
        problems.append(f"{prefix.rstrip('.')}: {error}")
        return None


def read_value(kind: Any, value: object, name: str, problems: list[str], strict: bool = True) -> Any:
    """Return `value` as `kind`. Problems are appended to `problems`, and the result is then arbitrary."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        types_without_none = [argument for argument in arguments if argument is not type(None)]
        if len(types_without_none) < len(arguments) and value is None:
            return None
        if len(types_without_none) == 1 and types_without_none[0] not in (str, int, float, bool):
            return read_value(types_without_none[0], value, name, problems, strict)
        return _plain(arguments, value, name, problems)
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if origin is Literal or is_enum:
        choices = [choice.value for choice in kind] if is_enum else arguments
        if value not in choices:
            problems.append(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")
            return None
        return kind(value) if is_enum else value
    if isinstance(origin or kind, type):
        if issubclass(origin or kind, Mapping):
            return _mapping(arguments, value, name, problems, strict)
        if issubclass(origin or kind, Sequence) and kind is not str:
            return _sequence(origin or kind, arguments, value, name, problems, strict)
        if hasattr(kind, "from_json"):
            try:
                return kind.from_json(value)
            except InputError as error:
                problems.append(f"{name}: {error}")
                return None
        if is_dataclass(kind):
            return _object(kind, value, f"{name}.", problems, strict)
    return _plain((kind,), value, name, problems)


def _mapping(kinds: Any, value: object, name: str, problems: list[str], strict: bool) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{name} must be an object; got {value!r}")
        return None
    if not kinds:
        return dict(value)
    read = {}
    for key, item in value.items():
        if kinds[0] is int and not re.fullmatch("[0-9]{1,18}", str(key)):
            problems.append(f"{name} must have numbers as keys; got {key!r}")
            continue
        own = int(key) if kinds[0] is int else key
        read[own] = read_value(kinds[1], item, f"{name} at {key!r}", problems, strict)
    return read


def _sequence(kind: Any, kinds: Any, value: object, name: str, problems: list[str], strict: bool) -> Any:
    if not isinstance(value, list | tuple):
        problems.append(f"{name} must be a list; got {value!r}")
        return None
    fixed = kind is tuple and ... not in kinds
    if fixed and len(value) != len(kinds):
        problems.append(f"{name} must have {len(kinds)} values; got {value!r}")
        return None
    each = kinds if fixed else [kinds[0] if kinds else Any] * len(value)
    read = [
        read_value(kind_of_item, item, f"{name}[{i}]", problems, strict)
        for i, (kind_of_item, item) in enumerate(zip(each, value, strict=True))
    ]
    return tuple(read) if kind is tuple else read


def _plain(allowed: Sequence[Any], value: object, name: str, problems: list[str]) -> Any:
    if type(value) is int and not -LARGEST < value < LARGEST:
        problems.append(f"{name} must lie between -1e300 and 1e300")
        return 0
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed:
        expected = " or ".join("null" if a is type(None) else a.__name__ for a in allowed)
        problems.append(f"{name} must be {expected}; got {value!r}")
    return value
