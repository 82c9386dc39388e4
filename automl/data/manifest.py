"""Which image is in which split, with the hash of its content: whether data are the same, and how not.

It is kept as an Arrow file, compressed, at about 24 bytes an image (31 MB for the 1.28 million of
ImageNet), of which 16 are the hash.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather

MANIFEST_FILE = "images.arrow"  # in a search's folder
HASH = 16  # bytes of each content's hash: what differs does so in these, too
EXAMPLES = 3  # named of each kind of difference
ARCHIVE = b"archive"

COLUMNS = {"split": pa.string(), "name": pa.string(), "class": pa.string(), "content": pa.binary(HASH)}
Row = tuple[str, str, str, bytes]  # split, name, class, content


@dataclass(frozen=True)
class Manifest:
    """The images of all splits. Columns: split, name, class (strings) and content (16 bytes)."""

    table: pa.Table

    @classmethod
    def from_splits(
        cls, splits: Mapping[str, Iterable[tuple[str, str, bytes]]], *, archive: str | None = None
    ) -> "Manifest":
        """splits: of each image its name, class and content's hash. archive: that it was downloaded as."""
        parts = []
        for split, images in splits.items():
            rows = list(images)
            columns: dict[str, pa.Array] = {
                "split": pa.array([split] * len(rows), pa.string()).dictionary_encode(),
                "name": pa.array([name for name, _, _ in rows], pa.string()),
                "class": pa.array([kind for _, kind, _ in rows], pa.string()).dictionary_encode(),
                "content": pa.array([content[:HASH] for _, _, content in rows], pa.binary(HASH)),
            }
            parts.append(pa.table(columns))
        table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
        return cls(table.replace_schema_metadata({ARCHIVE: archive or ""}))

    @property
    def archive(self) -> str:
        """The archive that was downloaded, empty where none was."""
        metadata: dict[bytes, bytes] = self.table.schema.metadata or {}
        return metadata.get(ARCHIVE, b"").decode()

    @property
    def digest(self) -> str:
        """A SHA-256 over all of it, in order: the order is that in which images are trained on."""
        digest = hashlib.sha256()
        for column in self.plain().columns:
            whole = pa.ListArray.from_arrays([0, len(column)], column.cast(pa.binary()).combine_chunks())
            digest.update(pc.binary_join(whole, b"\0")[0].as_py())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.table)

    def plain(self) -> pa.Table:
        """The table without dictionaries."""
        return self.table.cast(pa.schema(COLUMNS)).replace_schema_metadata()

    def rows(self) -> Iterator[Row]:
        for batch in self.table.to_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        pyarrow.feather.write_feather(self.table, buffer, compression="zstd")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Manifest":
        """The inverse of `to_bytes`. Raises ValueError for what is none."""
        table = pyarrow.feather.read_table(io.BytesIO(content))
        if table.column_names != [*COLUMNS]:
            raise ValueError(f"its columns are {', '.join(table.column_names)}")
        return cls(table)


@dataclass(frozen=True)
class Differences:
    """What has become of the images of one manifest in another one, in words, by kind.

    Of a part of a dataset (`subset`), an image that is no longer used counts as removed.
    """

    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        """`1 changed (train/cat/7.jpg); 12 added (...)`: the first few of each kind and their number."""
        told = []
        for kind, images in vars(self).items():
            if images:
                more = ", ..." if len(images) > EXAMPLES else ""
                told.append(f"{len(images)} {kind} ({', '.join(images[:EXAMPLES])}{more})")
        return "; ".join(told)


def compare_manifests(before: Manifest, after: Manifest) -> Differences:
    """How `after` differs from `before`.

    Two archives of the same photographs at different sizes are compared by the photographs' names.
    """
    if before.table.equals(after.table):
        return Differences()
    by_name = before.archive != after.archive
    old, new = (_comparable(manifest, by_name) for manifest in (before, after))
    gone, come = _rows_missing_in(old, new), _rows_missing_in(new, old)
    found = Differences()
    there = {row[1]: row for row in come}
    for row in sorted(gone):
        if (other := there.get(row[1])) is not None:  # the same file
            gone.discard(row)
            come.discard(other)
            if row[3] == other[3] and row[0] != other[0]:
                found.moved.append(f"{row[1]} from {row[0]} to {other[0]}")
            else:
                found.changed.append(row[1])
    copies: dict[bytes, list[Row]] = {}
    for row in sorted(come, reverse=True):
        copies.setdefault(row[3], []).append(row)
    for row in sorted(gone):
        if others := copies.get(row[3]):  # the same content under another name
            gone.discard(row)
            other = others.pop()
            come.discard(other)
            if row[0] != other[0]:
                found.moved.append(f"{row[1]} from {row[0]} to {other[0]}")
            elif row[2] != other[2]:
                found.moved.append(f"{row[1]} from class {row[2]} to {other[2]}")
            else:
                found.renamed.append(f"{row[1]} to {other[1]}")
    found.removed.extend(sorted(row[1] for row in gone))
    found.added.extend(sorted(row[1] for row in come))
    return found


def _comparable(manifest: Manifest, by_name: bool) -> pa.Table:
    table = manifest.plain()
    content = table["name" if by_name else "content"].cast(pa.binary())
    return table.set_column(3, "content", content)


def _rows_missing_in(one: pa.Table, other: pa.Table) -> set[Row]:
    """The rows of one table that the other one has not."""
    left = one.join(other, keys=[*COLUMNS], join_type="left anti")
    return set(zip(*(left[name].to_pylist() for name in COLUMNS), strict=True))
