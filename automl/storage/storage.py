"""Where searches are stored: a local folder, or one in an object store, by its address."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs

from attention import InputError, check_utf8
from automl.storage.addresses import SECRETS
from search.atomic import replacing

BLOCK = 16 << 20  # bytes that are copied at once
ATOMIC = ("s3", "gcs", "abfs")  # file systems where a file is there as a whole or not at all


@dataclass(frozen=True)
class Storage:
    """A folder by its address: a path, `file://`, `s3://`, `gs://` or whatever else `pyarrow.fs` knows.

    Options of the file system stand in the address (`?endpoint_override=host:port&scheme=http`), credentials
    in the environment, where each provider's tools look for them. A file that is being written is not there
    until it is whole. It can be sent to another process.

    Raises InputError for an address that is none, or holds credentials.
    """

    address: str

    def __post_init__(self) -> None:
        check_utf8("a folder's name", str(self.address))
        scheme, colon, _ = str(self.address).partition("://")  # of a Path, too
        if not colon:
            path = str(_home(self.address).resolve())
        elif scheme == "file":
            path = str(Path(unquote(urlsplit(self.address).path)).resolve())
        else:
            _check(self.address)
            parts = urlsplit(self.address)
            path = urlunsplit(parts._replace(path=parts.path.rstrip("/")))
        check_utf8("the whole path of a folder", path)  # of the current one, too
        object.__setattr__(self, "address", path)

    @property
    def local(self) -> Path | None:
        """The folder, where it is one of this machine."""
        return None if "://" in self.address else Path(self.address)

    def __truediv__(self, name: str) -> "Storage":
        """A folder in this one."""
        if self.local is not None:
            return Storage(str(self.local / name))
        parts = urlsplit(self.address)
        return Storage(urlunsplit(parts._replace(path=f"{parts.path}/{quote(name)}")))

    @property
    def parent(self) -> "Storage":
        """The folder that it is in."""
        if self.local is not None:
            return Storage(str(self.local.parent))
        parts = urlsplit(self.address)
        return Storage(urlunsplit(parts._replace(path=parts.path.rpartition("/")[0])))

    def __str__(self) -> str:
        return self.address

    @property
    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The file system and the path on it. Raises OSError when there is no way to it."""
        if self.local is not None:
            return pyarrow.fs.LocalFileSystem(), str(self.local)
        parts = urlsplit(self.address)
        files, root = _open(urlunsplit(parts._replace(path="/")))
        return files, root.rstrip("/") + unquote(parts.path)

    def _at(self, name: str) -> tuple[pyarrow.fs.FileSystem, str]:
        files, folder = self.filesystem
        return files, f"{folder}/{name}"

    # One file of it. All of these raise OSError, and FileNotFoundError where there is no such file.

    def open(self, name: str) -> BinaryIO:
        """A file to read and to seek in, as it is at one moment."""
        if self.local is not None:
            return open(self.local / name, "rb")
        files, path = self._at(name)
        while True:
            # A stream would be a request for each 256 KiB, with another file between two of them.
            with files.open_input_file(path) as file:
                content = file.read()
            if files.get_file_info(path).size == len(content):
                return io.BytesIO(content)

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file to write, which takes the name when the block has ended well."""
        if self.local is not None:
            target = self.local / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as new, open(new, "wb") as file:
                yield file
            return
        buffer = io.BytesIO()
        yield buffer
        files, path = self._at(name)
        if files.type_name in ATOMIC:
            _put(files, path, buffer)
        else:
            files.create_dir(path.rpartition("/")[0])
            above, _, last = path.rpartition("/")
            unfinished = f"{above}/.{last}.{os.getpid()}"
            _put(files, unfinished, buffer)
            files.move(unfinished, path)

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as file:
            file.write(content)

    def exists(self, name: str) -> bool:
        files, path = self._at(name)
        return bool(files.get_file_info(path).type == pyarrow.fs.FileType.File)

    def has_bucket(self) -> bool:
        """Return whether an object store has the bucket; True of paths that do not begin with one."""
        files, path = self._at("")
        bucket = path.partition("/")[0]
        return not bucket or files.get_file_info(bucket).type != pyarrow.fs.FileType.NotFound

    def has(self, name: str) -> bool:
        """Return whether anything has that name: a file, a folder, or what is neither."""
        files, path = self._at(name)
        return bool(files.get_file_info(path).type != pyarrow.fs.FileType.NotFound)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        files, path = self._at(name)
        found: int | None = files.get_file_info(path).size
        return found

    def changed(self, name: str) -> int:
        """When a file was last written, in nanoseconds of the store's clock."""
        files, path = self._at(name)
        return int(files.get_file_info(path).mtime_ns or 0)

    def remove(self, name: str) -> None:
        """Delete a file, and its folder where nothing else is in it."""
        if self.local is None:
            files, path = self._at(name)
            try:
                _without_retries(files).delete_file(path)
            except FileNotFoundError:
                raise
            except OSError:  # pyarrow then makes a mark for the folder, which not every store takes
                if self.exists(name):
                    files.delete_file(path)
        else:
            (self.local / name).unlink()
            with suppress(OSError):  # other files are there
                (self.local / name).parent.rmdir()

    def send(self, path: Path, name: str) -> None:
        """Copy the file `path` of this machine there."""
        if self.local is not None or self.filesystem[0].type_name not in ATOMIC:
            with self.writing(name) as target, open(path, "rb") as file:
                shutil.copyfileobj(file, target, BLOCK)
            return
        files, target_path = self._at(name)
        with open(path, "rb") as file, files.open_output_stream(target_path) as stream:
            shutil.copyfileobj(file, stream, BLOCK)  # in parts; it is too large for the memory

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file that does not change meanwhile to `path` on this machine.

        If it raises, `path` may hold the first part.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        files, source = self._at(name)
        with files.open_input_stream(source) as stream, open(path, "wb") as file:
            shutil.copyfileobj(stream, file, BLOCK)

    # All of it.

    def files(self) -> dict[str, str]:
        """The names of all files below it, each with a stamp that is another one when the content is."""
        files, folder = self.filesystem
        selector = pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=True)
        found = files.get_file_info(selector)
        return {
            info.path.removeprefix(folder).lstrip("/"): f"{info.size} {info.mtime_ns}"
            for info in found
            if info.type == pyarrow.fs.FileType.File
        }

    def total(self) -> int:
        """Bytes of all files below it."""
        files, folder = self.filesystem
        selector = pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=True)
        return sum(info.size or 0 for info in files.get_file_info(selector))

    def folders(self) -> list[str]:
        """The names of the folders in it."""
        files, folder = self.filesystem
        found = files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pyarrow.fs.FileType.Directory)

    def clear(self) -> None:
        """Delete it with everything in it."""
        for name in self.files():
            with suppress(FileNotFoundError):
                self.remove(name)
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
        else:
            files, folder = self.filesystem
            with suppress(OSError):  # folders are nothing in an object store but the marks that pyarrow makes
                files.delete_dir(folder)


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # an unknown home folder
        raise InputError(f"{path} is no folder ({error})") from error


def is_address(text: str) -> bool:
    """Whether it is an address rather than a path."""
    return "://" in text


def _check(address: str) -> None:
    parts = urlsplit(address)
    named = [key for key, _ in parse_qsl(parts.query) if any(secret in key.lower() for secret in SECRETS)]
    # Azure's addresses have container@account.
    user = parts.netloc.rpartition("@")[0]
    if named or ":" in user or (user and parts.scheme in ("s3", "gs")):
        raise InputError(
            f"an address {parts.scheme}://... may not hold credentials, which would be kept with the search; "
            f"put them where {parts.scheme}'s own tools look for them, such as AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY for s3, on every node"
        )
    if not parts.netloc:
        raise InputError(f"the address {address} names no bucket or host; write it like s3://bucket/searches")
    try:
        _open(urlunsplit(parts._replace(path="/")))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the address {address} cannot be used ({reason}); name a folder, or an address of a file system "
            f"that pyarrow has: file://, s3://, gs://, abfss:// or hdfs://"
        ) from error


@lru_cache(maxsize=8)
def _open(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of an address, and the bucket or whatever else its paths begin with."""
    files, path = pyarrow.fs.FileSystem.from_uri(root)
    return files, path


def _without_retries(files: pyarrow.fs.FileSystem) -> pyarrow.fs.FileSystem:
    """The same store, where what fails fails at once; pyarrow would try it again for six seconds."""
    if not isinstance(files, pyarrow.fs.S3FileSystem):
        return files
    _, (options,) = files.__reduce__()  # how it is pickled, too
    retry = pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1)
    return pyarrow.fs.S3FileSystem(**options, retry_strategy=retry)


def _put(files: Any, path: str, buffer: io.BytesIO) -> None:
    with files.open_output_stream(path) as stream:
        stream.write(buffer.getbuffer())
