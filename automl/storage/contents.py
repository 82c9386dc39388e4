"""Digests of files and the times of their last changes, which show whether a path is as it was."""

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

NO_CONTENT = ("__pycache__", ".git")  # names of folders without content
REREAD = 2**28  # bytes of a path that are always read. Other files are read if their times or size differ

Contents = dict[str, tuple[str, int]]  # digest of each file, and the time of its last change, by name
_known: dict[str, tuple[tuple[int, ...], str]] = {}  # digests of files beyond `REREAD`, with their times


def read_contents(path: Path) -> Contents:
    """Return the digest of each file of a path and the time of its last change, by its name below it."""
    files, size = {}, 0
    for name, file, info in walk(str(path)):
        size += info.st_size
        key = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        known = _known.get(file, ((), ""))
        digest = known[1] if size > REREAD and known[0] == key else _digest(file, info.st_mode)
        if size > REREAD:
            _known[file] = key, digest
        files[name] = digest, info.st_ctime_ns
    return files


def walk(
    path: str, skipped: Collection[str] = NO_CONTENT, *, name: str = ".", above: Sequence[int] | None = ()
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and state of each file, without names and paths that are skipped."""
    # Follow links, except to a folder `above`, by its inode. With None, follow no links.
    with suppress(OSError):  # such as one that does not exist
        info = os.stat(path, follow_symlinks=above is not None)
        if not stat.S_ISDIR(info.st_mode) or not os.access(path, os.R_OK | os.X_OK):
            yield name, path, info
        elif above is None or info.st_ino not in above:
            inner = above if above is None else (*above, info.st_ino)
            for entry in sorted(os.listdir(path)):
                file = os.path.join(path, entry)
                if entry not in skipped and file not in skipped:
                    yield from walk(file, skipped, name=os.path.normpath(f"{name}/{entry}"), above=inner)


def _digest(file: str, mode: int) -> str:
    """Return the digest of a file, or an empty text if it cannot be read."""
    with suppress(OSError):
        if stat.S_ISREG(mode):  # opening a pipe would wait
            with open(file, "rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
    return ""


def digest_of(contents: Contents) -> str:
    """Return one digest of the contents of a path."""
    lines = (f"{name}\0{digest}\n" for name, (digest, _) in sorted(contents.items()))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
