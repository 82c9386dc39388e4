"""Fetches an archive and unpacks it, once.

`AUTOML_MIRROR=http://host/folder` takes archives from there instead of from their own address, on a
network that is closed to the outside. The name of the file stays the same.
"""

import hashlib
import os
import shutil
import sys
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from attention.errors import InputError
from automl.data.archive import MAX_SHARE_OF_DISK, descend, unpack
from automl.data.progress import progress
from automl.storage.addresses import public
from automl.storage.cache import once
from automl.storage.disk import NO_ROOM

BLOCK = 1 << 20  # bytes
SILENCE = 60.0  # seconds without a byte, after which a server is given up
REMEDY = "try again, or pass a copy with --data PATH, or set AUTOML_MIRROR to an address that has it"


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The published hash of an archive, in hexadecimal.

    sha256, md5: of the whole file. first_md5: of its first MiB, which is what fastai publishes.
    size: in bytes.
    """

    sha256: str | None = None
    md5: str | None = None
    first_md5: str | None = None
    size: int | None = None


def downloaded(address: str, name: str, cache: Path, checksum: Checksum | None) -> Path:
    """Return the folder with the content of the archive at `address`, kept under `name`.

    Raises InputError when it cannot be fetched or has another checksum; nothing of it is left then.
    """

    def fetch(temporary: Path) -> None:
        source = _mirrored(address)
        archive = temporary.with_name(f"{temporary.name}.{source.rpartition('/')[2]}")
        _fetch(source, archive)
        if checksum is not None:
            _check(archive, source, checksum)
        try:  # an answer that was cut short shows here: the archive's checksum comes last
            unpack(archive, temporary)
        except InputError as error:
            raise InputError(f"{source} was not received whole ({error}); {REMEDY}") from error

    return descend(once(cache / "downloads" / name, fetch))


def _check(archive: Path, address: str, expected: Checksum) -> None:
    size = archive.stat().st_size
    if expected.size is not None and size != expected.size:
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
        with open(archive, "rb") as file:
            if length < 0:
                received = hashlib.file_digest(file, algorithm).hexdigest()
            else:
                received = hashlib.new(algorithm, file.read(length), usedforsecurity=False).hexdigest()
        if received != digest:
            raise InputError(
                f"{address} is not the archive that is known: its {size} bytes have the {what} {received}, "
                f"not {digest}; {REMEDY}"
            )


def _mirrored(address: str) -> str:
    mirror = os.environ.get("AUTOML_MIRROR")
    if mirror and "@" in urlsplit(mirror).netloc:
        raise InputError(f"AUTOML_MIRROR={public(mirror)} may not hold a user or password; they are not sent")
    return f"{mirror.rstrip('/')}/{address.rpartition('/')[2]}" if mirror else address


def _fetch(address: str, to: Path) -> None:
    print(f"downloading {address}", file=sys.stderr, flush=True)
    allowed = shutil.disk_usage(to.parent).free * MAX_SHARE_OF_DISK
    try:
        with (
            urllib.request.urlopen(address, timeout=SILENCE) as answer,
            open(to, "wb") as file,
            progress("MiB received", (answer.length or 0) // BLOCK) as advance,
        ):
            while block := answer.read(BLOCK):
                allowed -= len(block)
                if allowed < 0:
                    raise InputError(
                        f"{address} is larger than what may be used of the disk; free disk space, or set "
                        f"AUTOML_CACHE to another folder"
                    )
                file.write(block)
                advance(len(block) // BLOCK)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not an address at all
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        raise InputError(f"{address} cannot be downloaded ({error}); {REMEDY}") from error
