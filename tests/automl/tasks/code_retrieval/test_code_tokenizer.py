"""Test sub-tokens: names match queries, and the tokenizer works without this project."""

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


def test_words_rows_and_unknown_queries(tokenizer: Tokenizer) -> None:
    names, _ = tokenizer.encode(["getHTTPServer", "get_http_server", "Get HTTP server"], 10)
    assert (names == names[0]).all()
    tokens, mask = tokenizer.encode(["read a csv file", "server", ""], 3)
    assert tokens.shape == mask.shape == (3, 3)
    assert mask.sum(1).tolist() == [3, 1, 0]
    assert (tokens[~mask] == PADDING).all()
    assert (tokens[mask] > UNKNOWN).all()
    assert tokens.dtype == np.int64
    tokenizer.check_known("server 漢字")
    with pytest.raises(InputError, match="knows no word of the query '漢字'"):
        tokenizer.check_known("漢字")


def test_vocabulary_has_at_most_the_requested_size() -> None:
    assert len(Tokenizer(train_tokenizer(TEXTS, 60))) <= 60
