"""The list of a dataset's inputs with their split and hash, which detects changes of the data.

It is stored as a compressed Arrow file with about 24 bytes per image (31 MB for the 1.28 million of
ImageNet), of which 16 are the hash.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather

from automl.data.tally import join_examples

MANIFEST_FILE = "images.arrow"  # in a search's folder
HASH = 16  # bytes of each content's SHA-256 that are stored, enough to tell contents apart
ARCHIVE = b"archive"

COLUMNS = {"split": pa.string(), "name": pa.string(), "class": pa.string(), "content": pa.binary(HASH)}
Row = tuple[str, str, str, bytes]  # split, name, class, content


@dataclass(frozen=True)
class Manifest:
    """The inputs of all splits. Columns: split, name, class (strings) and content (16 bytes)."""

    table: pa.Table

    @classmethod
    def from_splits(
        cls, splits: Mapping[str, Iterable[tuple[str, str, bytes]]], *, archive: str | None = None
    ) -> "Manifest":
        """Create a manifest from name, class and hash of each input, and the downloaded archive if any."""
        tables = []
        for split, images in splits.items():
            rows = list(images)
            columns: dict[str, pa.Array] = {
                "split": pa.array([split] * len(rows), pa.string()).dictionary_encode(),
                "name": pa.array([name for name, _, _ in rows], pa.string()),
                "class": pa.array([label for _, label, _ in rows], pa.string()).dictionary_encode(),
                "content": pa.array([content[:HASH] for _, _, content in rows], pa.binary(HASH)),
            }
            tables.append(pa.table(columns))
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        return cls(table.replace_schema_metadata({ARCHIVE: archive or ""}))

    @property
    def archive(self) -> str:
        """The downloaded archive; empty if there was none."""
        metadata: dict[bytes, bytes] = self.table.schema.metadata or {}
        return metadata.get(ARCHIVE, b"").decode()

    @property
    def digest(self) -> str:
        """A SHA-256 over all rows, in the order in which inputs are trained on."""
        digest = hashlib.sha256()
        for column in self.plain().columns:
            whole = pa.ListArray.from_arrays([0, len(column)], column.cast(pa.binary()).combine_chunks())
            digest.update(pc.binary_join(whole, b"\0")[0].as_py())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.table)

    def plain(self) -> pa.Table:
        """Return the table without dictionaries."""
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
        """Read a manifest from the result of `to_bytes`. Raises ValueError for other content."""
        table = pyarrow.feather.read_table(io.BytesIO(content))
        if table.column_names != [*COLUMNS]:
            raise ValueError(f"its columns are {', '.join(table.column_names)}")
        return cls(table)


@dataclass(frozen=True)
class Differences:
    """Differences between manifests, as text by kind. An input outside of the new `subset` is removed."""

    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        """Return the number and the first few of each kind: `1 changed (train/cat/7.jpg); 12 added (...)`."""
        kinds = vars(self).items()
        return "; ".join(
            f"{len(images)} {kind} ({join_examples(images)})" for kind, images in kinds if images
        )


def compare_manifests(before: Manifest, after: Manifest) -> Differences:
    """Return how `after` differs from `before`, by names for archives of the same photographs."""
    if before.table.equals(after.table):
        return Differences()
    content = "content" if before.archive == after.archive else "name"
    tables = (before.plain(), after.plain())
    old, new = (table.set_column(3, "content", table[content].cast(pa.binary())) for table in tables)
    old_only, new_only = _rows_missing_in(old, new), _rows_missing_in(new, old)
    differences = Differences()
    by_name_of_new = {row[1]: row for row in new_only}
    for row in sorted(old_only):
        if (other := by_name_of_new.get(row[1])) is not None:
            old_only.discard(row)
            new_only.discard(other)
            if row[3] == other[3] and row[0] != other[0]:
                differences.moved.append(f"{row[1]} from {row[0]} to {other[0]}")
            else:
                differences.changed.append(row[1])
    copies: dict[bytes, list[Row]] = {}
    for row in sorted(new_only, reverse=True):
        copies.setdefault(row[3], []).append(row)
    for row in sorted(old_only):
        if others := copies.get(row[3]):  # the same content under another name
            old_only.discard(row)
            other = others.pop()
            new_only.discard(other)
            if row[0] != other[0]:
                differences.moved.append(f"{row[1]} from {row[0]} to {other[0]}")
            elif row[2] != other[2]:
                differences.moved.append(f"{row[1]} from class {row[2]} to {other[2]}")
            else:
                differences.renamed.append(f"{row[1]} to {other[1]}")
    differences.removed.extend(sorted(row[1] for row in old_only))
    differences.added.extend(sorted(row[1] for row in new_only))
    return differences


def _rows_missing_in(table: pa.Table, other: pa.Table) -> set[Row]:
    """Return the rows of the first table that the second one does not have."""
    rest = table.join(other, keys=[*COLUMNS], join_type="left anti")
    return set(zip(*(rest[name].to_pylist() for name in COLUMNS), strict=True))
