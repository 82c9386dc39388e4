"""Extracts archives that are not trusted.

Only plain files and folders are taken. A link or an absolute or climbing name could make an archive
write outside its folder, so these are refused rather than repaired.
"""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from attention.errors import InputError
from automl.data.digest import file_digest
from automl.data.walk import is_clutter
from automl.storage.cache import once

SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
MAX_MEMBERS = 5_000_000  # ImageNet has 1.3 million
MAX_SHARE_OF_DISK = 0.95  # of what is free
MAX_HEADER = 1 << 20  # bytes of a member's long name or other attributes, which tarfile reads at once
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


def is_archive(path: Path) -> bool:
    """Whether the file's name is that of an archive that `extract` can read."""
    return path.name.lower().endswith(SUFFIXES)


def extracted(archive: Path, cache: Path) -> Path:
    """The folder in `cache` with the content of `archive`, extracted the first time it is asked for.

    It is `<cache>/extracted/<hash of the archive>/`, or the one folder inside it if that is all there
    is. Raises InputError like `extract`.
    """
    into = cache / "extracted" / file_digest(archive, cache)[:32]
    extract(archive, into)
    return descend(into)


def descend(folder: Path) -> Path:
    """The single folder inside `folder`, which is how most archives are packed, or else `folder`."""
    inside = [child for child in folder.iterdir() if not is_clutter(child.name)]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def extract(archive: Path, into: Path) -> None:
    """Extracts a `.tgz`, `.tar.gz`, `.tar` or `.zip` file to the new folder `into`, entirely or not at all.

    Raises InputError for a damaged or encrypted archive, for links, for names that lead outside, and for
    more content than fits on the disk.
    """
    once(into, partial(unpack, archive))


def unpack(archive: Path, folder: Path) -> None:
    """`extract` without its atomicity: when it raises, `folder` holds a part."""
    folder.mkdir()
    unpack_members = _unpack_zip if archive.suffix.lower() == ".zip" else _unpack_tar
    try:
        unpack_members(archive, folder, _Limits(archive, folder))
    except DAMAGED as error:
        why = " ".join(str(error).split())  # tarfile's runs over several lines
        raise InputError(f"{archive} is damaged or not an archive ({why}); fetch it again") from error


class _Limits:
    """What every member of an archive must satisfy before it is written."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive = archive
        self.allowed = int(shutil.disk_usage(folder).free * MAX_SHARE_OF_DISK)
        self.members = self.bytes = 0

    def check(self, name: str, size: int, plain: bool) -> None:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
            raise self._refusal(f"the name {name!r} leads outside of it")
        if not plain:
            raise self._refusal(f"{name!r} is a link or a device, neither file nor folder")
        self.members += 1
        self.bytes += size
        if self.members > MAX_MEMBERS:
            raise self._refusal(f"it has more than {MAX_MEMBERS:,} members")
        if self.bytes > self.allowed:
            raise self._refusal(
                f"its content is larger than the {self.allowed / 1e9:.1f} GB that may be used of the disk "
                "(free disk space or set AUTOML_CACHE to another folder)"
            )

    def _refusal(self, why: str) -> InputError:
        return InputError(
            f"{self.archive} is not extracted: {why}; or unpack it yourself and pass the folder"
        )


def _unpack_tar(archive: Path, folder: Path, limits: _Limits) -> None:
    with tarfile.open(archive, tarinfo=_Member) as tar:
        for member in _each(tar):
            limits.check(member.name, member.size, member.isfile() or member.isdir())
            tar.extract(member, folder, filter="data")
        # The checksum of a compressed file comes at its end, behind the last member.
        while tar.fileobj is not None and tar.fileobj.read(1 << 20):
            pass


class _Member(tarfile.TarInfo):
    """Of a compressed archive, a small file could say as much about a member as the memory holds."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADERS and member.size > MAX_HEADER:
            raise tarfile.ReadError(f"{member.size} bytes about a member")
        return member


def _each(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        yield member
        tar.members = []  # type: ignore[attr-defined]  # or a million of them stay in memory


def _unpack_zip(archive: Path, folder: Path, limits: _Limits) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            limits.check(member.filename, member.file_size, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            try:
                file.extract(member, folder)
            except (RuntimeError, NotImplementedError) as error:  # encrypted, or a rare compression
                raise InputError(f"{archive} cannot be extracted ({error}); unpack it yourself") from error
