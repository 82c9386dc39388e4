"""All functions of a source with their splits: CodeSearchNet, CoSQA, or a folder of Python files.

A hash of the code up to names assigns functions to splits. Near duplicates are therefore in one split, and
adding a function moves no other. If real queries are known, their functions are in the split of the query,
with all near duplicates.

Docstrings that are repeated in the searched code would make the search too easy, so the summary counts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.data.archive import extract_if_archive
from automl.data.files import is_clutter
from automl.data.overview import Overview
from automl.data.pictures import SUFFIXES as IMAGES
from automl.data.splits import SPLITS, TEST, VALIDATION, hash_fractions, pack_keys
from automl.data.tally import join_examples
from automl.tasks.code_retrieval.data.published import (
    CORPUS,
    QUERIES,
    RealQuery,
    is_codesearchnet,
    is_cosqa,
    list_codesearchnet_files,
    read_codesearchnet,
    read_cosqa,
)
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.source_folder import join_reasons, list_source_files, read_source_folder

WITHIN = (".", "final/jsonl", "python/final/jsonl")  # folders of the splits in CodeSearchNet's archives
MIN_DOCUMENTED = 2  # documented functions of a split, so that a search has a choice


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Functions, their splits and real queries.

    Attributes:
        functions: in their order.
        split: an index of SPLITS for each function, int64 `(N,)`.
        queries: queries that people typed, by split.
        skipped: why files or functions were left out, by name.
    """

    functions: Sequence[Function]
    split: np.ndarray
    queries: Mapping[str, Sequence[RealQuery]]
    skipped: Mapping[str, str]

    def documented_rows(self, split: str) -> list[int]:
        """Return the numbers of the functions of a split that have a docstring, which are learned from."""
        number = SPLITS.index(split)
        return [i for i, other in enumerate(self.split) if other == number and self.functions[i].query]


def is_code(path: str | Path) -> bool:
    """Return whether a folder or archive has CodeSearchNet's or CoSQA's files, or more Python files than
    images.

    Raises InputError for a damaged archive.
    """
    root = find_corpus_root(path)
    if not root.is_dir() or is_codesearchnet(root) or is_cosqa(root):
        return root.is_dir()
    images = sum(file.suffix.lower() in IMAGES and not is_clutter(file.name) for file in root.rglob("*"))
    return sum(1 for _ in list_source_files(root)) > images


def find_corpus_root(path: str | Path) -> Path:
    """Return the folder to read: the content of an archive, or CodeSearchNet's folder with the splits."""
    root = extract_if_archive(path)
    return next((folder for folder in map(root.joinpath, WITHIN) if is_codesearchnet(folder)), root)


def list_corpus_files(path: str | Path) -> list[Path]:
    """Return the files of a corpus. Raises InputError if there is no such folder or no Python file in it."""
    root = find_corpus_root(path)
    if is_codesearchnet(root):
        return [file for file, _ in list_codesearchnet_files(root)]
    if is_cosqa(root):
        return [root / name for name in (CORPUS, *QUERIES.values()) if (root / name).is_file()]
    files = list(list_source_files(root)) if root.is_dir() else []
    if not files:
        raise InputError(f"{root} has no Python files; pass a folder with some")
    return files


def open_corpus(path: str | Path) -> Corpus:
    """Read a corpus. Raises InputError if there is none, or a split has too few documented functions."""
    root = find_corpus_root(path)
    queries: Mapping[str, Sequence[RealQuery]] = {}
    if is_codesearchnet(root):
        source, split = read_codesearchnet(root)
    else:
        source, queries = read_cosqa(root) if is_cosqa(root) else (read_source_folder(root), queries)
        answers = {name: [query.answer for query in real] for name, real in queries.items()}
        split = assign_splits([function.key for function in source.functions], answers)
    corpus = Corpus(functions=source.functions, split=split, queries=queries, skipped=source.skipped)
    if few := [split for split in SPLITS if len(corpus.documented_rows(split)) < MIN_DOCUMENTED]:
        skipped = f"; left out: {join_reasons(corpus.skipped)}" if corpus.skipped else ""
        documented, short = sum(bool(f.query) for f in corpus.functions), " and ".join(few)
        raise InputError(
            f"{root} has {pluralize(len(corpus.functions), 'functions')}, {documented} of them with a "
            "docstring. Each "
            f"split needs {MIN_DOCUMENTED} different ones with a docstring, and {short} would have fewer. "
            f"Add documented functions{skipped}"
        )
    return corpus


FRACTION = 0.15  # of all functions, for test and for validation
HOW = "by a hash of the code up to names, so that near duplicates are in one split"


def assign_splits(keys: list[bytes], answers: dict[str, list[int]]) -> np.ndarray:
    """Return the index of each function's split in SPLITS, int64 `(N,)`.

    `keys` are equal for near duplicates. `answers` are the functions that answer the real queries of each
    split. An answer of two splits is in the later one.
    """
    packed = pack_keys(keys)
    test, validation = (
        hash_fractions(packed, TEST) < FRACTION,
        hash_fractions(packed, VALIDATION) < FRACTION / (1 - FRACTION),
    )
    splits = np.where(test, 2, np.where(validation, 1, 0)).astype(np.int64)
    for number, split in enumerate(SPLITS):
        fixed = {keys[answer] for answer in answers.get(split, [])}
        splits[[i for i, key in enumerate(keys) if key in fixed]] = number
    return splits


def summarise_code(path: str | Path) -> Overview:
    """Return the overview of a folder. Raises InputError like `open_corpus`."""
    corpus = open_corpus(path)
    by_key: dict[bytes, list[str]] = {}
    for function in corpus.functions:
        by_key.setdefault(function.key, []).append(function.location)
    counts: dict[str, Any] = {
        "functions": {name: int((corpus.split == number).sum()) for number, name in enumerate(SPLITS)},
        "docstrings": {split: len(corpus.documented_rows(split)) for split in SPLITS},
        "queries": {split: len(corpus.queries.get(split, ())) for split in SPLITS},
    }
    alike = [locations for locations in by_key.values() if len(locations) > 1]
    same = pluralize(sum(map(len, alike)), "functions are the same as another up to names")
    pairs = join_examples([" and ".join(locations[:2]) for locations in alike])
    return Overview(
        {name: row for name, row in counts.items() if any(row.values())},
        how={},
        notes={
            "splits": HOW,
            "duplicates": f"{same}: {pairs}" if alike else "",
            "left out": f"{len(corpus.skipped)}: {join_reasons(corpus.skipped)}" if corpus.skipped else "",
        },
        **counts,
        alike=alike,
        skipped=corpus.skipped,
    )
