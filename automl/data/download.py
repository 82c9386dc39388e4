"""Download the files of a dataset and unpack them, once, and the datasets that are published by name.

An interrupted download resumes if the server accepts ranges and still has the same file.

`AUTOML_MIRROR=http://host/folder` downloads files from there instead of their own address, for networks
without access to the internet. The names of the files stay the same.
"""

import hashlib
import json
import os
import re
import shutil
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from automl.base.atomic import NO_ROOM
from automl.base.errors import InputError, unknown
from automl.base.escape import redact
from automl.base.lazy import contributed
from automl.base.serialise import from_json
from automl.base.terminal import progress, tell
from automl.base.units import format_size
from automl.data.archive import MAX_FRACTION_OF_DISK, enter_single_folder, unpack
from automl.storage.cache_folder import cache_root, once

BLOCK = 1 << 20  # bytes
SILENCE = 60.0  # seconds without data after which a download fails
ASKED = 3.0  # seconds in which an address must answer
PACKED = (".tgz", ".tar.gz", ".tar", ".tar.bz2", ".zip")
PARTIAL, BEYOND_END = 206, 416  # HTTP status: a range, and a range beyond the end
REMEDY = (
    "try again, or pass a copy with --data PATH or --weights FILE, or set AUTOML_MIRROR to one that has it"
)


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The published hash of a file, in hexadecimal. `first_md5` is of the first MiB, as fastai publishes."""

    sha256: str | None = None
    md5: str | None = None
    first_md5: str | None = None
    size: int | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether a hash of the whole file is known."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file to download. `size` is about its size in bytes; 0 if unknown."""

    address: str
    size: int = 0
    checksum: Checksum = Checksum()

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.address.rpartition("/")[2]


def fetch_files(name: str, files: Sequence[Remote]) -> Path:
    """Return the folder with the content of `files`, kept under `name`. Archives are unpacked side by side.

    Raises InputError if a file cannot be downloaded or has another checksum. The received part is kept, and
    the next call resumes. A file with another checksum, or one that cannot be unpacked, is deleted.
    """

    def fetch(temporary: Path) -> None:
        paths = []
        for file in files:
            address = mirrored(file.address)
            path = temporary.with_name(f"{name}.part-{file.name}")
            _fetch(address, path, checked=file.checksum.is_whole)
            paths.append(path)
            _check(path, address, file.checksum)
        temporary.mkdir()
        for file, path in zip(files, paths, strict=True):
            if not file.name.endswith(PACKED):
                shutil.copyfile(path, temporary / file.name)
                continue
            inside = temporary / f".{file.name}"
            try:  # An incomplete download is detected here, since an archive's checksum comes last.
                unpack(path, inside)
            except InputError as error:
                _remove(path)
                raise InputError(
                    f"{mirrored(file.address)} was not received completely ({error}); {REMEDY}"
                ) from error
            for child in list(inside.iterdir()):
                shutil.move(child, temporary / child.name)
            inside.rmdir()
        for path in paths:
            _remove(path)

    return enter_single_folder(once(cache_root() / "downloads" / name, fetch))


def fetch_file(address: str, target: Path) -> None:
    """Download a file of torch.hub, whose name has the start of its SHA-256, to the path `target`, once.

    Raises InputError as `fetch_files` does.
    """
    digest = re.search(r"-([0-9a-f]{8,})\.", target.name)
    checksum = Checksum(sha256=digest[1] if digest else None)

    def fetch(temporary: Path) -> None:
        path = target.with_name(f"{target.name}.part")
        _fetch(mirrored(address), path, checked=checksum.is_whole)
        _check(path, mirrored(address), checksum)
        os.replace(path, temporary)
        _remove(path)

    once(target, fetch)


def find_answering(addresses: Sequence[str]) -> str | None:
    """Return the first of the addresses that has its file and says so within `ASKED` seconds, or its mirror.

    All are asked at once, and each once. Return None if none answers.
    """
    answering: set[str] = set()
    sources = {address: mirrored(address) for address in addresses}

    def ask(address: str) -> None:
        with suppress(OSError, HTTPException, ValueError):
            request = urllib.request.Request(sources[address], headers={"Range": "bytes=0-0"})
            with urllib.request.urlopen(request, timeout=ASKED):
                answering.add(address)

    # The timeout of a connection does not include the resolution of the name.
    threads = [Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    end = time.monotonic() + ASKED
    for thread in threads:
        thread.start()
    for address, thread in zip(addresses, threads, strict=True):
        thread.join(max(0.0, end - time.monotonic()))
        if address in answering:
            return address
    return None


def _check(path: Path, address: str, expected: Checksum) -> None:
    size = path.stat().st_size
    if expected.size is not None and size != expected.size:
        _remove(path)
        raise InputError(
            f"{address} is not the expected file: it has {size} bytes, not {expected.size}; {REMEDY}"
        )
    for title, digest, algorithm, length in (
        ("SHA-256", expected.sha256, "sha256", -1),
        ("MD5", expected.md5, "md5", -1),
        ("MD5 of the first MiB", expected.first_md5, "md5", BLOCK),
    ):
        if digest is None:
            continue
        with open(path, "rb") as file:
            if length < 0:
                received = hashlib.file_digest(file, algorithm).hexdigest()
            else:
                received = hashlib.new(algorithm, file.read(length), usedforsecurity=False).hexdigest()
        if not received.startswith(digest):  # Names of torch.hub have the first digits.
            _remove(path)
            raise InputError(
                f"{address} is not the expected file: its {size} bytes have the {title} {received}, "
                f"not {digest}; {REMEDY}"
            )


def mirrored(address: str) -> str:
    """Return the address from which a file is downloaded, that of the mirror if there is one."""
    mirror = os.environ.get("AUTOML_MIRROR")
    if mirror and "@" in urlsplit(mirror).netloc:
        raise InputError(
            f"AUTOML_MIRROR={redact(mirror)} must not contain a user or password; they are not sent"
        )
    return f"{mirror.rstrip('/')}/{address.rpartition('/')[2]}" if mirror else address


def _fetch(address: str, to: Path, *, checked: bool) -> None:
    """Download a file, or the rest of it that `to` lacks. `checked`: a hash will detect a changed file."""
    partial = _received(address, to, checked=checked)
    if partial and partial["size"] == to.stat().st_size:
        return
    offset = to.stat().st_size if partial else 0
    tell(f"downloading {address}")
    try:
        request = urllib.request.Request(address)
        if partial:
            request.add_header("Range", f"bytes={offset}-")
            if partial["version"]:
                request.add_header("If-Range", partial["version"])
        with urllib.request.urlopen(request, timeout=SILENCE) as response:
            if response.status == PARTIAL:
                tell(f"resuming after {format_size(offset)}")
            else:
                offset = 0
            _receive(response, address, to, offset, checked=checked)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a valid address
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        if isinstance(error, HTTPError) and error.code == BEYOND_END:
            _remove(to)  # The next call starts from the beginning.
        raise InputError(f"{address} cannot be downloaded ({error}); {REMEDY}") from error


def _receive(response: Any, address: str, to: Path, offset: int, *, checked: bool) -> None:
    """Write a response behind the first `offset` bytes of `to`."""
    length = response.length or 0
    # Without a version, the file on the server may be another one at the next call.
    version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
    about = {"address": address, "size": offset + length, "version": version}
    allowed = shutil.disk_usage(to.parent).free * MAX_FRACTION_OF_DISK
    _about(to).write_text(json.dumps(about))
    with open(to, "ab" if offset else "wb") as file, progress("MiB received", length // BLOCK) as advance:
        received = 0
        while block := response.read(BLOCK):
            received += len(block)
            if received > allowed:
                _remove(to)
                raise InputError(
                    f"{address} is larger than the space that may be used of the disk. Free disk space, or "
                    f"set AUTOML_CACHE to another folder"
                )
            file.write(block)
            advance(len(block) // BLOCK)
    if received < length:
        if not (version or checked):
            _remove(to)
        raise InputError(f"{address} was not received completely ({received} of {length} bytes); {REMEDY}")


def _received(address: str, to: Path, *, checked: bool) -> dict[str, Any] | None:
    """Return the record of an earlier, incomplete download; None if it cannot be resumed."""
    try:
        about: dict[str, Any] = json.loads(_about(to).read_text())
        known = about["address"] == address and (about["version"] or checked) and about["size"] > 0
        return about if known and to.stat().st_size <= about["size"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _about(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _remove(path: Path) -> None:
    for file in (path, _about(path)):
        file.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """A dataset that can be downloaded.

    Attributes:
        key: its name in the cache, under which a search without `--data` looks for it.
        space: a search space for it.
        downloads_itself: whether the space downloads it by itself, so that `--data` can be omitted.
        inside: a pattern of the folder with the data in the unpacked files.
        license, source: as far as they are known.
    """

    name: str
    about: str
    files: Sequence[Remote]
    key: str
    space: str
    license: str
    source: str
    downloads_itself: bool = False
    inside: str = ""

    @property
    def size(self) -> int:
        """The approximate size of all files in bytes; 0 if unknown."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0


def read_datasets(module: str) -> Sequence[PublishedDataset]:
    """Read `datasets.toml` beside a module. Its table `shared` has the defaults of its datasets."""
    content = tomllib.loads(Path(module).with_name("datasets.toml").read_text(encoding="utf-8"))
    shared, datasets = content.get("shared", {}), content["datasets"]
    return [from_json(PublishedDataset, {**shared, **dataset}, dataset["name"]) for dataset in datasets]


@cache
def published_datasets() -> Mapping[str, PublishedDataset]:
    """Return the datasets of all tasks by name."""
    return contributed("published")


def download_published(name: str) -> tuple[PublishedDataset, Path]:
    """Download a published dataset into the cache, once, and return it with its folder, or InputError."""
    known = published_datasets()
    if name not in known:
        raise InputError(f"{unknown('published dataset', name, known)} `automl data --list` describes them.")
    chosen = known[name]
    folder = fetch_files(chosen.key, chosen.files)
    inside = next(folder.glob(chosen.inside), None) if chosen.inside else None
    return chosen, inside or folder


def list_published() -> Iterator[str]:
    """Yield lines with the size, license and source of each dataset."""
    for dataset in published_datasets().values():
        size = format_size(dataset.size) if dataset.size else "-"
        yield f"{dataset.name:24}{size:>10}  {dataset.about}"
        is_checked = all(file.checksum.is_whole for file in dataset.files)
        note = "" if is_checked else "; not all files have a published hash"
        yield f"{'':36}{dataset.license}; {dataset.source}{note}"
