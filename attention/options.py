"""Options of a module: the keyword arguments of its class, with their types, defaults and choices."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from automl.base.errors import InputError, unknown

OptionValue = int | float | bool | str | None

RESERVED = ("type", "code")  # Keys of a spec in JSON, which no option may have.
PLAIN_TYPES = (bool, int, float, str, type(None))


class Choices:
    """Values of an option that a search tries, for `Annotated[int, Choices(4, 8, 16)]`.

    Args:
        *values: The values.

    Raises:
        InputError: There is no value, or a value is no number, truth value, text or None.

    Example:
        >>> import automl
        >>> automl.Choices(4, 8, 16).values
        (4, 8, 16)
    """

    def __init__(self, *values: OptionValue) -> None:
        if not values or any(type(value) not in PLAIN_TYPES for value in values):
            raise InputError(f"Choices takes one or more numbers, truth values, texts or None; got {values}")
        self.values = values


NotTried = Annotated[bool, Choices(False)]  # Searches try no causal modules, since no task needs them.


@dataclass(frozen=True, kw_only=True)
class Option:
    """Keyword argument of a module's class.

    Attributes:
        default: The default value.
        types: The types of its values. Empty if any plain value is allowed.
        choices: The values that a search tries. Empty if it keeps the default.
        allowed: The only valid values. Empty if there are others.
    """

    default: OptionValue
    types: tuple[type, ...] = ()
    choices: Sequence[OptionValue] = ()
    allowed: Sequence[OptionValue] = ()


def read_options(factory: Callable[..., Any], *, leave_out: Iterable[str] = ()) -> dict[str, Option]:
    """Return the options of a class or function by name.

    These are its parameters with a plain default value, after the first one, which is the channels. Those
    called `type` or `code` always keep their defaults.

    Args:
        factory: The class or function.
        leave_out: Names of parameters that are no options.
    """
    hints, leave_out = _hints(factory), {*leave_out, *RESERVED}
    return {
        p.name: _option(p.default, hints.get(p.name))
        for p in list(inspect.signature(factory).parameters.values())[1:]
        if type(p.default) in PLAIN_TYPES and p.name not in leave_out and _is_plain(hints.get(p.name))
    }


def check_choice(name: str, value: str, kind: Any) -> None:
    """Raise `InputError` if `value`, the argument `name` of a module, is not in the `Literal` `kind`."""
    if value not in get_args(kind):
        raise InputError(f"{name} must be one of {', '.join(get_args(kind))}; got {value!r}")


def check_options(name: str, options: Mapping[str, OptionValue], known: Mapping[str, Option]) -> None:
    """Raise `InputError` if the type `name` lacks an option, or a value is not allowed."""
    for key, value in options.items():
        if key not in known:
            if not known:
                raise InputError(f"attention {name!r} takes no options; got {key!r}")
            raise unknown(f"option of attention {name!r}", key, known)
        types = known[key].types or PLAIN_TYPES
        if type(value) not in types and not (float in types and type(value) is int):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise InputError(f"option {key!r} of {name!r} must be {expected}; got {value!r}")
        if (allowed := known[key].allowed) and value not in allowed:
            choices = ", ".join(map(str, allowed))
            raise InputError(f"option {key!r} of {name!r} must be one of {choices}; got {value!r}")


def _hints(factory: Callable[..., Any]) -> Mapping[str, Any]:
    function: Any = factory.func if isinstance(factory, partial) else factory
    function = function.__init__ if inspect.isclass(function) else function
    hints = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        # Each alone, since one may have a name that is only imported for type checkers, for example.
        with suppress(NameError, TypeError, AttributeError, SyntaxError):
            hints[name] = get_type_hints(
                SimpleNamespace(__annotations__={name: annotation}),
                getattr(function, "__globals__", {}),
                include_extras=True,
            )[name]
    return hints


def _is_plain(hint: Any) -> bool:
    """Return whether an annotation allows a plain value besides None, or is missing."""
    return hint is None or any(kind is not type(None) for kind in _types(hint))


def _types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Annotated:
        return _types(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return tuple(dict.fromkeys(type(choice) for choice in get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _types(part))
    return (hint,) if hint in PLAIN_TYPES else ()


def _option(default: OptionValue, hint: Any) -> Option:
    allowed = () if hint is None else _allowed(hint)
    choices: tuple[OptionValue, ...] = _choices(hint) or allowed or ((False, True) if hint is bool else ())
    return Option(
        default=default, types=() if hint is None else _types(hint), choices=choices, allowed=allowed
    )


def _choices(hint: Any) -> tuple[OptionValue, ...]:
    """Return the values of `Choices` in an annotation, also inside of an `Optional`."""
    own = tuple(v for part in get_args(hint) if isinstance(part, Choices) for v in part.values)
    if get_origin(hint) in (Union, UnionType):
        return own or tuple(v for part in get_args(hint) for v in _choices(part))
    return own


def _allowed(hint: Any) -> tuple[OptionValue, ...]:
    """Return the values of a `Literal`, also inside of an `Annotated` or an `Optional`."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) is Annotated:
        return _allowed(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        parts = [(None,) if part is type(None) else _allowed(part) for part in get_args(hint)]
        return tuple(v for part in parts for v in part) if all(parts) else ()
    return ()
