"""Files that a dataset names."""

from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether `path` is a file. A name that is too long for the system is not one."""
    try:
        return path.is_file()
    except OSError:
        return False
