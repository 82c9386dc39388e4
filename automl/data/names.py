"""Names of files as text, also where they are not UTF-8: those of old archives and foreign disks often are not."""

import os
from pathlib import PurePath


def as_text(name: str | PurePath) -> str:
    """Return a file name or relative path as text, with `\\xe9` for a byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
