"""All functions of a source with their splits: CodeSearchNet's or CoSQA's files, or a folder of one's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.archive import extract_cached, is_archive
from automl.data.code.code_splits import assign_splits
from automl.data.code.codesearchnet import codesearchnet_files, is_codesearchnet, read_codesearchnet
from automl.data.code.cosqa import CORPUS, QUERIES, RealQuery, is_cosqa, read_cosqa
from automl.data.code.function import Function
from automl.data.code.source_folder import join_reasons, list_source_files, read_source_folder
from automl.data.images.image_formats import SUFFIXES as IMAGES
from automl.data.splits import SPLITS
from automl.data.walk import is_clutter
from automl.storage.cache_folder import cache_root

WITHIN = (".", "final/jsonl", "python/final/jsonl")  # where CodeSearchNet's archives have their splits
MIN_DOCUMENTED = 2  # documented functions of a split, for one to be found among others


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """functions: in their order. split: of each, an index of SPLITS, int64 (N,). queries: that people typed,
    by split. skipped: what was left out and why, by name.
    """

    functions: Sequence[Function]
    split: np.ndarray
    queries: Mapping[str, Sequence[RealQuery]]
    skipped: Mapping[str, str]

    def documented_rows(self, split: str) -> list[int]:
        """The numbers of those of a split that have a docstring, which are what is learned from."""
        wanted = SPLITS.index(split)
        return [i for i, part in enumerate(self.split) if part == wanted and self.functions[i].query]


def is_code(path: str | Path) -> bool:
    """Whether a folder or archive holds CodeSearchNet's or CoSQA's files, or more source files than images.

    Raises InputError for an archive that is damaged.
    """
    root = corpus_root(path)
    if not root.is_dir() or is_codesearchnet(root) or is_cosqa(root):
        return root.is_dir()
    images = sum(file.suffix.lower() in IMAGES and not is_clutter(file.name) for file in root.rglob("*"))
    return sum(1 for _ in list_source_files(root)) > images


def corpus_root(path: str | Path) -> Path:
    """The folder that is read: of an archive what is in it, of CodeSearchNet the folder with the splits.

    Raises InputError for an archive that is damaged.
    """
    root = Path(path).expanduser()
    if root.is_file() and is_archive(root):
        root = extract_cached(root, cache_root())
    return next((found for found in map(root.joinpath, WITHIN) if is_codesearchnet(found)), root)


def list_corpus_files(path: str | Path) -> list[Path]:
    """What a corpus is read from. Raises InputError where there is no such folder, or nothing in it."""
    root = corpus_root(path)
    if is_codesearchnet(root):
        return [file for file, _ in codesearchnet_files(root)]
    if is_cosqa(root):
        return [root / name for name in (CORPUS, *QUERIES.values()) if (root / name).is_file()]
    files = list(list_source_files(root)) if root.is_dir() else []
    if not files:
        raise InputError(f"there are no source files in {root}; name a folder with some")
    return files


def open_corpus(path: str | Path) -> Corpus:
    """Raises InputError where there is none, and where a split has too few documented functions."""
    root = corpus_root(path)
    queries: Mapping[str, Sequence[RealQuery]] = {}
    if is_codesearchnet(root):
        found, split = read_codesearchnet(root)
    else:
        found, queries = read_cosqa(root) if is_cosqa(root) else (read_source_folder(root), queries)
        answers = {part: [query.answer for query in asked] for part, asked in queries.items()}
        split = assign_splits([function.key for function in found.functions], answers)
    corpus = Corpus(functions=found.functions, split=split, queries=queries, skipped=found.skipped)
    if few := [split for split in SPLITS if len(corpus.documented_rows(split)) < MIN_DOCUMENTED]:
        skipped = f"; left out: {join_reasons(corpus.skipped)}" if corpus.skipped else ""
        documented, short = sum(bool(f.query) for f in corpus.functions), " and ".join(few)
        raise InputError(
            f"{root} has {len(corpus.functions)} functions, {documented} of them with a docstring; each "
            f"split needs {MIN_DOCUMENTED} different ones with a docstring, and {short} would have fewer; "
            f"add documented functions{skipped}"
        )
    return corpus
