"""Find the files of text at a path, and the splits that folders define."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.data.files import OTHERS, name_to_text, walk
from automl.data.pictures import SUFFIXES as IMAGES
from automl.data.splits import SPLITS
from automl.data.tally import Tally

COMPRESSED = ".jsonl.gz"
LINES = (".jsonl", COMPRESSED)
SUFFIXES = (*LINES, ".txt", ".md", ".markdown", ".rst", ".tex", ".org")  # that mark data as texts
SPLIT_OF = {
    "train": "train",
    "valid": "validation",
    "val": "validation",
    "validation": "validation",
    "test": "test",
}  # by the first folder, or by the name of a file without one of SPLIT_ENDS
SPLIT_ENDS = (*LINES, ".txt")
HEAD = 1 << 13  # bytes in which a binary file has a zero
BINARY = "that are binary"


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
    root = Path(path).expanduser()
    if not root.is_dir():
        return root.is_file() and root.name.lower().endswith(SUFFIXES)
    names = [file.name.lower() for file in _list_paths(root)]
    images = sum(name.endswith(tuple(IMAGES)) for name in names)
    return sum(name.endswith(SUFFIXES) for name in names) > images


def find_text_files(path: str | Path) -> TextFiles:
    """Return the files to read. Hidden folders and those with packages of others are not entered.

    Raises InputError if nothing exists at `path`, if a file cannot be read, and if no file holds text.
    """
    root = Path(path).expanduser()
    if not root.exists():
        raise InputError(f"there is no file or folder {root}; pass --data PATH with one that exists")
    if not root.is_dir():
        return TextFiles(root=root, paths=[root], names=[name_to_text(root.name)], splits=[-1], tally=Tally())
    tally = Tally()
    texts: list[tuple[Path, str, int]] = []
    for file in filter(Path.is_file, _list_paths(root)):  # Reading from a pipe would wait forever.
        within = file.relative_to(root)
        if _is_binary(file):
            tally.leave_out(BINARY, [name_to_text(within)])
        else:
            texts.append((file, name_to_text(within), _find_split(within)))
    if SPLITS.index("train") in {split for _, _, split in texts}:
        outside = [name for _, name, split in texts if split < 0]
        tally.leave_out("outside of the folders of splits", outside)
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


def _is_binary(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return b"\0" in stream.read(HEAD) and not file.name.lower().endswith(COMPRESSED)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); make it readable or remove it"
        ) from error


def _find_split(within: Path) -> int:
    first = within.parts[0]
    if len(within.parts) == 1:
        first = next((first.removesuffix(end) for end in SPLIT_ENDS if first.endswith(end)), "")
    return SPLITS.index(SPLIT_OF[first]) if first in SPLIT_OF else -1
