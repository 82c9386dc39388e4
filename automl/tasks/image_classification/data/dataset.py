"""The sources of images, and a split for the training loop.

A split is decoded once into an Arrow file that every process maps into its memory.
The name of the file is a hash of the images' names, content, labels, classes and side. A changed dataset gets
another file, and trials, processes and users with the same data use one. Columns: image (fixed-size binary,
side x side x 3 bytes), label (int32), aspect (float32), name (string), content (SHA-256 of the original file,
32 bytes) and changes (strings, see `Picture.changes`). Labels and numbers also have values (float64, one for
each output), and the label is the stratum. The metadata holds the target and the names of its outputs, the
side, the digest and why images were skipped. Where the decoded images would take more than half of the free
disk, the column image has the original files (binary), which are decoded whenever they are read.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from automl.base.atomic import free_bytes
from automl.base.errors import InputError, unknown
from automl.base.terminal import tell
from automl.base.units import format_size, pluralize
from automl.data import shared
from automl.data.archive import SUFFIXES, extract_cached, is_archive
from automl.data.arrow import PIXELS, cached_path, map_in_threads, write_rows
from automl.data.digits import read_digits
from automl.data.download import fetch_files, read_datasets
from automl.data.files import SIZE, hash_all, hash_contents
from automl.data.pictures import cache_side, decode
from automl.data.records import ImageRecords, Item, Listing
from automl.data.remote import existing_copy
from automl.data.splits import SPLITS, hash_names, select_subset
from automl.data.tally import Tally
from automl.storage.cache_folder import cache_root
from automl.tasks.image_classification.data.folders import read_image_folder
from automl.tasks.image_classification.data.lookup import SHAPES, draw_lookups
from automl.tasks.image_classification.data.parquet import unpack_images
from automl.tasks.image_classification.targets import TARGETS, ImageClasses

# Names of the classes of each archive by their folders.
READABLE = tomllib.loads(Path(__file__).with_name("readable.toml").read_text())
LEAST_CROP = 0.35  # smallest fraction of a photograph's area that a random crop keeps


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A dataset that `source` can name.

    Attributes:
        flip: whether an image's mirror image still shows its class.
        least_crop: the smallest fraction of an image's area that a random crop keeps.
        archive: the name of the archive to download, without the suffix for the size; None if there is none.
        readable: class names for names of folders.
    """

    flip: bool = True
    least_crop: float = LEAST_CROP
    archive: str | None = None
    readable: Mapping[str, str] = field(default_factory=dict)


def _list_digits() -> Listing[Item]:
    images, labels = read_digits()
    pixels = list((images * (255 / 16)).round().astype(np.uint8))
    return Listing(classes=tuple(map(str, range(10))), splits={"train": _items("digit", pixels, labels)})


def _list_lookups() -> Listing[Item]:
    splits = {split: _items(f"{split}/", *drawn) for split, drawn in draw_lookups().items()}
    return Listing(classes=tuple(SHAPES), splits=splits)


def _items(name: str, images: Sequence[np.ndarray], labels: np.ndarray) -> list[Item]:
    columns = zip(range(len(images)), images, labels.tolist(), hash_contents(images), strict=True)
    return [Item(f"{name}{i}", image, label, content) for i, image, label, content in columns]


BUNDLED: Mapping[str, Callable[[], Listing[Item]]] = {"digits": _list_digits, "lookup": _list_lookups}
SOURCES: Mapping[str, ImageSource] = {
    "digits": ImageSource(flip=False, least_crop=0.7),  # A mirrored digit is another digit or none.
    "lookup": ImageSource(flip=False, least_crop=1.0),  # Each cell counts.
    "nette": ImageSource(archive="imagenette2", readable=READABLE["imagenette"]),
    "woof": ImageSource(archive="imagewoof2", readable=READABLE["imagewoof"]),
    "nette1": ImageSource(archive="imagenette", readable=READABLE["imagenette"]),
    "woof1": ImageSource(archive="imagewoof", readable=READABLE["imagewoof"]),
    "folder": ImageSource(),
}


def list_images(source: str, path: str | Path | None, size: int) -> Listing[Item]:
    """List the images of a source with their hashes for training at `size` pixels, without decoding them.

    `path` is a folder (see `folders`) or an archive of one. Without a path, `nette`, `woof`, `nette1` and
    `woof1` are downloaded. Sizes up to 128 use the archive of 160 pixels, sizes up to 224 that of 320 pixels,
    and larger ones the full archive.

    Raises:
        InputError: The source is unknown, the path is missing or not allowed, a download failed, the folder
            or archive is not a dataset, or a file cannot be read.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    known = SOURCES[source]
    if source in BUNDLED:
        if path is not None:
            raise InputError(f"{source} comes with its library and takes no path, not {path}; drop --data")
        return BUNDLED[source]()
    if path is not None:
        if not (folder := existing_copy(path)).is_dir():
            if not is_archive(folder):
                suffixes = ", ".join(SUFFIXES)
                raise InputError(f"{folder} is neither a folder nor an archive; choose from {suffixes}")
            folder = extract_cached(folder)
        return read_image_folder(unpack_images(folder), known.readable)
    archive = get_archive_name(source, path, size)
    if archive is None:
        raise InputError(f"{source} needs the path of a folder or archive; pass --data PATH")
    dataset = next(dataset for dataset in DATASETS if dataset.key == archive)
    return replace(read_image_folder(fetch_files(archive, dataset.files), known.readable), archive=archive)


def get_archive_name(source: str, path: str | Path | None, size: int) -> str | None:
    """Return the name of the archive of photographs of this size; None if images come from elsewhere."""
    name = SOURCES[source].archive
    if path is not None or name is None:
        return None
    return name + ("-160" if size <= 128 else "-320" if size <= 224 else "")


DATASETS = read_datasets(__file__)


FORMAT = 4  # Raise it when the format of the file or the result of `decode` changes.
MAX_SKIPPED = 0.01  # fraction of the images that may be damaged
FEW = 5  # images that may be damaged in any case, if they are at most a fifth of all
EXAMPLES = 5
UNDECODED = "that cannot be decoded"
MOST_OF_DISK = 0.5  # of what is free, for decoded images
ENCODED = b" encoded"  # end of the key of a cache with the images' files


class ImageCache(shared.ShardedFile):
    """An opened cache file of N rows. Pixels stay on the disk until a row is read.

    Attributes:
        target: what is learned of an image.
        labels: int32 `(N,)`.
        values: the value of each output, float64 `(N, outputs)`. Classes have none.
        aspect: float32 `(N,)`.
        contents: hashes of the originals, uint8 `(N, 32)`.
        encoded: whether the images are the original files.
        blocks: uint8 arrays `(rows, side, side, 3)`, unless they are.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.classes: tuple[str, ...] = tuple(self.about["classes"])
        self.side: int = self.about["side"]
        self.digest: str = self.about["digest"]
        self.skipped: tuple[str, ...] = tuple(self.about["skipped"])
        self.target = TARGETS[self.about.get("target", ImageClasses.kind)](names=self.classes)
        self.labels: np.ndarray = self.table["label"].to_numpy()
        self.values = np.empty((len(self.labels), 0))
        if "values" in self.table.column_names:
            values = self.table["values"].combine_chunks().flatten().to_numpy()
            self.values = values.reshape(len(self.labels), len(self.classes))
        self.aspect: np.ndarray = self.table["aspect"].to_numpy()
        self.contents = self.read_hashes("content")
        self.encoded: bool = self.about.get("encoded", False)
        if not shared.list_shards(self) and not self.encoded:
            _ = self.blocks  # raises ValueError for an incomplete file
        if not ((self.labels >= 0) & (self.labels < len(self.classes)) & (self.aspect > 0)).all():
            raise ValueError("a label or an aspect is out of range")

    @cached_property
    def blocks(self) -> list[np.ndarray]:
        """The pixels. The index of a file on the nodes of a cluster fetches them from the storage."""
        return shared.join_shards(self).read_blocks(PIXELS, self.side, self.side, 3)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first row of each block."""
        return np.cumsum([0, *(len(block) for block in self.blocks)])

    def read_file(self, row: int) -> bytes:
        """Return the original file of a row of an encoded cache."""
        return bytes(self.whole[PIXELS][row].as_py())

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy the images of these rows, decoded, to `out`, uint8 `(n, side, side, 3)`."""
        if self.encoded:

            def decode_row(i: int) -> None:
                out[i] = decode(BytesIO(self.read_file(int(rows[i]))), self.side)[0]

            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                list(pool.map(decode_row, range(len(rows))))  # raises their errors
            return
        block_of = np.searchsorted(self.starts, rows, side="right") - 1
        offsets = rows - self.starts[block_of]
        for i, (block, row) in enumerate(zip(block_of.tolist(), offsets.tolist(), strict=True)):
            out[i] = self.blocks[block][row]

    @property
    def tally(self) -> Tally:
        """Changes to the images, and images that were left out."""
        tally = self.count_changes()
        tally.leave_out(UNDECODED, self.skipped)
        return tally


def open_image_cache(
    items: Sequence[Item], classes: Sequence[str], side: int, name: str, target: str = ImageClasses.kind
) -> ImageCache:
    """Return the cache of `items` at `side` pixels. Builds it if it is missing or damaged.

    An image that cannot be decoded is left out, with a warning. `name` describes the images in messages.

    Raises InputError if more than 1 % and more than FEW images are damaged, and if the cache folder is full
    or not writable.
    """
    fields = (field for item in items for field in (item.name, f"{item.label}{item.shown}", item.content))
    digest = hash_all([*classes, *fields]).hex()
    about = {"target": target, "classes": list(classes), "side": side, "digest": digest}
    schema = pa.schema(
        {
            PIXELS: pa.binary(side * side * 3),
            "label": pa.int32(),
            "aspect": pa.float32(),
            "name": pa.string(),
            "content": pa.binary(SIZE),
            "changes": pa.list_(pa.string()),
        }
    )
    if target != ImageClasses.kind:
        schema = schema.append(pa.field("values", pa.list_(pa.float64(), len(classes))))
    key, row, needed = f"{digest} {side} {FORMAT}".encode(), side * side * 3, len(items) * side * side * 3
    if _keeps_files(items, key, needed, name):
        key += ENCODED
        about, schema = {**about, "encoded": True}, schema.set(0, pa.field(PIXELS, pa.binary()))
        needed = sum(item.image.stat().st_size for item in items if isinstance(item.image, Path))
    write, title = partial(_write_images, schema, about, name), f"{name} images"
    cache = shared.open_written(ImageCache, key, items, write, row=row, title=title, needed=needed)
    _check_skipped(cache.about["skipped"], len(items), name)
    return cache


def _keeps_files(items: Sequence[Item], key: bytes, needed: int, name: str) -> bool:
    """Return whether the cache of a key has the images' files, as decoded images would fill the disk."""
    if _exists(key) or not all(isinstance(item.image, Path) for item in items):
        return False
    free, exists = free_bytes(cache_root()), _exists(key + ENCODED)
    if not exists and needed > MOST_OF_DISK * free:
        tell(
            f"{len(items):,} {name} images are kept as files, which each trial decodes: they would take "
            f"{format_size(needed)} of the {format_size(free)} that are free in {cache_root()}. To decode "
            f"them once, set AUTOML_CACHE to a folder on a larger disk"
        )
    return exists or needed > MOST_OF_DISK * free


def _exists(key: bytes) -> bool:
    """Return whether this machine has the cache file of a key, or its index."""
    path = cached_path(key)
    return any(map(ImageCache.is_sound, (path, path.with_suffix(shared.INDEX))))


def _write_images(
    schema: pa.Schema,
    about: Mapping[str, Any],
    name: str,
    path: Path,
    items: Sequence[Item],
    threads: int | None = None,
) -> str:
    """Decode images into a file. Return a phrase that says so."""
    about = {**about, "skipped": (skipped := dict[str, str]())}
    make_row = partial(_make_row, side=about["side"], encoded="encoded" in about)
    decoded = map_in_threads(f"decoding {name} images", items, make_row, threads=threads)

    def rows() -> Iterator[Mapping[str, Any]]:
        for item, row in zip(items, decoded, strict=True):
            if not isinstance(row, str):
                yield row
                continue
            skipped[item.name] = row
            if threads is None:  # A shard may have many.
                _check_skipped(skipped, len(items), name)

    write_rows(path, schema, rows(), about)
    if skipped:
        tell(f"warning: left out {_list_skipped(skipped)}")
    return f"decoded {pluralize(len(items) - len(skipped), f'{name} images')}"


def _check_skipped(skipped: Mapping[str, str], count: int, name: str) -> None:
    """Raise InputError if too many of `count` images cannot be decoded."""
    allowed = int(max(MAX_SKIPPED * count, min(FEW, count / 5)))
    if len(skipped) > allowed:
        raise InputError(
            f"at most {allowed} of the {name} images may be damaged; there are {_list_skipped(skipped)}. "
            f"Repair or remove them"
        )


def _make_row(item: Item, side: int, encoded: bool) -> dict[str, Any] | str:
    """Return the row of an image, decoded or as its file, or the error of decoding it as text."""
    changes, image = list[str](), item.image
    try:
        pixels, aspect = decode(image, side, changes)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises nearly any error for a damaged file.
        text = f"{type(error).__name__}: {error}"
        return text.replace(f" {image!r}", "").replace(f" {str(image)!r}", "")
    return {
        PIXELS: pixels.tobytes() if not encoded or isinstance(image, np.ndarray) else image.read_bytes(),
        "label": item.label,
        "aspect": aspect,
        "name": item.name,
        "content": item.content,
        "changes": changes,
        **({"values": item.values} if item.values else {}),
    }


def _list_skipped(skipped: Mapping[str, str]) -> str:
    examples = "; ".join(f"{name} ({why})" for name, why in list(skipped.items())[:EXAMPLES])
    dots = " ..." if len(skipped) > EXAMPLES else ""
    return f"{pluralize(len(skipped), 'images that cannot be decoded')}: {examples}{dots}"


class Images:
    """N images of a cache, in an order of their own.

    It can be pickled: only the row numbers are sent.

    Attributes:
        target: what is learned of an image.
        labels: int64 `(N,)`.
        values: the value of each output, float64 `(N, outputs)`. Classes have none.
        aspect: width / height of the originals, float32 `(N,)`.
        classes: the names of the classes.
        side: the side of the cached images in pixels.
        listed: the tally of the listing of all splits.
    """

    def __init__(
        self, cache: ImageCache, rows: np.ndarray | None = None, listed: Tally | None = None
    ) -> None:
        self.file = cache
        self.listed = Tally() if listed is None else listed
        self._rows = np.arange(len(cache.labels)) if rows is None else rows
        self.labels: Tensor = torch.from_numpy(cache.labels[self._rows].astype(np.int64))
        self.values: Tensor = torch.from_numpy(cache.values[self._rows])
        self.aspect: Tensor = torch.from_numpy(cache.aspect[self._rows])
        self.target = cache.target
        self.classes = cache.classes
        self.side = cache.side

    def __len__(self) -> int:
        return len(self._rows)

    def captions(self, indices: Sequence[int]) -> list[str]:
        """Return the class, labels or number of images."""
        return [self.target.caption(int(self.labels[i]), self.values[i].tolist()) for i in indices]

    def names(self) -> list[str]:
        """Return the names of the N images: paths relative to the dataset's folder."""
        names = self.file.names
        return [names[row] for row in self._rows]

    def gather(self, indices: Tensor) -> Tensor:
        """Return copies of the images at `indices` `(n,)`, from -N to N-1, uint8 `(n, side, side, 3)`."""
        rows = self._rows[indices.cpu().numpy()]
        out = np.empty((len(rows), self.side, self.side, 3), np.uint8)
        self.file.read(rows, out)
        return torch.from_numpy(out)


def open_split(
    source: str,
    split: str,
    *,
    path: str | Path | None = None,
    size: int,
    side: int | None = None,
    subset: float = 1.0,
) -> Images:
    """Open one split of a source for training at `size` pixels. Decodes it to its cache if needed.

    The images of a class are ranked by a hash of their content (`automl.data.splits`). The photographs of a
    downloaded archive are ranked by their names, which are the same at every size.

    Cached images have a side of `side` pixels, or else of `cache_side(size)`. `subset` is the approximate
    fraction of each class of "train" and "validation" that is used.

    Raises InputError if the source or split is unknown, the size is below 1, or `list_images` or
    `open_image_cache` fails.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    side = cache_side(size) if side is None else side
    if size < 1 or side < 1:
        raise InputError(f"size and side of an image must be at least 1; got size {size} and side {side}")
    listed, cache = Tally(), shared.find_split(ImageCache, shared_name(source, path, size, side), split)
    if cache is None:
        records = open_image_records(source, path=path, size=size)
        cache = open_image_cache(
            records.inputs(split), records.file.classes, side, f"{source} {split}", records.file.target
        )
        listed = records.tally
    keys = cache.contents if get_archive_name(source, path, size) is None else hash_names(cache.names)
    rows = None if split == "test" else select_subset(cache.labels, keys, subset)
    return Images(cache, rows, listed)


def open_image_records(
    source: str, *, path: str | Path | None = None, size: int, subset: float = 1.0
) -> ImageRecords[Listing[Item]]:
    """List the images of a source and their splits, undecoded. Raises InputError if that is impossible."""
    listing = list_images(source, path, size)
    return ImageRecords(listing, subset, TARGETS[listing.target].stratum)


def shared_name(source: str, path: str | Path | None, size: int, side: int | None = None) -> str:
    """Return the name of the dataset in a search's storage, decoded for training at `size` pixels."""
    return f"{source} {path or ''} {size} {side or cache_side(size)}"
