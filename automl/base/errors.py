"""`InputError`, for mistakes of the user.

Every layer raises `InputError` for a mistake of the user, such as an unknown name, an invalid value or a
missing file. The message states the rule, the value and the choices. The command line prints it and exits
with code 2. Every other exception is a defect of this project and keeps its traceback.
"""

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from automl.base.escape import redact

# Packages of this project, which are installed on every machine.
OWN_PACKAGES = ("attention", "automl", "backbones", "cluster", "search")


class InputError(ValueError):
    """A mistake in the input. The message states the rule, the value and what to do.

    All entry points raise it, before anything is trained where that is possible. Any other exception is a
    defect of this project.

    Args:
        message: The message.

    Example:
        >>> import automl
        >>> try:
        ...     automl.Settings(space="digits", trials=0)
        ... except automl.InputError as error:
        ...     print(error)
        --trials must be 1 or more; got 0
    """


class UnusableGpu(RuntimeError):
    """The GPU that Ray assigned to a trial cannot be used. The trial is not at fault."""


def check_utf8(what: str, text: str) -> None:
    """Raise `InputError` if `text` from the system, such as a file name, is not UTF-8.

    The text has surrogate escapes where it is not. The message calls it `what`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        raise InputError(
            f"{what} must be UTF-8, as Ray and MLflow take no other; got {shown!r}. Rename it, or make a "
            f"link to it with another name: ln -s FOLDER NAME"
        ) from error


LONGEST = 400  # characters of another library's message

# Above `MANY` choices, the message lists only the `FEW` nearest ones.
MANY, FEW = 60, 5


def unknown(kind: str, name: object, choices: Iterable[str]) -> InputError:
    """Return the error for a `name` that is not among `choices`, of which the message lists the nearest.

    `kind` is a noun for the name, such as `site`.
    """
    choices = sorted(choices)
    near = get_close_matches(str(name), choices, n=FEW)
    if len(choices) > MANY:
        examples = f", such as {', '.join(near)}" if near else ""
        return InputError(f"unknown {kind} {name!r}; choose one of its {len(choices)}{examples}")
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r}; choose from {', '.join(choices)}.{hint}")


def error_message(error: BaseException | None) -> str:
    """Return the message of an error in one line, or the name of its type if it has none."""
    lines = (line.strip() for line in str(error).splitlines())
    text = redact(" ".join(line for line in lines if line))  # servers may repeat a request with its token
    return f"{text[:LONGEST]} ..." if len(text) > LONGEST else text or type(error).__name__


def error_line(error: BaseException) -> str:
    """Return type and message of an error in one line."""
    name = type(error).__name__
    return f"{name}: {error_message(error)}" if str(error).strip() else name


def describe_error(error: BaseException) -> str:
    """Return type and message of an error in one line, with the last line of user-defined code that ran."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_ours(Path(each.filename))]
    own = [frame for frame in frames if not _is_in_library(Path(frame.filename))]
    # A module of a library that no code of the user calls is named instead.
    frames = own or [frame for frame in frames if "torch" not in Path(frame.filename).parts]
    location = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    line = frames[-1].line if frames else ""  # An assertion without a message is its own message.
    text = error_message(error) if str(error).strip() else line or "no message"
    return f"{type(error).__name__}: {text}{location}"


def is_raised_by_user(error: BaseException) -> bool:
    """Return True if user-defined code raised `error`, possibly through a library."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if not _is_in_library(file)]
    return bool(own) and not _is_ours(own[-1])


def _is_in_library(file: Path) -> bool:
    return "site-packages" in file.parts or file.is_relative_to(sysconfig.get_path("stdlib"))


def _is_ours(file: Path) -> bool:
    return any(file.is_relative_to(Path(__file__).parents[2] / name) for name in OWN_PACKAGES)
