"""Search in code by words alone: BM25 (S. Robertson and H. Zaragoza (2009)), as bm25s has it.

What a learned search in code is to beat. Words are those of the tokenizer, split at humps and underscores and
without signs.
"""

from collections.abc import Sequence

import bm25s
import numpy as np
import torch
from numpy.typing import NDArray

from automl.data.code import Corpus
from automl.data.code.tokenizer import split_words
from automl.tasks.retrieval_metrics import distractors, mrr, of_ranks, ranks

K1, B = 1.2, 0.75  # Lucene's, which are the best of nine pairs on validation, too


def words(text: str) -> list[str]:
    """In lower case, without signs."""
    return [word for word in split_words(text) if word.isalnum()]


def scores(
    queries: Sequence[str], codes: Sequence[str], *, k1: float = K1, b: float = B
) -> NDArray[np.float32]:
    """Of each query for each code, float32 `(Q, N)`; 0 where they have no word in common.

    Raises ValueError where no code has a word.
    """
    documents = [words(code) for code in codes]
    if not any(documents):
        raise ValueError(f"none of {len(codes)} codes has a word")
    index = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.index(documents, show_progress=False)
    found = np.zeros((len(queries), len(codes)), np.float32)
    for i, query in enumerate(queries):
        # What no code has would be an error where it is all that there is.
        known = [word for word in words(query) if word in index.vocab_dict]
        if known:
            found[i] = index.get_scores(known)
    return found


def ranks_at(found: NDArray[np.float32], own: NDArray[np.int64]) -> torch.Tensor:
    """Of each query among 1,000 candidates. found: of all codes. own: columns of the answers."""
    ranked = torch.zeros(len(own), dtype=torch.int64)
    for asked, among in distractors(len(own)):
        part = torch.from_numpy(found[np.ix_(asked.numpy(), own[among.numpy()])])
        ranked[asked] = ranks(part, torch.arange(len(asked)))
    return ranked


def measure(corpus: Corpus, split: str, *, k1: float = K1, b: float = B) -> dict[str, float]:
    """The metrics of `RetrievalEvaluator` but for names: `mrr_real` where there are real queries.

    Words are weighed by how rare they are in the whole corpus.
    """
    codes = [function.code for function in corpus.functions]
    own = np.array(corpus.documented(split), np.int64)
    found = scores([corpus.functions[i].query for i in own], codes, k1=k1, b=b)
    values = {
        **{name: float(value) for name, value in of_ranks(ranks_at(found, own)).items()},
        "mrr_corpus": float(mrr(ranks(torch.from_numpy(found), torch.from_numpy(own)))),
    }
    if real := corpus.queries.get(split):
        found = scores([query.text for query in real], codes, k1=k1, b=b)
        answers = torch.tensor([query.answer for query in real])
        values["mrr_real"] = float(mrr(ranks(torch.from_numpy(found), answers)))
    return values
