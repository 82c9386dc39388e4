"""Metrics of retrieval with one right answer per query, over batches and workers.

The rank of an answer is the number of candidates that do not score below it, including itself. So a tie
counts against it, and so does a NaN.

mrr: the mean of 1 / rank (E. Voorhees, The TREC-8 Question Answering Track Report (1999)).
recall_at_k: the fraction of queries whose answer is among the first k.
ndcg: the mean of 1 / log2(1 + rank), which for one right answer is the normalised discounted cumulative gain
(K. Jarvelin, J. Kekalainen, Cumulated gain-based evaluation of IR techniques (2002)).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from automl.task.evaluator import Evaluator
from automl.tasks.code_retrieval import Similarity
from search.metric import Chance

CANDIDATES = 1000  # candidates per query, as in arXiv 1909.09436, section 4
RECALLS = (1, 5, 10)
BATCH = 1024  # queries that are scored against the whole corpus at once


def compute_ranks(scores: Tensor, answers: Tensor) -> Tensor:
    """Return ranks from 1, int64 `(Q,)`, from scores `(Q, N)` and the column of each answer, int64 `(Q,)`."""
    return (~(scores < scores.gather(1, answers[:, None]))).sum(1)


def ranks_among(queries: Tensor, codes: Tensor, own: Tensor) -> Tensor:
    """Return the ranks of queries `(Q, D)` among all vectors `(N, D)`, whose rows `own` are the answers."""
    ranks = [
        compute_ranks(batch @ codes.T, answers)
        for batch, answers in zip(queries.split(BATCH), own.split(BATCH), strict=True)
    ]
    return torch.cat(ranks) if ranks else own.new_zeros(0)


def draw_distractors(count: int, *, candidates: int = CANDIDATES) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of `candidates` of `count` queries with their answers, in random order.

    Each batch holds the numbers of the queries, int64 `(Q,)`, and of the candidates, `(min(candidates,
    count),)`, which begin with the queries' own. The last batch is filled with answers to other queries, so
    that every query has the same number of candidates.
    """
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    for queries in order.split(candidates):
        missing = min(candidates, count) - len(queries)
        yield queries, torch.cat([queries, order[:missing]])


def ranks_at(queries: Tensor, codes: Tensor, *, candidates: int = CANDIDATES) -> Tensor:
    """Return the rank of each pair `(N, D)` and `(N, D)` among `distractors`, int64 `(N,)`."""
    ranks = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    for numbers, among in draw_distractors(len(queries), candidates=candidates):
        answers = torch.arange(len(numbers), device=queries.device)
        ranks[numbers.to(queries.device)] = compute_ranks(queries[numbers] @ codes[among].T, answers)
    return ranks


def mrr(ranks: Tensor) -> Tensor:
    """Return the mean reciprocal rank of ranks `(Q,)`."""
    return (1 / ranks.double()).mean()


def rank_metrics(ranks: Tensor) -> dict[str, Tensor]:
    """Return all metrics of ranks `(Q,)`."""
    recalls = {f"recall_at_{k}": (ranks <= k).double().mean() for k in RECALLS}
    return {"mrr": mrr(ranks), **recalls, "ndcg": (1 / (1 + ranks.double()).log2()).mean()}


def chance_mrr(queries: int) -> Chance:
    """Return the MRR of a random order, for `queries` that are ranked among at most CANDIDATES."""
    each = 1 / np.arange(1, min(queries, CANDIDATES) + 1)
    return Chance(value=each.mean(), error=each.std() / queries**0.5, step=1 / queries)


# Kinds of texts, by the encoder that takes them.
QUERIES, CODES = ("docstring", "real", "name"), ("code", "unnamed")
Vectors = dict[str, list[tuple[Tensor, Tensor]]]  # for each kind: numbers (B,) and vectors (B, D) of batches


@dataclass(frozen=True, kw_only=True)
class RetrievalSplit:
    """Queries and candidates of a split, as numbers of functions.

    Attributes:
        documented: The functions whose docstrings are queries, int64 `(Q,)`.
        candidates: All functions of the corpus, including the documented ones, int64 `(N,)`.
        real: The answers to real queries, int64 `(R,)`.
    """

    documented: np.ndarray
    candidates: np.ndarray
    real: np.ndarray


class RetrievalEvaluator(Evaluator):
    """Evaluator of docstrings as queries among 1,000 functions.

    The metrics are `mrr`, `recall_at_1`, `recall_at_5`, `recall_at_10` and `ndcg`. `mrr_corpus` and
    `mrr_real` are those of docstrings and of real queries among all candidates, the latter if there are real
    queries. `mrr_names` is the MRR of names of functions, if they are queries, among 1,000 functions whose
    code lacks the names.
    """

    def __init__(self, split: RetrievalSplit, similarity: Similarity) -> None:
        self.split, self.similarity = split, similarity
        self.vectors: Vectors = {}
        self.ranks = torch.zeros(0, dtype=torch.int64)

    def update(self, outputs: tuple[Tensor | None, Tensor | None], targets: tuple[str, Tensor]) -> None:
        """Add vectors of queries or of code, `(B, D)`, with their kind and their numbers `(B,)`."""
        kind, numbers = targets
        vectors = outputs[0 if kind in QUERIES else 1]
        assert vectors is not None, kind
        self.vectors.setdefault(kind, []).append((numbers, similarity_vectors(vectors, self.similarity)))

    @torch.inference_mode()
    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        vectors = {}  # of each kind, of all workers, ordered by number
        for kind, parts in self.vectors.items():
            numbers, own = (torch.cat(list(batches)) for batches in zip(*parts, strict=True))
            device = own.device
            if runtime.workers > 1:
                gathered = runtime.gather((numbers.cpu(), own.cpu()))
                numbers, own = (torch.cat(list(batches)) for batches in zip(*gathered, strict=True))
            vectors[kind] = own[numbers.argsort()].to(device)
        with torch.autocast(vectors["code"].device.type, enabled=False):
            return self._metrics(vectors)

    def _metrics(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        queries, codes = vectors["docstring"], vectors["code"]
        own = self._rows(self.split.documented, codes.device)
        self.ranks = ranks_at(queries, codes[own])
        metrics = rank_metrics(self.ranks)
        metrics["mrr_corpus"] = mrr(ranks_among(queries, codes, own))
        if "name" in vectors:
            metrics["mrr_names"] = mrr(ranks_at(vectors["name"], vectors["unnamed"]))
        if "real" in vectors:
            real = self._rows(self.split.real, codes.device)
            metrics["mrr_real"] = mrr(ranks_among(vectors["real"], codes, real))
        return metrics

    def _rows(self, numbers: np.ndarray, device: torch.device) -> Tensor:
        """Return the positions of functions among the candidates."""
        return torch.from_numpy(np.searchsorted(self.split.candidates, numbers)).to(device)

    def answers(self, runtime: Runtime) -> Answers:
        return Answers(values=1 / self.ranks.cpu().numpy())


def similarity_vectors(vectors: Tensor, similarity: Similarity) -> Tensor:
    """Return vectors `(B, D)` in float32 whose products are the similarities."""
    vectors = vectors.float()
    return torch.nn.functional.normalize(vectors, dim=1) if similarity == "cosine" else vectors
