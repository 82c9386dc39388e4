"""A corpus for the training loop: tokens of each kind of text, and the functions of each split."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.data.manifest import Manifest
from automl.data.records import Records
from automl.data.splits import SPLITS, SUBSET, hash_fractions
from automl.tasks.code_retrieval.data.cache import (
    MAX_TOKENS,
    CorpusFile,
    open_cached_corpus,
    open_cached_tokens,
)
from automl.tasks.code_retrieval.data.corpus import HOW, MIN_DOCUMENTED
from automl.tasks.code_retrieval.data.published import RealQuery
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.tokenizer import Ragged, Tokenizer


class CodeTexts(Records[CorpusFile]):
    """The texts of a corpus of N functions, by the functions' numbers.

    Raises InputError like `open_corpus`, and if `subset` leaves too few functions.

    Attributes:
        tokenizer: made from training functions.
        texts: N rows of tokens for each kind, one of `tokens.KINDS`.
        subset: the approximate fraction of the functions of "train" and "validation" that is used.
    """

    def __init__(self, file: CorpusFile, vocabulary: int, subset: float) -> None:
        super().__init__(file, subset)
        tokens = open_cached_tokens(file, vocabulary)
        self.tokenizer: Tokenizer = tokens.tokenizer
        self.texts: Mapping[str, Ragged] = tokens.texts
        for split in SPLITS:
            if (count := len(self.documented_rows(split))) < MIN_DOCUMENTED:
                raise InputError(
                    f"--subset {subset} leaves {pluralize(count, 'functions')} with a docstring in the "
                    f"{split} split; it needs {MIN_DOCUMENTED}. Choose a larger --subset"
                )

    @property
    def functions(self) -> Sequence[Function]:
        return self.file.functions

    def select(self, rows: np.ndarray) -> np.ndarray:
        return np.flatnonzero(hash_fractions(self.file.keys[rows], SUBSET) < self.subset)

    def documented_rows(self, split: str) -> np.ndarray:
        """Return the functions of a split with a docstring of at least one word."""
        rows = self._rows[split]
        documented: np.ndarray = rows[self.texts["docstring"].lengths[rows] > 0]
        return documented

    def real_queries(self, split: str) -> list[RealQuery]:
        """Return queries that people typed and whose answers are used functions of the split."""
        rows = set(self._rows[split].tolist())
        return [query for query in self.file.queries.get(split, ()) if query.answer in rows]

    @lru_cache(maxsize=4)  # noqa: B019  # A process has only a few such objects.
    def real_query_tokens(self, split: str) -> Ragged:
        rows = self.tokenizer.token_ids([query.text for query in self.real_queries(split)], MAX_TOKENS)
        return Ragged.from_rows(rows)

    def describe_splits(self) -> dict[str, str]:
        fraction = "" if self.subset == 1 else f"about {self.subset:.3g} of its functions; "
        return {split: HOW if split == "test" else f"{fraction}{HOW}" for split in SPLITS}

    def manifest(self) -> Manifest:
        functions = self.functions
        splits = {
            split: [
                (f"{f.file}:{f.name}", "", hashlib.sha256(f"{f.code}\0{f.docstring}".encode()).digest())
                for f in (functions[row] for row in rows.tolist())
            ]
            for split, rows in self._rows.items()
        }
        for split in SPLITS:
            splits[split] += [
                (f"query {q.text}", "", hashlib.sha256(functions[q.answer].code.encode()).digest())
                for q in self.real_queries(split)
            ]
        return Manifest.from_splits(splits)


def open_texts(path: str | Path | None, *, vocabulary: int, subset: float = 1.0) -> CodeTexts:
    """Open the corpus at `path`. Raises InputError without a path, and like `CodeTexts`."""
    if path is None:
        raise InputError(
            "code search needs the path of your code. Pass --data FOLDER with source files, CodeSearchNet's "
            "train, valid and test, or CoSQA's files"
        )
    return _open_file(open_cached_corpus(path).path, vocabulary, subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, vocabulary: int, subset: float) -> CodeTexts:
    return CodeTexts(CorpusFile(file), vocabulary, subset)
