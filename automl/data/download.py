"""Fetches an archive of images and unpacks it, once.

`AUTOML_MIRROR=http://host/folder` takes archives from there instead of from fastai's address, on a
network that is closed to the outside. The name of the file stays the same.
"""

import os
import shutil
import sys
import urllib.request
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

    def fetch(temporary: Path) -> None:
        archive = temporary.with_name(f"{temporary.name}.archive")
        address = _address(dataset)
        _fetch(address, archive)
        try:  # an answer that was cut short shows here: the archive's checksum comes last
            unpack(archive, temporary)
        except InputError as error:
            raise InputError(f"{address} was not received whole ({error}); {REMEDY}") from error

    return descend(once(cache / "downloads" / dataset, fetch))


def _address(dataset: str) -> str:
    from fastai.data.external import URLs  # takes a second

    address: str = getattr(URLs, dataset)
    writer = os.environ.get("AUTOML_MIRROR")
    if writer and "@" in urlsplit(writer).netloc:
        raise InputError(f"AUTOML_MIRROR={public(writer)} may not hold a user or password; they are not sent")
    return f"{writer.rstrip('/')}/{address.rpartition('/')[2]}" if writer else address


def _fetch(address: str, to: Path) -> None:
    print(f"downloading {address}", file=sys.stderr, flush=True)
    capacity = shutil.disk_usage(to.parent).free * MAX_SHARE_OF_DISK
    try:
        with (
            urllib.request.urlopen(address, timeout=SILENCE) as answer,
            open(to, "wb") as file,
            progress("MiB received", (answer.length or 0) // BLOCK) as advance,
        ):
            while block := answer.read(BLOCK):
                capacity -= len(block)
                if capacity < 0:
                    raise InputError(
                        f"{address} is larger than what may be used of the disk; make room, or set "
                        f"AUTOML_CACHE to another folder"
                    )
                file.write(block)
                advance(len(block) // BLOCK)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not an address at all
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        raise InputError(f"{address} cannot be downloaded ({error}); {REMEDY}") from error
