"""The documents of a path, read once into an Arrow file that every process maps into its memory.

The name of the file is a hash of the content and names of the original files. It has the columns of a
`RecordFile`, and text (UTF-8). The metadata holds the files that were left out.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from automl.data.arrow import write_rows
from automl.data.digest import SIZE, hash_contents
from automl.data.records import RecordFile
from automl.storage.cache_folder import cache_root
from automl.tasks.language_modelling.data.documents import read_documents
from automl.tasks.language_modelling.data.files import TextFiles, find_text_files

FORMAT = 1  # Raise it when the format of the file or the reading of documents changes.
SCHEMA = pa.schema(
    {"name": pa.string(), "content": pa.binary(SIZE), "split": pa.int8(), "text": pa.large_binary()}
)


class DocumentFile(RecordFile):
    """An opened file of N documents."""

    def text(self, row: int) -> bytes:
        text: bytes = self.table["text"][row].as_py()
        return text


def open_documents(path: str | Path) -> DocumentFile:
    """Return the documents at `path` from the cache. Raises InputError like `read_documents`."""
    files = find_text_files(path)
    named = json.dumps([files.names, files.splits, files.tally.left_out])
    key = f"documents {FORMAT} {named}".encode() + b"".join(hash_contents(files.paths, cache_root()))

    def write(target: Path) -> str:
        write_rows(target, SCHEMA, _make_rows(files), {"left_out": files.tally.left_out})
        return f"read {len(files.paths)} files"

    return DocumentFile.open_cached(key, write, needed=sum(file.stat().st_size for file in files.paths))


def _make_rows(files: TextFiles) -> Iterator[Mapping[str, Any]]:
    for name, text, split in read_documents(files):
        yield {"name": name, "content": hashlib.sha256(text).digest(), "split": split, "text": text}
