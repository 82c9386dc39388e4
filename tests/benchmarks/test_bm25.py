"""BM25, the baseline of code search."""

import math
from collections import Counter
from types import ModuleType

import numpy as np
import pytest

BENCH = "bm25"
CODES = [
    "def openFile(path): return open(path)",
    "def close_file(handle): handle.close()",
    "def readLines(path): return openFile(path).readlines()",
    "def add(a, b): return a + b",
    "()",
]
QUERIES = ["open the file", "close a file handle", "lines lines of a path", "nothing known", "!?", ""]


def restate_scores(queries: list[list[str]], codes: list[list[str]], k1: float, b: float) -> np.ndarray:
    """Return Lucene's scores, without the factor k1 + 1, which changes no rank."""
    mean = sum(map(len, codes)) / len(codes)
    scores = np.zeros((len(queries), len(codes)))
    for i, query in enumerate(queries):
        for j, code in enumerate(codes):
            counts = Counter(code)
            for word in query:
                having = sum(word in other for other in codes)
                rarity = math.log(1 + (len(codes) - having + 0.5) / (having + 0.5))
                times = counts[word]
                length = max(1, len(code)) / mean  # an empty code has no words in any case
                scores[i, j] += rarity * times / (times + k1 * (1 - b + b * length))
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
def test_scores_follow_the_formula(bench: ModuleType, k1: float, b: float) -> None:
    scores = bench.scores(QUERIES, CODES, k1=k1, b=b)
    expected = restate_scores([bench.words(q) for q in QUERIES], [bench.words(c) for c in CODES], k1, b)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert not scores[3:].any()
