"""A corpus for the training loop: sub-tokens of each kind of text, and the functions of each split.

A corpus and its sub-tokens are each read once into an Arrow file that every process maps into its memory. The
name of a corpus file is a hash of the content of the original files. Columns: those of `Function` (key: 32
bytes) and split, an index of SPLITS (int8). The metadata holds the real queries and the reasons why files
were left out.

A file of sub-tokens has a ragged column (int32) for each kind of text. Only training functions form the
vocabulary.

    docstring    the first paragraph of the docstring, which is the query
    code         the searched code
    name         the function's own name, whose words are also a query
    unnamed      the code with `f` instead of that name, which is searched by names
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.data import shared
from automl.data.arrow import ArrowFile, write_columns
from automl.data.files import SIZE, hash_contents
from automl.data.manifest import Manifest
from automl.data.records import RecordFile, Records
from automl.data.splits import SPLITS, SUBSET, hash_fractions
from automl.tasks.code_retrieval.data.corpus import (
    HOW,
    MIN_DOCUMENTED,
    Corpus,
    find_corpus_root,
    list_corpus_files,
    open_corpus,
)
from automl.tasks.code_retrieval.data.published import RealQuery
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.tokenizer import Ragged, Tokenizer, train_tokenizer

FORMAT = 3  # Raise it when the format of the file or a reader changes.
TEXTS = ("name", "file", "code", "docstring")


class CorpusFile(RecordFile):
    """An opened corpus of N functions. `keys` are equal for near duplicates."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, key="key")
        self.skipped: Mapping[str, str] = self.about["skipped"]
        self.queries = {
            split: [RealQuery(text=text, answer=answer) for text, answer in pairs]
            for split, pairs in self.about["queries"].items()
        }

    @cached_property
    def functions(self) -> list[Function]:
        """All functions, in their order."""
        return [Function(**row) for row in self.table.select([*TEXTS, "line", "key"]).to_pylist()]

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus(
            functions=self.functions,
            split=self.split.astype(np.int64),
            queries=self.queries,
            skipped=self.skipped,
        )


def open_cached_corpus(path: str | Path) -> CorpusFile:
    """Return the corpus of `open_corpus` from the cache, built if needed. Raises InputError as there."""
    if (shared_set := shared.find_split(CorpusFile, shared_name(path))) is not None:
        return shared_set
    files = list_corpus_files(path)
    key = f"code {FORMAT}".encode() + b"".join(hash_contents(files))
    key += b"\0".join(os.fsencode(file.relative_to(find_corpus_root(path))) for file in files)

    def write(target: Path) -> str:
        corpus = open_corpus(path)
        _write(target, corpus)
        return f"read {pluralize(len(corpus.functions), 'functions')}"

    return CorpusFile.open_cached(key, write, needed=sum(file.stat().st_size for file in files))


def shared_name(path: str | Path | None) -> str:
    """Return the name under which a search's storage keeps the corpus."""
    return f"code {path}"


def _write(path: Path, corpus: Corpus) -> None:
    functions = corpus.functions
    queries = {split: [(q.text, q.answer) for q in queries] for split, queries in corpus.queries.items()}
    texts = {
        name: [getattr(f, name).encode("utf-8", "replace").decode() for f in functions] for name in TEXTS
    }
    columns: dict[str, pa.Array] = {
        **{name: pa.array(values, pa.large_string()) for name, values in texts.items()},
        "line": pa.array([function.line for function in functions], pa.int64()),
        "key": pa.array([function.key for function in functions], pa.binary(SIZE)),
        "split": pa.array(corpus.split, pa.int8()),
    }
    write_columns(path, columns, {"queries": queries, "skipped": dict(corpus.skipped)})


TOKEN_FORMAT = 2  # Raise it when the format of the file, the tokenizer or a kind of text changes.
KINDS = ("docstring", "code", "name", "unnamed")
MAX_TOKENS = 1024  # of a text; the rest is cut


class TokenFile(ArrowFile):
    """The tokens of N functions by kind, and the `tokenizer` that made them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tokenizer = Tokenizer(self.about["tokenizer"])
        columns = {kind: self.table[kind].chunk(0) for kind in KINDS}
        self.texts = {kind: Ragged(c.values.to_numpy(), c.offsets.to_numpy()) for kind, c in columns.items()}
        if self.about["tokens"] != [int(text.values.sum()) for text in self.texts.values()]:
            raise ValueError("tokens are missing")  # Pages that a crash left unwritten are zero.


def open_cached_tokens(file: CorpusFile, vocabulary: int) -> TokenFile:
    """Return a corpus's tokens for a `vocabulary` of at most so many. Raises InputError for a full disk."""

    def write(path: Path) -> str:
        corpus = file.corpus
        tokenizer = Tokenizer(train_tokenizer(iterate_vocabulary_texts(corpus), vocabulary))
        ids = {
            kind: tokenizer.token_ids([get_text(f, kind) for f in corpus.functions], MAX_TOKENS)
            for kind in KINDS
        }
        about = {
            "tokenizer": tokenizer.content,
            "tokens": [int(sum(map(sum, rows))) for rows in ids.values()],
        }
        columns = {kind: pa.array(rows, pa.large_list(pa.int32())) for kind, rows in ids.items()}
        write_columns(path, columns, about)
        return f"made {len(tokenizer)} sub-tokens for {pluralize(len(corpus.functions), 'functions')}"

    key = f"tokens {TOKEN_FORMAT} {vocabulary} {file.path.name}".encode()
    return TokenFile.open_cached(key, write, needed=4 * file.path.stat().st_size)


def iterate_vocabulary_texts(corpus: Corpus) -> Iterator[str]:
    """Yield the texts that form the vocabulary: code and docstrings of the training split."""
    for function, split in zip(corpus.functions, corpus.split, strict=True):
        if split == 0:
            yield function.code
            yield function.query


def get_text(function: Function, kind: str) -> str:
    """Return the text of a kind, one of KINDS."""
    if kind == "docstring":
        return function.query
    if kind == "code":
        return function.code
    own = function.name.rpartition(".")[2]
    if kind == "name":
        return own
    # Not \b, since names in Ruby may end in a question mark.
    return re.sub(rf"(?<!\w){re.escape(own)}(?!\w)", "f", function.code)


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
