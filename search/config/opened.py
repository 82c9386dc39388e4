"""Configuration types of user-defined tasks whose code has not been loaded.

The keys of such a configuration are defined in the task's code, which reading a configuration must not run.
These types accept any keys and check no values. `TrialConfig.load` loads the code and converts them to the
task's own types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import lru_cache
from keyword import iskeyword
from typing import Any

from search.config.sections import Data, Model, Training


@dataclass(frozen=True, kw_only=True)
class OpenData(Data):
    """Data of a task whose code has not been loaded."""

    def problems(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class OpenModel(Model):
    """Model of a task whose code has not been loaded."""

    def problems(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class OpenTraining(Training):
    """Training of a task whose code has not been loaded."""

    def problems(self) -> Iterator[str]:
        return iter(())


OPEN = (OpenData, OpenModel, OpenTraining)


def with_keys(base: type, value: object) -> type:
    """Return `base` with a field for each further key of `value` that is a valid field name."""
    if not isinstance(value, Mapping):
        return base
    known = {field.name for field in fields(base)}
    return _extended(base, tuple(sorted(key for key in value if key not in known and _is_name(base, key))))


def _is_name(base: type, key: object) -> bool:
    return (
        isinstance(key, str)
        and key.isidentifier()
        and not iskeyword(key)
        and not key.startswith("_")
        and not hasattr(base, key)
    )


@lru_cache(maxsize=64)
def _extended(base: type, keys: tuple[str, ...]) -> type:
    further = [(key, Any) for key in keys]
    return make_dataclass(base.__name__, further, bases=(base,), frozen=True, kw_only=True) if keys else base
