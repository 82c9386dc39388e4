"""Fetches the files of a dataset and unpacks them, once.

A download that was interrupted goes on where it was, if the server takes ranges and still has the same file.

`AUTOML_MIRROR=http://host/folder` takes files from there instead of from their own address, on a network
that is closed to the outside. The name of the file stays the same.
"""

import hashlib
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from attention.errors import InputError
from automl.data.archive import MAX_FRACTION_OF_DISK, descend, unpack
from automl.data.preparation_progress import progress
from automl.storage.addresses import public
from automl.storage.cache_folder import once
from automl.storage.disk import NO_ROOM

BLOCK = 1 << 20  # bytes
SILENCE = 60.0  # seconds without a byte, after which a server is given up
PACKED = (".tgz", ".tar.gz", ".tar", ".tar.bz2", ".zip")
PARTIAL, RESUMED = 206, 416  # of HTTP: a range, and none that is left
REMEDY = "try again, or pass a copy with --data PATH, or set AUTOML_MIRROR to an address that has it"


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The published hash of a file, in hexadecimal.

    sha256, md5: of the whole file. first_md5: of its first MiB, which is what fastai publishes.
    size: in bytes.
    """

    sha256: str | None = None
    md5: str | None = None
    first_md5: str | None = None
    size: int | None = None

    @property
    def is_whole(self) -> bool:
        """Tell if a hash of the whole file is known."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file to download.

    size: about how many bytes it has, 0 where that is not known. checksum: what is published of it.
    """

    address: str
    size: int = 0
    checksum: Checksum = Checksum()

    @property
    def name(self) -> str:
        """The file's name."""
        return self.address.rpartition("/")[2]


def download_archive(address: str, name: str, cache: Path, checksum: Checksum | None) -> Path:
    """Return the folder with the content of the archive at `address`, kept under `name`.

    Raises InputError like `fetch_files`.
    """
    return fetch_files(name, [Remote(address=address, checksum=checksum or Checksum())], cache)


def fetch_files(name: str, files: Sequence[Remote], cache: Path) -> Path:
    """Return the folder with the content of `files`, archives unpacked beside each other, kept under `name`.

    Raises InputError when one cannot be fetched or has another checksum. What was received of it stays, and
    the next call continues from there. A file with another checksum, or one that cannot be unpacked, is
    deleted.
    """

    def fetch(temporary: Path) -> None:
        parts = []
        for file in files:
            address = _mirrored(file.address)
            part = temporary.with_name(f"{name}.part-{file.name}")
            _fetch(address, part, checked=file.checksum.is_whole)
            parts.append(part)
            _check(part, address, file.checksum)
        if not (len(files) == 1 and files[0].name.endswith(PACKED)):
            temporary.mkdir()
        for file, part in zip(files, parts, strict=True):
            if not file.name.endswith(PACKED):
                shutil.copyfile(part, temporary / file.name)
            elif len(files) == 1:
                _unpack(part, temporary, file)
            else:
                inside = temporary / f".{file.name}"
                _unpack(part, inside, file)
                for path in list(inside.iterdir()):
                    shutil.move(path, temporary / path.name)
                inside.rmdir()
        for part in parts:
            _remove(part)

    return descend(once(cache / "downloads" / name, fetch))


def _unpack(part: Path, folder: Path, file: Remote) -> None:
    try:  # an answer that was cut short shows here: the archive's checksum comes last
        unpack(part, folder)
    except InputError as error:
        _remove(part)
        raise InputError(f"{_mirrored(file.address)} was not received whole ({error}); {REMEDY}") from error


def _check(part: Path, address: str, expected: Checksum) -> None:
    size = part.stat().st_size
    if expected.size is not None and size != expected.size:
        _remove(part)
        raise InputError(
            f"{address} is not the archive that is known: it has {size} bytes, not {expected.size}; {REMEDY}"
        )
    for what, digest, algorithm, length in (
        ("SHA-256", expected.sha256, "sha256", -1),
        ("MD5", expected.md5, "md5", -1),
        ("MD5 of the first MiB", expected.first_md5, "md5", BLOCK),
    ):
        if digest is None:
            continue
        with open(part, "rb") as file:
            if length < 0:
                received = hashlib.file_digest(file, algorithm).hexdigest()
            else:
                received = hashlib.new(algorithm, file.read(length), usedforsecurity=False).hexdigest()
        if received != digest:
            _remove(part)
            raise InputError(
                f"{address} is not the archive that is known: its {size} bytes have the {what} {received}, "
                f"not {digest}; {REMEDY}"
            )


def _mirrored(address: str) -> str:
    mirror = os.environ.get("AUTOML_MIRROR")
    if mirror and "@" in urlsplit(mirror).netloc:
        raise InputError(f"AUTOML_MIRROR={public(mirror)} may not hold a user or password; they are not sent")
    return f"{mirror.rstrip('/')}/{address.rpartition('/')[2]}" if mirror else address


def _fetch(address: str, to: Path, *, checked: bool) -> None:
    """Receive a file, or what `to` lacks of it. checked: a hash will tell if it has become another file."""
    before = _received(address, to, checked=checked)
    if before and before["size"] == to.stat().st_size:
        return
    begun = to.stat().st_size if before else 0
    print(f"downloading {address}", file=sys.stderr, flush=True)
    try:
        asked = urllib.request.Request(address)
        if before:
            asked.add_header("Range", f"bytes={begun}-")
            if before["version"]:
                asked.add_header("If-Range", before["version"])
        with urllib.request.urlopen(asked, timeout=SILENCE) as answer:
            if answer.status == PARTIAL:
                print(f"going on after {begun / 1e6:,.1f} MB", file=sys.stderr, flush=True)
            else:
                begun = 0
            _receive(answer, address, to, begun, checked=checked)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not an address at all
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        if isinstance(error, HTTPError) and error.code == RESUMED:
            _remove(to)  # the next call begins anew
        raise InputError(f"{address} cannot be downloaded ({error}); {REMEDY}") from error


def _receive(answer: Any, address: str, to: Path, begun: int, *, checked: bool) -> None:
    """Write an answer behind the first `begun` bytes of `to`."""
    length = answer.length or 0
    # A server that names no version of its file may have another one the next time.
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    about = {"address": address, "size": begun + length, "version": version}
    allowed = shutil.disk_usage(to.parent).free * MAX_FRACTION_OF_DISK
    _about(to).write_text(json.dumps(about))
    with (
        open(to, "ab" if begun else "wb") as file,
        progress("MiB received", length // BLOCK) as advance,
    ):
        received = 0
        while block := answer.read(BLOCK):
            received += len(block)
            if received > allowed:
                _remove(to)
                raise InputError(
                    f"{address} is larger than what may be used of the disk; free disk space, or set "
                    f"AUTOML_CACHE to another folder"
                )
            file.write(block)
            advance(len(block) // BLOCK)
    if received < length:
        if not (version or checked):
            _remove(to)
        raise InputError(f"{address} was not received whole ({received} of {length} bytes); {REMEDY}")


def _received(address: str, to: Path, *, checked: bool) -> dict[str, Any] | None:
    """Return what is known of a part that was received before; None where there is none to go on from."""
    try:
        about: dict[str, Any] = json.loads(_about(to).read_text())
        known = about["address"] == address and (about["version"] or checked) and about["size"] > 0
        return about if known and to.stat().st_size <= about["size"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _about(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remove(part: Path) -> None:
    for path in (part, _about(part)):
        path.unlink(missing_ok=True)
