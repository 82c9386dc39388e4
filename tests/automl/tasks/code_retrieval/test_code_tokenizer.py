"""Test sub-tokens: names match queries, and the tokenizer works without this project."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.tasks.code_retrieval.data.tokenizer import PADDING, UNKNOWN, Tokenizer, train_tokenizer

pytestmark = pytest.mark.usefixtures("cache")

TEXTS = [
    "def getHTTPServer(port): return open_socket(port)",
    "read a csv file",
    "close the HTTP server",
    "é",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(TEXTS, 200))


def test_names_are_split_into_words(tokenizer: Tokenizer) -> None:
    names, _ = tokenizer.encode(["getHTTPServer", "get_http_server", "Get HTTP server"], 10)
    assert (names == names[0]).all()


def test_rows_are_padded_and_cut(tokenizer: Tokenizer) -> None:
    tokens, mask = tokenizer.encode(["read a csv file", "server", ""], 3)
    assert tokens.shape == mask.shape == (3, 3)
    assert mask.sum(1).tolist() == [3, 1, 0]
    assert (tokens[~mask] == PADDING).all()
    assert (tokens[mask] > UNKNOWN).all()
    assert tokens.dtype == np.int64


def test_vocabulary_has_at_most_the_requested_size() -> None:
    assert len(Tokenizer(train_tokenizer(TEXTS, 60))) <= 60


def test_query_of_unknown_words_is_rejected(tokenizer: Tokenizer) -> None:
    tokenizer.check_known("server 漢字")
    with pytest.raises(InputError, match="knows no word of the query '漢字'"):
        tokenizer.check_known("漢字")


def test_tokenizer_works_without_this_project(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer.content)
    code = (
        "import json, sys, tokenizers; t = tokenizers.Tokenizer.from_file('tokenizer.json');"
        "print(json.dumps([t.encode(x).ids for x in json.loads(sys.argv[1])]))"
    )
    process = subprocess.run(
        [sys.executable, "-I", "-c", code, json.dumps(TEXTS)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tokens, mask = tokenizer.encode(TEXTS, 50)
    assert json.loads(process.stdout) == [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
