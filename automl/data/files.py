"""Find files that a dataset names, and convert their names to text."""

import os
import unicodedata
from pathlib import Path, PurePath


def is_file(path: Path) -> bool:
    """Return whether `path` is a file. A name that is too long for the system is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def name_to_text(name: str | PurePath) -> str:
    r"""Return a file name or relative path as text, with `\\xe9` for a byte that is not UTF-8.

    Names from old archives and foreign disks often have such bytes, which neither Arrow nor JSON in UTF-8
    accepts.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def normalise_nfc(text: str) -> str:
    """Return text with each accented letter as one character (NFC), so that equal names compare equal.

    Keyboards write `é` as one character. macOS writes file names with the letter and the accent as two (NFD).
    """
    return unicodedata.normalize("NFC", text)


def find_on_disk(folder: Path, name: str | PurePath) -> Path:
    """Return the path of `name` in `folder` as stored on the disk: composed, decomposed or unchanged.

    If there is no such file, the path is returned unchanged.
    """
    path = folder / name
    if is_file(path) or str(name).isascii():
        return path
    others = (folder / unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD"))
    return next(filter(is_file, others), path)
