"""Names of searches and experiments, as folders and MLflow take them."""

import re
import unicodedata
from pathlib import Path

from automl.base.errors import InputError

MAX_TITLE = 40  # characters of the title of a search or experiment
MAX_NAME_BYTES = 200  # file systems allow 255, and an unfinished export adds to the name


def check_name(name: str, option: str = "--name") -> None:
    """Raise InputError if no folder can have this name, the value of `option`."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{option} may hold up to 100 letters, digits, '_' and, not first, '-' and '.'; got {name!r}"
        )
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise InputError(
            f"{option} may have up to {MAX_NAME_BYTES} bytes, as it names a folder; {name!r} has {size}. "
            f"Letters outside of ASCII take two to four bytes each. Give a shorter name"
        )


def short_name(space: str) -> str:
    """Return the name of a space as a component of the name of a folder or experiment.

    Return "space" for a function without a usable name, such as a lambda.
    """
    name = unicodedata.normalize("NFC", space.rpartition(":")[2].replace("<locals>.", ""))
    return re.sub(r"[^\w.-]+", "", name)[:MAX_TITLE] or "space"


def data_name(data: str) -> str:
    """Return the name of a folder or archive of data as a component of other names."""
    name = re.sub(r"(\.tar)?\.\w{1,4}$", "", Path(data).expanduser().resolve().name)
    # In file names, a letter and its accent may be two characters. The accent alone is no letter.
    return re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", name)).strip("-")[:MAX_TITLE]
