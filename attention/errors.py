"""`InputError`, for mistakes of the user.

Every layer raises `InputError` for a mistake of the user: a name that does not exist, a
value that cannot work, a file that is not there. The message states the rule, the value and the
choices. The command line prints it and ends with exit code 2; every other exception is a defect of
ours and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


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


def check_utf8(what: str, text: str) -> None:
    """Raise InputError for `text` from the system, such as the name of a file, that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        raise InputError(
            f"{what} must be UTF-8, as Ray and MLflow take no other; got {shown!r}. Rename it, or make a "
            f"link to it with another name: ln -s FOLDER NAME"
        ) from error


MANY, FEW = 60, 5  # names that are no longer listed, and how many of the nearest are told then


def unknown(kind: str, name: object, choices: Iterable[str]) -> InputError:
    """The error for a `name` that is not among `choices`, with the nearest choice if there is one."""
    choices = sorted(choices)
    near = get_close_matches(str(name), choices, n=FEW)
    if len(choices) > MANY:
        which = f", such as {', '.join(near)}" if near else ""
        return InputError(f"unknown {kind} {name!r}; choose one of its {len(choices)}{which}")
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r}; choose from {', '.join(choices)}.{hint}")
