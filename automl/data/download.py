"""Fetches an archive and unpacks it, once.

`AUTOML_MIRROR=http://host/folder` takes archives from there instead of from their own address, on a
network that is closed to the outside. The name of the file stays the same.
"""

import hashlib
import os
import shutil
import sys
import urllib.request
from collections.abc import Callable
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


def downloaded(dataset: str, cache: Path) -> Path:
    """The folder with the content of `dataset`, a name in fastai's `URLs` such as `IMAGEWOOF_160`.

    Raises InputError when it cannot be fetched; nothing of it is left then.
    """

    def address() -> str:
        from fastai.data.external import URLs  # takes a second

        found: str = getattr(URLs, dataset)
        return found

    return _downloaded(address, dataset, cache, None)


def downloaded_from(address: str, name: str, cache: Path, sha256: str) -> Path:
    """The folder with the content of the archive at `address`, kept under `name`.

    Raises InputError when it cannot be fetched or has another hash than `sha256`, in hexadecimal; nothing of
    it is left then.
    """
    return _downloaded(lambda: address, name, cache, sha256)


def _downloaded(original: Callable[[], str], name: str, cache: Path, sha256: str | None) -> Path:
    def fetch(temporary: Path) -> None:
        address = _mirrored(original())
        archive = temporary.with_name(f"{temporary.name}.{address.rpartition('/')[2]}")
        _fetch(address, archive)
        if sha256 is not None:
            _check(archive, address, sha256)
        try:  # an answer that was cut short shows here: the archive's checksum comes last
            unpack(archive, temporary)
        except InputError as error:
            raise InputError(f"{address} was not received whole ({error}); {REMEDY}") from error

    return descend(once(cache / "downloads" / name, fetch))


def _check(archive: Path, address: str, sha256: str) -> None:
    with open(archive, "rb") as file:
        came = hashlib.file_digest(file, "sha256").hexdigest()
    if came != sha256:
        raise InputError(
            f"{address} is not the archive that is known: its {archive.stat().st_size} bytes have the "
            f"SHA-256 {came}, not {sha256}; {REMEDY}"
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
