"""All texts of a corpus as sub-tokens, in an Arrow file. Only training functions form the vocabulary.

It has a ragged column (int32) for each kind of text:

    docstring    the first paragraph of the docstring, which is the query
    code         the searched code
    name         the function's own name, whose words are also a query
    unnamed      the code with `f` instead of that name, which is searched by names
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from automl.data.arrow import ArrowFile, write_columns
from automl.tasks.code_retrieval.data.cache import CorpusFile
from automl.tasks.code_retrieval.data.corpus import Corpus
from automl.tasks.code_retrieval.data.function import Function
from automl.tasks.code_retrieval.data.tokenizer import Ragged, Tokenizer, train_tokenizer

TOKEN_FORMAT = 2  # Raise it when the format of the file, the tokenizer or a kind of text changes.
KINDS = ("docstring", "code", "name", "unnamed")
MAX_TOKENS = 1024  # of a text; the rest is cut


class TokenFile(ArrowFile):
    """The tokens of N functions by kind, and the `tokenizer` that made them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tokenizer = Tokenizer(self.about["tokenizer"])
        self.texts = {kind: _to_ragged(self.table[kind].chunk(0)) for kind in KINDS}
        if self.about["tokens"] != [int(text.values.sum()) for text in self.texts.values()]:
            raise ValueError("tokens are missing")  # Pages that a crash left unwritten are zero.


def open_cached_tokens(file: CorpusFile, vocabulary: int) -> TokenFile:
    """Return the tokens of a corpus with a vocabulary of at most `vocabulary`. Raises InputError for a full
    disk.
    """

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
        return f"made {len(tokenizer)} sub-tokens for {len(corpus.functions)} functions"

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


def _to_ragged(column: pa.LargeListArray) -> Ragged:
    return Ragged(column.values.to_numpy(), column.offsets.to_numpy())
