"""Options: the fields of a dataclass and their text give the command line, the API and the pages.

Messages name options and commands by the functions at the end.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ParamSpec, TypeVar, get_args

from automl.base.errors import InputError
from automl.base.escape import shell

WRITES = "writes"  # effect of an option
OPTION = "option"  # the key of the `Option` in the metadata of a field
ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.M)  # name and text, in a docstring
SENTENCE = re.compile(r"(?<=\.)\s+(?=\S)")
P = ParamSpec("P")
R = TypeVar("R")
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
        cli_default: Its default on the command line, if it differs otherwise.
        argument: True if it is given by its position.
        sentences: How many sentences of the field's text are the help.
        key: The key of a `TrialConfig` that it sets, if any.
        effect: `WRITES` if it names a file or folder that the command writes. Tools of agents refuse such
            values outside of the server's folder unless the server allows them.
    """

    group: str | None = None
    flags: tuple[str, ...] = ()
    shown: str | bool = True
    rare: bool = False
    kind: Any = None
    cli_default: Any = ...
    argument: bool = False
    sentences: int = 1
    key: str = ""
    effect: str = ""


def required(group: str | None = None, *flags: str, **others: Any) -> dict[str, Option]:
    """Return the metadata of a `field` without a default that is also an option."""
    return {OPTION: Option(group=group, flags=flags, **others)}


def option(default: Any, group: str | None = None, *flags: str, **others: Any) -> Any:
    """Declare a field that is also an option, with the arguments of `Option`."""
    return field(default=default, metadata=required(group, *flags, **others))


def options_of(source: type) -> Iterator[tuple[str, Any, Any, Option, str]]:
    """Yield name, type, default, option and help of each option that a dataclass itself declares.

    Types and defaults are those of the command line. The help is the beginning of the field's text in the
    docstring of the dataclass.
    """
    texts, every = _texts(source), {declared.name: declared for declared in fields(source)}
    for declared in (every[name] for name in source.__annotations__ if name in every):
        if OPTION in declared.metadata:
            option: Option = declared.metadata[OPTION]
            sentences = SENTENCE.split(" ".join(texts[declared.name].split()))[: option.sentences]
            default = option.cli_default
            if default is ...:
                default = None if type(None) in get_args(option.kind) else declared.default
            help = " ".join(sentences).replace("`", "")
            help = help.translate({ord("["): "(", ord("]"): ")"})  # rich takes brackets for markup
            yield declared.name, option.kind or declared.type, default, option, help


def with_keywords_of(source: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorate a function that passes its arguments to the dataclass `source`.

    `help`, the pages and type checkers then show the arguments of the class. If the function's docstring
    has no arguments, it gets their texts.
    """

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        _, *parameters = inspect.signature(source.__init__).parameters.values()
        returned = inspect.signature(function).return_annotation
        function.arguments = source  # type: ignore[attr-defined]
        function.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        if "Args:" not in (function.__doc__ or ""):
            _document(function, source, "Args", before="Returns", names=[p.name for p in parameters])
        return function

    return decorate


def document_fields(kind: Kind) -> Kind:
    """Decorate a dataclass: put the attributes of its base classes into its docstring."""
    before = "Raises" if "Raises:" in (kind.__doc__ or "") else "Example"
    _document(kind, kind, "Attributes", before=before, names=[declared.name for declared in fields(kind)])
    return kind


def _document(target: Any, source: Any, heading: str, *, before: str, names: list[str]) -> None:
    """Insert the texts of the fields `names` into a docstring, above the section `before`."""
    texts = _texts(source)
    section = "\n".join([f"{heading}:", *(f"    {name}: {texts[name]}" for name in names)])
    target.__doc__ = inspect.cleandoc(target.__doc__).replace(f"{before}:", f"{section}\n\n{before}:", 1)


def _texts(source: type) -> dict[str, str]:
    """Return the texts of the attributes of a class, also those that its base classes document."""
    texts: dict[str, str] = {}
    for base in reversed(source.__mro__):
        texts.update(ATTRIBUTE.findall(inspect.cleandoc(base.__doc__ or "")))
    return texts


STORAGE = "searches"


def format_command(command: str, name: str, storage: str, *arguments: str) -> str:
    """Return a command about the search called `name`, for a shell. The default storage is left out."""
    options = [] if storage == STORAGE else ["--storage", storage]
    return f"automl {command} {shell([name, *options, *arguments])}"


def option_name(setting: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{setting.replace('_', '-')}"


def format_option(setting: str, value: object) -> str:
    """Return a setting as an option with its value: `--seeds 6`, or `--no-sequential` for False."""
    if isinstance(value, bool):
        return option_name(setting if value else f"no_{setting}")
    return f"{option_name(setting)} {value}"


def split_option(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`, a value of `--option` or `--backbone-option`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"an option is NAME=VALUE; got {text!r}")
    return name, value


def advise_weights(backbone: str) -> str:
    """Return the options that give a backbone pretrained weights. One of the user's own stays."""
    library, colon, _ = backbone.partition(":")
    if colon and library not in ("torchvision", "timm"):
        return "--weights FILE"
    return f"{'' if colon else '--backbone torchvision:resnet18 '}--weights default, or --weights FILE"
