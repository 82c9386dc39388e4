"""Find the files of text at a path, and read their documents, once into an Arrow file.

Every process maps the Arrow file into its memory.

A document is a file, or a line of JSON. If there are fewer than MIN_FILES files, each plain file is cut into
pieces, which are documents, so that there are some for every split.

The name of the Arrow file is a hash of the content and names of the original files. It has the columns of a
`RecordFile`, and text (UTF-8). The metadata holds the files that were left out.
"""

import codecs
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from automl.base.errors import InputError
from automl.base.text import HEAD, check_ends, encoding_of, guess_encoding, open_text, read_text
from automl.base.units import pluralize
from automl.data.arrow import write_rows
from automl.data.files import OTHERS, SIZE, hash_contents, name_to_text, unreadable_error, walk
from automl.data.pictures import SUFFIXES as IMAGES
from automl.data.records import RecordFile
from automl.data.remote import existing_copy, local_copy
from automl.data.splits import SPLIT_OF, SPLITS
from automl.data.tally import Tally

COMPRESSED = ".jsonl.gz"
LINES = (".jsonl", COMPRESSED)
SUFFIXES = (*LINES, ".txt", ".md", ".markdown", ".rst", ".tex", ".org")  # that mark data as texts
SPLIT_ENDS = (*LINES, ".txt")
BINARY = "that are binary"

MIN_FILES = 10
MIN_PIECES = 64  # of a plain file, as long as they have MIN_PIECE bytes
MIN_PIECE, MAX_PIECE = 1 << 8, 1 << 15  # bytes; a piece ends at the next blank line
CHUNK = 1 << 20  # bytes that are checked at once
EMPTY, NOT_UTF8, NO_FIELD = "that are empty", "that are not UTF-8", "whose JSON has no field of text"
FIELD = "text"

_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Files that may hold text, sorted by folder and name.

    Attributes:
        root: the path of the user.
        paths: the path of each file.
        names: the name of each file relative to the folder.
        splits: an index of SPLITS for each file, or -1.
        tally: files that are left out.
    """

    root: Path
    paths: Sequence[Path]
    names: Sequence[str]
    splits: Sequence[int]
    tally: Tally


def is_text(path: str | Path) -> bool:
    """Return whether `path` is a file of text by its ending, or a folder with more such files than images."""
    root = local_copy(path)
    if not root.is_dir():
        return root.is_file() and root.name.lower().endswith(SUFFIXES)
    names = [file.name.lower() for file in _list_paths(root)]
    images = sum(name.endswith(tuple(IMAGES)) for name in names)
    return sum(name.endswith(SUFFIXES) for name in names) > images


def find_text_files(path: str | Path) -> TextFiles:
    """Return the files to read. Hidden folders and those with packages of others are not entered.

    Raises InputError if nothing exists at `path`, if a file cannot be read, and if no file holds text.
    """
    root = existing_copy(path)
    check_ends(root)
    if not root.is_dir():
        if (kind := _kind_of_binary(root)) not in ("", BINARY):
            raise InputError(f"{root} has text {kind}")
        return TextFiles(root=root, paths=[root], names=[name_to_text(root.name)], splits=[-1], tally=Tally())
    tally = Tally()
    texts: list[tuple[Path, str, int]] = []
    for file in filter(Path.is_file, _list_paths(root)):  # Reading from a pipe would wait forever.
        within = file.relative_to(root)
        if kind := _kind_of_binary(file):
            tally.leave_out(kind, [name_to_text(within)])
        else:
            texts.append((file, name_to_text(within), _find_split(within)))
    if SPLITS.index("train") in {split for _, _, split in texts}:
        tally.leave_out("outside of the folders of splits", [name for _, name, split in texts if split < 0])
        texts = [text for text in texts if text[2] >= 0]
    else:
        texts = [(file, name, -1) for file, name, _ in texts]
    if not texts:
        raise no_texts_error(root, tally)
    paths, names, splits = zip(*texts, strict=True)
    return TextFiles(root=root, paths=paths, names=names, splits=splits, tally=tally)


def no_texts_error(path: Path, tally: Tally) -> InputError:
    """Return an error about data without a document."""
    kinds = ", ".join(f"{count} {kind}" for kind, (count, _) in tally.left_out.items())
    return InputError(
        f"{path} has no text. Pass a file or folder of text in UTF-8, or JSON lines with a field text"
        + f"; left out are files {kinds}" * bool(kinds)
    )


def _list_paths(root: Path) -> Iterator[Path]:
    for folder, folders, files in walk(root):
        folders[:] = [name for name in folders if name not in OTHERS]
        yield from map(folder.joinpath, files)


def _kind_of_binary(file: Path) -> str:
    """Return the kind of a file that is no text, for the tally, or an empty string."""
    if file.name.lower().endswith(COMPRESSED):
        return ""
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise unreadable_error(file, error) from error
    if b"\0" not in head or encoding_of(head) != "utf-8-sig":
        return ""
    encoding = guess_encoding(head)
    return f"in {encoding} without a byte order mark, which must be saved as UTF-8" if encoding else BINARY


def _find_split(within: Path) -> int:
    """Return the split by the first folder, or by the name of a file without one of SPLIT_ENDS."""
    first = within.parts[0]
    if len(within.parts) == 1:
        first = next((first.removesuffix(end) for end in SPLIT_ENDS if first.endswith(end)), "")
    return SPLITS.index(SPLIT_OF[first]) if first in SPLIT_OF else -1


class Document(NamedTuple):
    """A text in UTF-8. `split` is an index of SPLITS, or -1 if the folder defines none."""

    name: str
    text: bytes
    split: int


class NoTextError(Exception):
    """A file without text. `kind` is that of a tally, and the message follows the file's name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_documents(files: TextFiles) -> Iterator[Document]:
    """Yield all documents in order. `files.tally` receives those that are left out.

    Raises:
        InputError: A file cannot be read, a line is not an object with the text, there is no document, or the
            path of the user is a file without text.
    """
    cuts, count = len(files.paths) < MIN_FILES, 0
    for path, name, split in zip(files.paths, files.names, files.splits, strict=True):
        texts = _read_lines(path) if name.lower().endswith(LINES) else _read_plain(path, cuts)
        try:
            for part, text in texts:
                if text:
                    yield Document(name + part, text, split)
                    count += 1
                else:
                    files.tally.leave_out(EMPTY, [name + part])
        except NoTextError as error:
            if path == files.root:
                raise InputError(f"{path} {error}") from error
            files.tally.leave_out(error.kind, [name])
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({error}); restore it or remove it") from error
    if not count:
        raise no_texts_error(files.root, files.tally)


def cut(text: bytes | mmap, size: int) -> Iterator[bytes]:
    """Yield consecutive pieces of a text in UTF-8 of `size` to twice as many bytes.

    A piece ends after the first blank line beyond `size` bytes, else after the first line, else between two
    characters. The last piece may be shorter.
    """
    start = 0
    while start < len(text):
        least, most = start + size, start + 2 * size
        if most >= len(text):
            end = len(text)
        elif blank := _BLANK_LINE.search(text, least, most):
            end = blank.end()
        elif (newline := text.find(b"\n", least, most)) >= 0:
            end = newline + 1
        else:
            end = most
            while text[end] & 0xC0 == 0x80:  # The byte continues a character.
                end -= 1
        yield text[start:end]
        start = end


def _read_plain(path: Path, cuts: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the pieces of a file with their numbers, or the whole file."""
    text: bytes | mmap
    with path.open("rb") as file:
        if encoding_of(file.read(4)) != "utf-8-sig":
            text = read_text(path).encode()
        else:
            _check_utf8(path)
            cuts = cuts and path.stat().st_size > 0
            text = mmap(file.fileno(), 0, access=ACCESS_READ) if cuts else path.read_bytes()
    size = min(MAX_PIECE, max(MIN_PIECE, len(text) // MIN_PIECES)) if cuts else len(text)
    for i, piece in enumerate(cut(text, size)):
        yield f"#{i + 1}" * cuts, piece if i else piece.removeprefix(codecs.BOM_UTF8)
    if not len(text):
        yield "", b""


def _check_utf8(path: Path) -> None:
    """Raise NoTextError for a file that is not UTF-8 or has a zero byte."""
    decoder, read, chunk = codecs.getincrementaldecoder("utf-8")(), 0, b"-"
    with path.open("rb") as file:
        while chunk:
            chunk = file.read(CHUNK)
            if (zero := chunk.find(b"\0")) >= 0:
                raise NoTextError(BINARY, f"must be text; byte {read + zero} is zero, so it is binary")
            begin = read - len(decoder.getstate()[0])
            read += len(chunk)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise NoTextError(
                    NOT_UTF8,
                    f"must be UTF-8; it is not at byte {begin + error.start}. Save it as UTF-8, such as by "
                    f"iconv -f {guess_encoding(chunk)} -t UTF-8",
                ) from error


def _read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the text of each line of JSON with the line's number."""
    field = ""
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            entry = _parse_object(path, number, line)
            field = field or _choose_field(entry)
            if not isinstance(text := entry.get(field), str):
                raise InputError(
                    f"{path}, line {number}: {field!r} must be a string; correct or remove the line"
                )
            yield f"#{number}", text.encode("utf-8", "replace")


def _parse_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
        problem = f"it is {type(entry).__name__}"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    raise InputError(
        f"{path}, line {number}: each line must be a JSON object ({problem}); correct or remove it"
    )


def _choose_field(entry: dict[str, object]) -> str:
    """Return the field that holds the text. Raises NoTextError if several may, or none."""
    strings = [name for name, value in entry.items() if isinstance(value, str)]
    if FIELD in strings:
        return FIELD
    if len(strings) == 1:
        return strings[0]
    fields = ", ".join(map(repr, entry)) or "none"
    raise NoTextError(
        NO_FIELD, f"must have a field {FIELD!r}, or a single field that is a string; its fields are {fields}"
    )


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
    key = f"documents {FORMAT} {named}".encode() + b"".join(hash_contents(files.paths))

    def write(target: Path) -> str:
        write_rows(target, SCHEMA, _make_rows(files), {"left_out": files.tally.left_out})
        return f"read {pluralize(len(files.paths), 'files')}"

    return DocumentFile.open_cached(key, write, needed=sum(file.stat().st_size for file in files.paths))


def _make_rows(files: TextFiles) -> Iterator[Mapping[str, Any]]:
    for name, text, split in read_documents(files):
        yield {"name": name, "content": hashlib.sha256(text).digest(), "split": split, "text": text}
