"""Walk the folders of a dataset, each once, without files that operating systems leave there."""

import os
from collections.abc import Iterator
from pathlib import Path

from automl.base.errors import InputError

CLUTTER = ("thumbs.db", "desktop.ini", "ehthumbs.db", "$recycle.bin", "@eadir", "__macosx")

OTHERS = frozenset({"node_modules", "site-packages", "__pycache__"})  # folders with code of others


def is_clutter(name: str) -> bool:
    """Return whether a file is hidden or the system's, such as `._a.jpg`, `.DS_Store`, `Thumbs.db`."""
    return name.startswith(".") or name.lower() in CLUTTER


def walk(
    root: Path,
    *,
    above: tuple[Path, ...] = (),
    clutter: list[Path] | None = None,
    links: list[Path] | None = None,
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder below `root` with its folders and files, sorted. Links to folders are followed.

    Folders may be removed from the list, as in `os.walk`. A link to a folder above it, or to one that was
    already walked, is not followed.

    Args:
        root: the first folder.
        above: folders above `root`, to which links are not followed either.
        clutter: receives the files that `is_clutter` leaves out.
        links: receives the links that are not followed.

    Raises:
        InputError: A folder cannot be read.
    """
    yield from _walk(root, tuple(map(_real, above)), set(), clutter, links)


def links_to_parent(folder: Path, above: tuple[Path, ...]) -> bool:
    """Return whether `folder` is a link to one of the folders `above`, or to a parent of one."""
    real = _real(folder)
    return any(other == real or real in other.parents for other in map(_real, above))


def _walk(
    folder: Path,
    above: tuple[Path, ...],
    seen: set[Path],
    clutter: list[Path] | None,
    links: list[Path] | None,
) -> Iterator[tuple[Path, list[str], list[str]]]:
    real = _real(folder)
    seen.add(real)
    above = (*above, real)
    folders, files = [], []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be read ({error.strerror}); make it readable or remove it"
        ) from error
    for entry in entries:
        is_folder = entry.is_dir()
        if is_clutter(entry.name):
            if clutter is not None and not is_folder:
                clutter.append(Path(entry.path))
        elif not is_folder:
            files.append(entry.name)
        elif entry.is_symlink() and (
            _real(Path(entry.path)) in seen or links_to_parent(Path(entry.path), above)
        ):
            if links is not None:
                links.append(Path(entry.path))
        else:
            folders.append(entry.name)
    yield folder, folders, files
    for name in folders:
        if _real(folder / name) not in seen:  # A link may have led to it in the meantime.
            yield from _walk(folder / name, above, seen, clutter, links)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
