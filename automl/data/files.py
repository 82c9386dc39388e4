"""Files that a dataset names, and their names as text."""

import os
from pathlib import Path, PurePath


def is_file(path: Path) -> bool:
    """Return whether `path` is a file. A name that is too long for the system is not one."""
    try:
        return path.is_file()
    except OSError:
        return False


def as_text(name: str | PurePath) -> str:
    """Return a file name or relative path as text, with `\\xe9` for a byte that is not UTF-8.

    Names from old archives and foreign disks often are not, and neither Arrow nor JSON in UTF-8 takes them.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")
