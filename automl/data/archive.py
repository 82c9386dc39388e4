"""Extract untrusted archives.

Only regular files and folders are extracted. A link, an absolute name or a name with `..` could make an
archive write outside its folder, so these are refused, not repaired. Names that no file can have are refused,
too.
"""

import errno
import gzip
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from automl.base.errors import InputError
from automl.base.units import format_size
from automl.data.files import hash_file, is_clutter
from automl.data.remote import local_copy
from automl.storage.cache_folder import cache_root, once

SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
MAX_MEMBERS = 5_000_000  # ImageNet has 1.3 million
MAX_FRACTION_OF_DISK = 0.95  # of the free space
MAX_HEADER = 1 << 20  # bytes of a member's name and attributes, which tarfile reads at once
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)

MAX_NAME = 255  # bytes of a file's name on the usual file systems
MAX_FOLDERS = 100  # levels; system calls and recursive functions have limits, too

DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,  # a name that is not UTF-8, or a number out of range
    OverflowError,
)
BOTH = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR}  # errors if a file and a folder have one name
NOT_A_NAME = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}


def is_archive(path: Path) -> bool:
    """Return whether `extract` can read the file, judged by its name."""
    return path.name.lower().endswith(SUFFIXES)


def extract_cached(archive: Path) -> Path:
    """Return the folder in the cache with the content of `archive`, extracted on first use.

    It is `<cache>/extracted/<hash of the archive>/`, or its only folder if it has nothing else. Raises
    InputError like `extract`.
    """
    into = cache_root() / "extracted" / hash_file(archive)[:32]
    extract(archive, into)
    return enter_single_folder(into)


def extract_if_archive(path: str | Path) -> Path:
    """Return the folder with the content of an archive, or the path of anything else, on this machine."""
    path = local_copy(path)
    return extract_cached(path) if path.is_file() and is_archive(path) else path


def enter_single_folder(folder: Path) -> Path:
    """Return the only folder inside `folder`, as most archives have, or else `folder`."""
    children = [child for child in folder.iterdir() if not is_clutter(child.name)]
    return children[0] if len(children) == 1 and children[0].is_dir() else folder


def extract(archive: Path, into: Path) -> None:
    """Extract a `.tgz`, `.tar.gz`, `.tar` or `.zip` file to the new folder `into`, entirely or not at all.

    Raises InputError for a damaged or encrypted archive, for links, for names that lead outside, and for more
    content than fits on the disk.
    """
    once(into, partial(unpack, archive))


def unpack(archive: Path, folder: Path) -> None:
    """Extract an archive like `extract`, but leave an incomplete folder if it fails."""
    folder.mkdir()
    limits = _Limits(archive, folder)
    members = _read_zip if archive.suffix.lower() == ".zip" else _read_tar
    try:
        for member in members(archive):
            limits.check(member)
            _write(member, folder, limits)
    except InputError:
        raise
    except DAMAGED as error:
        raise _damaged_error(archive, error) from error
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unsupported compression
        raise InputError(f"{archive} cannot be extracted ({error}); unpack it yourself") from error
    except OSError as error:
        if error.errno is None:  # bzip2 raises these for damaged data.
            raise _damaged_error(archive, error) from error
        raise


def _damaged_error(archive: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())  # tarfile's messages have several lines.
    return InputError(f"{archive} is damaged or not an archive ({reason}); download it again")


class _Member(NamedTuple):
    """A member of an archive. `kind` is "file", "folder" or "other". `open` opens a file's content."""

    name: str
    size: int
    kind: str
    open: Callable[[], IO[bytes] | None]

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.name).parts


class _Limits:
    """Checks that every member of an archive must pass before it is written."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive = archive
        self.allowed = int(shutil.disk_usage(folder).free * MAX_FRACTION_OF_DISK)
        self.members = self.bytes = 0

    def check(self, member: _Member) -> None:
        name = member.name
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
            raise self.refusal(f"the name {_shorten(name)} leads outside of it")
        if member.kind == "other":
            raise self.refusal(f"{_shorten(name)} is a link or a device, neither file nor folder")
        if "\0" in name or (member.kind == "file" and not member.parts):
            raise self.refusal(f"{_shorten(name)} is not a valid file name")
        if any(len(part.encode("utf-8", "surrogateescape")) > MAX_NAME for part in member.parts):
            raise self.refusal(f"the name {_shorten(name)} has more than {MAX_NAME} bytes")
        if len(member.parts) > MAX_FOLDERS:
            raise self.refusal(f"{_shorten(name)} is nested in more than {MAX_FOLDERS} folders")
        if member.size < 0:
            raise self.refusal(f"the size of {_shorten(name)} is negative: {member.size} bytes")
        self.members += 1
        self.bytes += member.size
        if self.members > MAX_MEMBERS:
            raise self.refusal(f"it has more than {MAX_MEMBERS:,} members")
        if self.bytes > self.allowed:
            raise self.refusal(
                f"its content is larger than the {format_size(self.allowed)} that may be used of the disk "
                "(free disk space, or set AUTOML_CACHE to another folder)"
            )

    def refusal(self, reason: str) -> InputError:
        return InputError(
            f"{self.archive} was not extracted: {reason}. Or unpack it yourself and pass the folder"
        )


def _shorten(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:40]}...{name[-37:]}")


def _write(member: _Member, folder: Path, limits: _Limits) -> None:
    target = folder.joinpath(*member.parts)
    try:
        (target if member.kind == "folder" else target.parent).mkdir(parents=True, exist_ok=True)
        if member.kind == "folder":
            return
        sink = open(target, "wb")  # noqa: SIM115  # Only errors of opening the file are about its name.
    except OSError as error:
        if error.errno in BOTH:
            raise limits.refusal(
                f"{_shorten(member.name)} is, or is inside, both a file and a folder"
            ) from error
        if error.errno in NOT_A_NAME:
            raise limits.refusal(
                f"no file can be called {_shorten(member.name)} ({error.strerror})"
            ) from error
        raise
    with sink:
        source = member.open()
        assert source is not None, member.name
        with source:
            shutil.copyfileobj(source, sink)


def _read_tar(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, tarinfo=_TarMember) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # Do not keep a million members in memory.
            kind = "file" if info.isfile() else "folder" if info.isdir() else "other"
            yield _Member(info.name, info.size, kind, partial(tar.extractfile, info))
        # Read the checksum of a compressed file, which follows the last member.
        while tar.fileobj is not None and tar.fileobj.read(1 << 20):
            pass


class _TarMember(tarfile.TarInfo):
    """A member whose header has a limited size. A small compressed file could otherwise fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_TarMember":
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADERS and member.size > MAX_HEADER:
            raise tarfile.ReadError(f"the header of a member has {member.size} bytes")
        if member.size < 0:  # The next member would be before this one, in an endless loop.
            raise tarfile.ReadError(f"a member has {member.size} bytes")
        return member


def _read_zip(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            name = info.filename.replace("\\", "/")  # Some Windows programs write backslashes.
            kind = "other"
            if stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "folder" if name.endswith("/") else "file"
            yield _Member(name, info.file_size, kind, partial(file.open, info))
