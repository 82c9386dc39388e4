"""Cache files in a search's storage: one process writes them, and every node fetches those it lacks.

`use` passes the list of shared files to a process. The process reads and caches all other data itself.

On a cluster, the driver does not write a large file. Tasks on the nodes write it in shards, straight into the
storage (`write_on_nodes`). The driver has its index alone: the columns without pixels, and the list of the
shards. Before its first trial, each node joins the shards to the file that a single machine would have
written.
"""

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa

from automl.base.errors import InputError
from automl.base.lazy import resolve
from automl.base.serialise import from_json, parse_json, read_file, write_json
from automl.base.terminal import progress
from automl.base.units import format_size
from automl.data.arrow import SHARDS, WHOLE, ArrowFile, cached_path, map_in_threads, write_tables
from automl.data.files import SIZE, hash_file, load_files
from automl.data.splits import RULE
from automl.storage.cache_folder import cache_root, once
from automl.storage.storage import ATTEMPTS, Storage
from cluster.resources import joins_cluster

Input = TypeVar("Input")
File = TypeVar("File", bound="ShardedFile")
SHARED_FOLDER = ".data"  # in the storage, for all searches there
SHARED_FILE = "data.json"  # in a search's folder
INDEX = ".index.arrow"  # suffix of the driver's part of a file in shards
SHARD_BYTES = 32 << 20  # size of a shard in the storage
LEAST = 64  # shards of a split. The driver decodes fewer before processes on the nodes have started
HASH, BYTES = pa.binary(SIZE), re.compile(r"((large|fixed_size)_)?binary")  # types of columns
AT_ONCE = 4  # shards that are fetched at once
TRIES = 3  # fetches of a file that arrives damaged


@dataclass(frozen=True, kw_only=True)
class SharedFile:
    """A file in the storage, such as that of a split: its name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SharedData:
    """The cache files in a storage.

    Attributes:
        sets: the file of each split by the name of the dataset, which includes the size of its images. One
            file may hold several splits.
    """

    address: str
    sets: Mapping[str, Mapping[str, SharedFile]] = field(default_factory=dict)


class ShardedFile(ArrowFile):
    """An opened file, or the index of one in shards, which lacks the columns of bytes that are no hashes."""

    @cached_property
    def whole(self) -> pa.Table:
        """All columns. Those that an index lacks are fetched from the storage."""
        return join_shards(self).table


_shared_data: SharedData | None = None
_storage: Storage | None = None  # of the search that this process drives; None if it trains


def use(shared: Mapping[str, Any] | None) -> None:
    """Let this process, which trains, look into a storage first; None for no storage."""
    global _shared_data, _storage
    _shared_data = None if shared is None else from_json(SharedData, shared, "shared data")
    _storage = None


def use_saved(folder: Path | None, storage: Storage) -> None:
    """Let this process drive a search in `storage`, and use the files that it has there.

    `folder` is the search's, or None for a new search.
    """
    global _storage
    sets = {} if folder is None else _read_saved(folder)
    use({"address": str(storage / SHARED_FOLDER), "sets": sets} if sets else None)
    _storage = storage


def _read_saved(folder: Path) -> dict[str, Any]:
    """Return the files of the search in `folder`. Raises InputError if their list is damaged."""
    if not (folder / SHARED_FILE).exists():
        return {}
    try:
        sets: dict[str, Any] = parse_json(read_file(folder / SHARED_FILE))
        from_json(SharedData, {"address": "", "sets": sets}, "content")
    except InputError as error:
        raise InputError(
            f"{folder / SHARED_FILE} is damaged ({error}). Delete it, and the data are written again"
        ) from error
    return sets


def is_shared(name: str | None, splits: Iterable[str]) -> bool:
    """Return whether a search's storage has these splits of a dataset, where they cannot change."""
    known = None if _shared_data is None or name is None else _shared_data.sets.get(_key(name))
    return known is not None and all(split in known for split in splits)


def find_split(kind: type[File], name: str, split: str = "train") -> File | None:
    """Return the file with a split of a dataset if it is shared. Fetches it when a node first needs it.

    The driver gets the index of a file in shards, or None if the storage lacks a shard.

    Raises InputError if the fetched file differs from the one that was written.
    """
    if _shared_data is None or not is_shared(name, [split]):
        return None
    file = _shared_data.sets[_key(name)][split]
    fetch = partial(_fetch, _shards_folder(), file)
    opened = kind(once(cache_root() / file.name, fetch, kind.is_sound, needed=file.size))
    if _storage is None:
        return join_shards(opened)
    return opened if _has_shards(opened) else None


def _fetch(storage: Storage, file: SharedFile, path: Path) -> None:
    """Copy a file of the storage to `path`. Copy it again if it arrives damaged."""
    for _ in range(TRIES):
        try:
            storage.fetch(file.name, path)
        except OSError as error:
            if error.errno is not None and not isinstance(error, FileNotFoundError):
                raise  # an error of this machine's disk
            raise InputError(f"the shared data {storage}/{file.name} cannot be fetched ({error})") from error
        size = path.stat().st_size
        if size == file.size and _hash(path) == file.sha256:
            return
    raise InputError(
        f"the shared data {storage}/{file.name} are damaged ({size} bytes of {file.size}). Delete the file, "
        f"and resume the search, which writes it again"
    )


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shards_folder() -> Storage:
    """Return the folder of the shared files in the storage."""
    if _storage is not None:
        return Storage(str(_storage / SHARED_FOLDER), attempts=ATTEMPTS)
    if _shared_data is None:
        raise InputError("the data are in the storage of a search; pass the search's name and --storage")
    return Storage(_shared_data.address, attempts=ATTEMPTS)


def list_shards(file: ArrowFile) -> list[SharedFile]:
    """Return the shards that a file is the index of. A whole file has none."""
    return [from_json(SharedFile, shard, "shard") for shard in file.about.get(SHARDS, ())]


def _has_shards(file: ArrowFile) -> bool:
    """Return whether the storage has the shards of an index, by their sizes."""
    shards = list_shards(file)
    stored = _shards_folder().files() if shards else {}
    return all(stored.get(shard.name, "").partition(" ")[0] == str(shard.size) for shard in shards)


def measure_fetch(files: Iterable[Path]) -> tuple[int, float | None]:
    """Return the size of cache files with their shards [bytes], and the time of fetching them [s].

    The time is estimated from the first shard. None if there are no shards.
    """
    paths = {*files}
    shards = [shard for path in paths for shard in list_shards(ArrowFile(path))]
    if not shards:
        return sum(path.stat().st_size for path in paths), None
    size = sum(shard.size for shard in shards)
    with TemporaryDirectory() as folder:
        begin = time.monotonic()
        _fetch(_shards_folder(), shards[0], Path(folder, "shard"))
        return size, (time.monotonic() - begin) * size / shards[0].size


def join_shards(file: File) -> File:
    """Return the whole file of an index. Fetches its shards, once a node. A whole file is returned as it is.

    Raises InputError if a shard is missing or stays damaged, or the disk is full.
    """
    shards = list_shards(file)
    if not shards:
        return file
    whole, size = cache_root() / file.about[WHOLE], sum(shard.size for shard in shards)

    def join(path: Path) -> None:
        storage, begin = _shards_folder(), time.monotonic()

        def fetch(number: int) -> pa.Table:
            # By its name, it is a temporary file of `whole`, and is deleted if this process is killed.
            shard = path.with_name(f"{path.stem}{number:06}.tmp")
            _fetch(storage, shards[number], shard)
            table = ArrowFile(shard).table
            shard.unlink()  # It stays mapped.
            return table

        about = {key: value for key, value in file.about.items() if key not in (SHARDS, WHOLE)}
        title = "fetching shards of the data"
        write_tables(path, map_in_threads(title, range(len(shards)), fetch, threads=AT_ONCE), about)
        seconds = time.monotonic() - begin
        print(f"fetched {format_size(size)} into {whole} in {seconds:.1f} s", file=sys.stderr, flush=True)

    return type(file)(once(whole, join, type(file).is_sound, needed=size))


def open_written(
    kind: type[File],
    key: bytes,
    inputs: Sequence[Input],
    write: Callable[..., str],
    *,
    row: int,
    title: str,
    needed: float | None = None,
    check: Callable[[Sequence[Input]], object] = len,
) -> File:
    """Open the cache file of this key, as `ArrowFile.open_cached`.

    If it is missing or damaged, this process writes it. But where it drives a search on other machines, their
    nodes write a large file, and the index of that is returned. Shards that the storage has are kept.

    `write(path, inputs, threads)` writes inputs, with metadata of which only dictionaries differ by the
    inputs. `row` is the size of a row [bytes], and `needed` that of the file if rows are of another size.
    `check` raises InputError for inputs that cannot be read, before hours of decoding.
    """
    whole, rows = cached_path(key), max(1, SHARD_BYTES // row)
    index, chunks = whole.with_suffix(INDEX), [inputs[i : i + rows] for i in range(0, len(inputs), rows)]

    def load(i: int) -> tuple[Any, ...]:
        check(chunks[i])
        return str(_shards_folder()), f"{whole.stem}-{i:05}.arrow", write, load_files(chunks[i])

    def build(path: Path) -> None:
        begin, listed, about = time.monotonic(), list[dict[str, Any]](), dict[str, Any]()
        results = map_on_nodes(write_shard, map(load, range(len(chunks))))

        def read(chunk: Sequence[Input]) -> pa.Table:
            file, table, facts = next(results)
            listed.append(asdict(file))
            for key, fact in facts.items():
                about[key] = {**about.get(key, {}), **fact} if isinstance(fact, dict) else fact
            advance(len(chunk))
            return table

        with progress(f"decoding {title}", len(inputs)) as advance:
            about |= {SHARDS: listed, WHOLE: whole.name}
            write_tables(path, map(read, chunks), about)
        size, seconds = sum(shard["size"] for shard in listed), time.monotonic() - begin
        shards = f"{len(listed)} shards in {_shards_folder()}, {format_size(size)}, in {seconds:.1f} s"
        print(f"decoded {len(inputs)} {title} on the nodes into {shards}", file=sys.stderr, flush=True)

    def is_complete(path: Path) -> bool:
        return kind.is_sound(path) and _has_shards(kind(path))

    def check_and_write(path: Path) -> str:
        check(inputs)
        return write(path, inputs)

    if _storage is not None and joins_cluster() and len(inputs) >= LEAST * rows and not kind.is_sound(whole):
        if is_complete(index):
            return kind(index)
        with resolve("automl.trials.nodes:open_nodes")() as map_on_nodes:
            if map_on_nodes:
                return kind(once(index, build, is_complete))
    return kind.open_cached(key, check_and_write, needed=row * len(inputs) if needed is None else needed)


def write_shard(
    address: str, name: str, write: Callable[..., str], inputs: Sequence[Input]
) -> tuple[SharedFile, pa.Table, dict[str, Any]]:
    """Write a shard into the storage unless it is there. Return it, its other columns and its metadata."""
    storage = Storage(address, attempts=ATTEMPTS)
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        if storage.exists(name):
            storage.fetch(name, path)
        if not ArrowFile.is_sound(path):
            write(path, inputs, threads=1)  # A node writes one for each core.
            storage.send(path, name)
        file = SharedFile(name=name, size=path.stat().st_size, sha256=_hash(path))
        shard = ArrowFile(path)
        columns = [c.name for c in shard.table.schema if c.type == HASH or not BYTES.match(str(c.type))]
        return file, shard.table.select(columns), shard.about


def publish(storage: Storage, name: str, files: Mapping[str, Path], folder: Path | None) -> dict[str, Any]:
    """Copy the cache files of a dataset's splits into the storage, and list them in the search's folder.

    `files` has the file of each split; one file may hold several. A dry run has no `folder`. Returns the
    argument of `use`. Raises InputError if writing to the storage failed.
    """
    target = storage / SHARED_FOLDER
    described = {}
    for split, path in files.items():
        size = path.stat().st_size
        described[split] = {"name": path.name, "size": size, "sha256": hash_file(path)}
        try:
            if target.size(path.name) != size:
                target.send(path, path.name)
        except OSError as error:
            raise InputError(f"the data could not be written to --storage {storage} ({error})") from error
    saved = {} if folder is None else _read_saved(folder)
    sets = {**saved, _key(name): {**saved.get(_key(name), {}), **described}}
    if folder is not None:
        write_json(folder / SHARED_FILE, sets)
    return {"address": str(target), "sets": sets}


def _key(name: str) -> str:
    """Return the name of a dataset with the split rule, so that files of another rule are not used."""
    return f"{name}, split by rule {RULE}"
