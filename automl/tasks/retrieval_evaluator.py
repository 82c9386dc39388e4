"""From the vectors of queries and code to mean reciprocal ranks, over batches and workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from automl.config.runtime import Runtime
from automl.data.code import CodeTexts
from automl.storage.answers import Answers, Example, telling
from automl.tasks.evaluator import Evaluator
from automl.tasks.retrieval_metrics import distractors, mrr, rank_metrics, ranks_among, ranks_at
from search.config import Similarity

# Kinds of texts, by the encoder that takes them.
QUERIES, CODES = ("docstring", "real", "name"), ("code", "unnamed")
Vectors = dict[str, list[tuple[Tensor, Tensor]]]  # of each kind: numbers (B,) and vectors (B, D) in parts


@dataclass(frozen=True, kw_only=True)
class RetrievalSplit:
    """What is asked of a split, in numbers of functions.

    documented: those whose docstrings are queries, int64 `(Q,)`. candidates: all that are searched where the
    whole corpus is, int64 `(N,)`, the documented ones among them. real: answers to real ones, int64 `(R,)`.
    """

    documented: np.ndarray
    candidates: np.ndarray
    real: np.ndarray


class RetrievalEvaluator(Evaluator):
    """`mrr`, `recall_at_1`, `recall_at_5`, `recall_at_10` and `ndcg` of docstrings among 1,000 functions.

    mrr_corpus, mrr_real: of docstrings and of real queries, among all candidates; the latter where there are
    any. mrr_names: where names of functions are asked for, too, the MRR of these among 1,000 functions whose
    code is without them.

    texts: of the functions, for examples.
    """

    def __init__(self, asked: RetrievalSplit, similarity: Similarity, texts: CodeTexts) -> None:
        self.asked, self.similarity, self.texts = asked, similarity, texts
        self.vectors: Vectors = {}
        self.ranks = torch.zeros(0, dtype=torch.int64)

    def update(self, outputs: tuple[Tensor | None, Tensor | None], targets: tuple[str, Tensor]) -> None:
        """outputs: vectors of queries or of code, `(B, D)`. targets: their kind, and their numbers `(B,)`."""
        kind, numbers = targets
        vectors = outputs[0 if kind in QUERIES else 1]
        assert vectors is not None, kind
        self.vectors.setdefault(kind, []).append((numbers, similarity_vectors(vectors, self.similarity)))

    @torch.inference_mode()
    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        found = {kind: self._sorted(kind, runtime) for kind in self.vectors}
        with torch.autocast(found["code"].device.type, enabled=False):
            return self._metrics(found)

    def _metrics(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.queries, self.codes = found["docstring"], found["code"]
        self.own = self._rows(self.asked.documented)
        self.ranks = ranks_at(self.queries, self.codes[self.own])
        metrics = rank_metrics(self.ranks)
        metrics["mrr_corpus"] = mrr(ranks_among(self.queries, self.codes, self.own))
        if "name" in found:
            metrics["mrr_names"] = mrr(ranks_at(found["name"], found["unnamed"]))
        if "real" in found:
            metrics["mrr_real"] = mrr(ranks_among(found["real"], self.codes, self._rows(self.asked.real)))
        return metrics

    def _rows(self, numbers: np.ndarray) -> Tensor:
        """Where these functions are among the candidates."""
        return torch.from_numpy(np.searchsorted(self.asked.candidates, numbers)).to(self.codes.device)

    def _sorted(self, kind: str, runtime: Runtime) -> Tensor:
        """All vectors of a kind, of all workers, by their numbers."""
        numbers, vectors = (torch.cat(list(part)) for part in zip(*self.vectors[kind], strict=True))
        device = vectors.device
        if runtime.workers > 1:
            parts = runtime.gather((numbers.cpu(), vectors.cpu()))
            numbers, vectors = (torch.cat(list(part)) for part in zip(*parts, strict=True))
        return vectors[numbers.argsort()].to(device)

    def answers(self, runtime: Runtime) -> Answers:
        ranked = self.ranks.cpu().numpy()
        return Answers(values=1 / ranked, examples=[self._example(i) for i in telling(ranked)])

    def _example(self, i: int) -> Example:
        """The `i`-th query, and what came first among its candidates."""
        documented: Sequence[int] = self.asked.documented.tolist()
        among = next(group for asked, group in distractors(len(documented)) if (asked == i).any())
        scores = self.codes[self.own[among]] @ self.queries[i]
        wanted, first = documented[i], documented[int(among[int(scores.argmax())])]
        rank = int(self.ranks[i])
        return Example(
            query=self.texts.functions[wanted].query,
            wanted=self._place(wanted),
            rank=rank,
            first=self._place(wanted if rank == 1 else first),
        )

    def _place(self, number: int) -> str:
        function = self.texts.functions[number]
        return f"{function.name} ({function.location})"


def similarity_vectors(vectors: Tensor, similarity: Similarity) -> Tensor:
    """`(B, D)` so that products are the similarities, in float32."""
    vectors = vectors.float()
    return torch.nn.functional.normalize(vectors, dim=1) if similarity == "cosine" else vectors
