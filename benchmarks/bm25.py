"""Search code by words alone: BM25 (S. Robertson and H. Zaragoza (2009)), as bm25s implements it.

A learned code search has to beat this baseline. The words are those of the tokenizer, split at capitals and
underscores, without punctuation.
"""

from collections.abc import Sequence

import bm25s
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from automl.tasks.code_retrieval.data import Corpus
from automl.tasks.code_retrieval.data.tokenizer import train_tokenizer
from automl.tasks.code_retrieval.score import compute_ranks, draw_distractors, mrr, rank_metrics

K1, B = 1.2, 0.75  # Lucene's values, which are also the best of nine pairs on validation


SPLITTER = Tokenizer.from_str(train_tokenizer([], 2))  # splits texts as encoders do, and merges nothing


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case, without punctuation."""
    normal = SPLITTER.normalizer.normalize_str(text)
    return [word for word, _ in SPLITTER.pre_tokenizer.pre_tokenize_str(normal) if word.isalnum()]


def scores(
    queries: Sequence[str], codes: Sequence[str], *, k1: float = K1, b: float = B
) -> NDArray[np.float32]:
    """Return the score of each code for each query, float32 `(Q, N)`; 0 without a common word.

    Raises ValueError if no code has a word.
    """
    documents = [words(code) for code in codes]
    if not any(documents):
        raise ValueError(f"none of {len(codes)} codes has a word")
    index = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.index(documents, show_progress=False)
    result = np.zeros((len(queries), len(codes)), np.float32)
    for i, query in enumerate(queries):
        # bm25s fails on a query that has only unknown words.
        known = [word for word in words(query) if word in index.vocab_dict]
        if known:
            result[i] = index.get_scores(known)
    return result


def ranks_at(similarity: NDArray[np.float32], own: NDArray[np.int64]) -> torch.Tensor:
    """Return the rank of each query's answer among 1,000 candidates. own: the columns of the answers."""
    ranked = torch.zeros(len(own), dtype=torch.int64)
    for asked, among in draw_distractors(len(own)):
        block = torch.from_numpy(similarity[np.ix_(asked.numpy(), own[among.numpy()])])
        ranked[asked] = compute_ranks(block, torch.arange(len(asked)))
    return ranked


def measure(corpus: Corpus, split: str, *, k1: float = K1, b: float = B) -> dict[str, float]:
    """Return the metrics of `RetrievalEvaluator` except for names, and `mrr_real` if there are real queries.

    Words are weighted by their rarity in the whole corpus.
    """
    codes = [function.code for function in corpus.functions]
    own = np.array(corpus.documented_rows(split), np.int64)
    similarity = scores([corpus.functions[i].query for i in own], codes, k1=k1, b=b)
    values = {
        **{name: float(value) for name, value in rank_metrics(ranks_at(similarity, own)).items()},
        "mrr_corpus": float(mrr(compute_ranks(torch.from_numpy(similarity), torch.from_numpy(own)))),
    }
    if real := corpus.queries.get(split):
        similarity = scores([query.text for query in real], codes, k1=k1, b=b)
        answers = torch.tensor([query.answer for query in real])
        values["mrr_real"] = float(mrr(compute_ranks(torch.from_numpy(similarity), answers)))
    return values
