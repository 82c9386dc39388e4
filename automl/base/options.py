"""Declare settings: a field of a dataclass and its text also give the option of the command line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from inspect import cleandoc
from typing import Any, TypeVar, get_args

OPTION = "option"  # the key of the `Option` in the metadata of a field
ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.M)  # name and text, in a docstring
Kind = TypeVar("Kind", bound=type)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A setting on the command line.

    Attributes:
        group: The heading in `--help`.
        flags: The names of the option, if they differ from the setting's.
        shown: The default in `--help`. True: the value. False: none.
        rare: Show the option only in `--help-all`.
        kind: Its type on the command line, if it differs. If it may be None, that is the default there.
    """

    group: str | None = None
    flags: tuple[str, ...] = ()
    shown: str | bool = True
    rare: bool = False
    kind: Any = None


def option(default: Any, group: str | None = None, *flags: str, **others: Any) -> Any:
    """Declare a field that is also an option, with the arguments of `Option`."""
    return field(default=default, metadata={OPTION: Option(group=group, flags=flags, **others)})


def options_of(source: type) -> Iterator[tuple[str, Any, Any, Option, str]]:
    """Yield name, type, default, option and help of each field that is an option, for the command line.

    The help is the first sentence of the field's text in the docstring of the dataclass.
    """
    texts = dict(ATTRIBUTE.findall(cleandoc(source.__doc__ or "")))
    for declared in fields(source):
        if OPTION in declared.metadata:
            help = re.split(r"(?<=\.)\s+(?=\S)", " ".join(texts[declared.name].split()))[0].replace("`", "")
            option: Option = declared.metadata[OPTION]
            default = None if type(None) in get_args(option.kind) else declared.default
            yield declared.name, option.kind or declared.type, default, option, help


def document_fields(kind: Kind) -> Kind:
    """Decorate a dataclass: put the attributes of its base class into its docstring."""
    _, heading, attributes = (kind.__base__.__doc__ or "").partition("    Attributes:\n")
    summary, raises, rest = (kind.__doc__ or "").partition("    Raises:\n")
    kind.__doc__ = f"{summary}{heading}{attributes.rstrip()}\n\n{raises}{rest}"
    return kind
