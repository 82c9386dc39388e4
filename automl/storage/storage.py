"""A folder, local or in an object store, by its address."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from automl.base.atomic import replacing
from automl.base.errors import InputError, check_utf8, error_message
from automl.base.escape import SECRETS
from automl.base.lazy import later
from automl.base.loading import UNPACKED
from automl.storage.cache_folder import cache_root

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
else:  # a folder of this machine does not need it
    pa, fs = later("pyarrow"), later("pyarrow.fs")

ATTEMPTS = 36  # of a trial's request to S3, in ten minutes. pyarrow itself gives up after six seconds
BLOCK = 16 << 20  # block size of copies [bytes]
ATOMIC = ("s3", "gcs", "abfs")  # file systems where a file is visible only when it is complete


@dataclass(frozen=True)
class Storage:
    """Folder with an address: a path, `file://`, `s3://`, `gs://` or another scheme of `pyarrow.fs`.

    The address contains options of the file system (`?endpoint_override=host:port&scheme=http`). Credentials
    are in the environment, as the tools of each provider expect them. A file becomes visible when it is
    complete. The object can be pickled. A request to S3 that is not answered is repeated, in `attempts` or
    as pyarrow does.

    Raises:
        InputError: The address is invalid or contains credentials.
    """

    address: str
    attempts: int | None = field(default=None, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_utf8("a folder's name", str(self.address))
        scheme, colon, _ = str(self.address).partition("://")  # of a Path, too
        if not colon:
            try:
                path = str(Path(self.address).expanduser().resolve())
            except RuntimeError as error:  # an unknown home folder
                raise InputError(f"{self.address} is not a folder ({error})") from error
        elif scheme == "file":
            path = str(_path_of(self.address).resolve())
        else:
            _check(self.address)
            parts = urlsplit(self.address)
            path = urlunsplit(parts._replace(path=parts.path.rstrip("/")))
        check_utf8("the whole path of a folder", path)  # of the current one, too
        object.__setattr__(self, "address", path)

    @property
    def local(self) -> Path | None:
        """Path of the folder if it is on this machine, otherwise None."""
        return None if "://" in self.address else Path(self.address)

    def __truediv__(self, name: str) -> Storage:
        """Return a folder in this one."""
        if self.local is not None:
            return Storage(str(self.local / name))
        parts = urlsplit(self.address)
        return Storage(urlunsplit(parts._replace(path=f"{parts.path}/{quote(name)}")))

    @property
    def parent(self) -> Storage:
        """Parent folder."""
        if self.local is not None:
            return Storage(str(self.local.parent))
        parts = urlsplit(self.address)
        return Storage(urlunsplit(parts._replace(path=parts.path.rpartition("/")[0])))

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.local.name if self.local else unquote(urlsplit(self.address).path).rpartition("/")[2]

    def __str__(self) -> str:
        return self.address

    @property
    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """File system and path in it. Raise OSError if it is unreachable."""
        if self.local is not None:
            return fs.LocalFileSystem(), str(self.local)
        parts = urlsplit(self.address)
        files, root = _open(urlunsplit(parts._replace(path="/")), self.attempts)
        return files, root.rstrip("/") + unquote(parts.path)

    def _at(self, name: str) -> tuple[fs.FileSystem, str]:
        files, folder = self.filesystem
        return files, f"{folder}/{name}"

    def _info(self, name: str) -> fs.FileInfo:
        files, path = self._at(name)
        return files.get_file_info(path)

    # Single files. All methods raise OSError, and FileNotFoundError if the file does not exist.

    def open(self, name: str) -> BinaryIO:
        """Open a consistent copy of a file for reading and seeking."""
        if self.local is not None:
            return open(self.local / name, "rb")
        files, path = self._at(name)
        while True:
            # A stream would send a request for each 256 KiB, and the file may change between requests.
            with files.open_input_file(path) as file:
                content = file.read()
            if files.get_file_info(path).size == len(content):
                return io.BytesIO(content)

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing. It gets its name when the block ends without an error."""
        if self.local is not None:
            target = self.local / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as new, open(new, "wb") as file:
                yield file
            return
        cache_root().mkdir(parents=True, exist_ok=True)
        # What is larger than a block is a file meanwhile, so that an upload needs no memory for the whole.
        with SpooledTemporaryFile(BLOCK, dir=str(cache_root())) as file:
            yield cast(BinaryIO, file)
            file.seek(0)
            self._upload(cast(BinaryIO, file), name)

    def _upload(self, file: BinaryIO, name: str) -> None:
        """Copy an open file of this machine to a file that gets its name when it is complete."""
        files, path = self._at(name)
        unfinished = path
        if files.type_name not in ATOMIC:
            above, _, last = path.rpartition("/")
            files.create_dir(above)
            unfinished = f"{above}/.{last}.{os.getpid()}"
        with files.open_output_stream(unfinished) as stream:
            shutil.copyfileobj(file, stream, BLOCK)
        if unfinished != path:
            files.move(unfinished, path)

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as file:
            file.write(content)

    def exists(self, name: str) -> bool:
        if self.local is not None:
            return (self.local / name).is_file()
        return bool(self._info(name).type == fs.FileType.File)

    def has_bucket(self) -> bool:
        """Return True if the bucket of an object store exists, or the path has no bucket."""
        files, path = self._at("")
        bucket = path.partition("/")[0]
        return not bucket or files.get_file_info(bucket).type != fs.FileType.NotFound

    def has(self, name: str) -> bool:
        """Return True if anything has that name: a file, a folder or something else."""
        return bool(self._info(name).type != fs.FileType.NotFound)

    def size(self, name: str) -> int | None:
        """Return the size of a file [bytes], or None if it does not exist."""
        size: int | None = self._info(name).size
        return size

    def stamp(self, name: str) -> str:
        """Return a text that changes with the content of a file, or appears and disappears with it."""
        info = self._info(name)
        return f"{info.size} {info.mtime_ns}"

    def changed(self, name: str) -> int:
        """Return the time of the last change of a file by the store's clock [ns]."""
        return int(self._info(name).mtime_ns or 0)

    def remove(self, name: str) -> None:
        """Delete a file, and its folder if it becomes empty."""
        if self.local is None:
            files, path = self._at(name)
            try:
                _with_attempts(files, 1).delete_file(path)
            except FileNotFoundError:
                raise
            except OSError:  # pyarrow then writes a marker of the folder, which some stores reject
                if self.exists(name):
                    files.delete_file(path)
        else:
            (self.local / name).unlink()
            with suppress(OSError):  # the folder is not empty
                (self.local / name).parent.rmdir()

    def send(self, path: Path, name: str) -> None:
        """Copy the file `path` of this machine to `name`."""
        with open(path, "rb") as file:
            if self.local is None:
                self._upload(file, name)
                return
            with self.writing(name) as target:
                shutil.copyfileobj(file, target, BLOCK)

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to `path` on this machine. It must not change meanwhile.

        After an error, `path` may be incomplete.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        files, source = self._at(name)
        with files.open_input_stream(source) as stream, open(path, "wb") as file:
            shutil.copyfileobj(stream, file, BLOCK)

    # The whole folder.

    def _list(self, *, recursive: bool) -> tuple[str, list[fs.FileInfo]]:
        files, folder = self.filesystem
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        return folder, files.get_file_info(selector)

    def files(self) -> dict[str, str]:
        """Return the names of all files below the folder, each with a stamp that changes with its content."""
        folder, infos = self._list(recursive=True)
        return {
            info.path.removeprefix(folder).lstrip("/"): f"{info.size} {info.mtime_ns}"
            for info in infos
            if info.type == fs.FileType.File
        }

    def total(self) -> int:
        """Return the size of all files below the folder [bytes]."""
        if self.local is not None:
            return sum(path.stat().st_size for path in self.local.rglob("*") if path.is_file())
        return sum(info.size or 0 for info in self._list(recursive=True)[1])

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        _, infos = self._list(recursive=False)
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def clear(self) -> None:
        """Delete the folder with all its content."""
        for name in self.files():
            with suppress(FileNotFoundError):
                self.remove(name)
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
        else:
            files, folder = self.filesystem
            with suppress(OSError):  # in an object store, folders are only markers that pyarrow writes
                files.delete_dir(folder)


def is_address(text: str) -> bool:
    """Return True if `text` is an address rather than a path."""
    return "://" in text


def _check(address: str) -> None:
    parts = urlsplit(address)
    named = [key for key, _ in parse_qsl(parts.query) if any(secret in key.lower() for secret in SECRETS)]
    # Azure's addresses contain container@account.
    user = parts.netloc.rpartition("@")[0]
    if named or ":" in user or (user and parts.scheme in ("s3", "gs")):
        raise InputError(
            f"an address {parts.scheme}://... must not contain credentials, since it is stored with the "
            f"search. Set them on every node as the tools of {parts.scheme} expect them, such as "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3"
        )
    if not parts.netloc:
        raise InputError(f"the address {address} has no bucket or host; write it as s3://bucket/searches")
    try:
        _open(urlunsplit(parts._replace(path="/")))
    except (pa.ArrowException, OSError) as error:
        reason = error_message(error)
        raise InputError(
            f"the address {address} cannot be used ({reason}); give a folder, or an address of pyarrow: "
            f"file://, s3://, gs://, abfss:// or hdfs://"
        ) from error


@lru_cache(maxsize=8)
def _open(root: str, attempts: int | None = None) -> tuple[fs.FileSystem, str]:
    """Return the file system of an address, and the prefix of its paths, such as the bucket."""
    files, path = fs.FileSystem.from_uri(root)
    return files if attempts is None else _with_attempts(files, attempts), path


def _with_attempts(files: fs.FileSystem, attempts: int) -> fs.FileSystem:
    """Return a file system of S3 that sends each request so often. Its pauses grow to 20 seconds."""
    if not isinstance(files, fs.S3FileSystem):
        return files
    _, (options,) = files.__reduce__()  # as pickle does
    retry = fs.AwsStandardS3RetryStrategy(max_attempts=attempts)
    return fs.S3FileSystem(**options, retry_strategy=retry)


STORE = "sqlite:///mlflow.db"  # MLflow's own default


def check_not_temporary(storage: str) -> None:
    """Raise InputError if a search in `storage`, or MLflow's store, would be deleted with the job.

    Ray unpacks `--working-dir` of a job into a temporary folder, and deletes it some time after the job.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or STORE
    file = local_path(uri)
    folder = Storage(storage).local
    lost = [f"--storage {storage}"] * (folder is not None and _unpacked(folder))
    lost += [f"MLflow's {uri}"] * (file is not None and _unpacked(file))
    if lost:
        raise InputError(
            f"{' and '.join(lost)} would be deleted with this job, since it is in the temporary folder of "
            f"--working-dir. Choose permanent locations that every node can access: --storage "
            f"/shared/searches or s3://bucket/searches, and before the command 'env "
            f"MLFLOW_TRACKING_URI=http://HOST:5000' or sqlite:////shared/mlflow.db"
        )


def local_path(uri: str) -> Path | None:
    """Return the file or folder of a tracking URI, or None if it names a server."""
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite":  # MLflow quotes the path of its default; SQLAlchemy accepts both
        return Path(unquote(uri.partition("?")[0].removeprefix("sqlite:///")))
    if scheme == "file":
        return _path_of(uri)
    return Path(uri) if not scheme and uri != "databricks" else None


def _path_of(uri: str) -> Path:
    """Return the path in an address `file:`. `?` and `#` belong to it, although they should be quoted."""
    return Path(unquote(re.sub("^//[^/]*", "", uri.removeprefix("file:"))))  # without a host


def _unpacked(path: Path) -> bool:
    return UNPACKED in path.resolve().parts
