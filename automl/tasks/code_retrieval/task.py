"""Code search: finds a function by its docstring, with the vectors of two encoders.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.serialise import to_json
from automl.config.runtime import Runtime
from automl.task.base import EvaluationBatch, Inputs, RecordTask
from automl.task.deployment import Deployment, read_usage, spread_indices
from automl.task.task_data import ShownInputs, Split
from automl.tasks.code_retrieval import SPEC, CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.data import CodeTexts, open_texts, shared_name
from automl.tasks.code_retrieval.data.tokenizer import PADDING, UNKNOWN, Ragged
from automl.tasks.code_retrieval.deploy import CODE, INPUT, PRODUCTS, QUERY, encoder_deployment
from automl.tasks.code_retrieval.model import ENCODERS, Texts, TwoTowers, check_encoder
from automl.tasks.code_retrieval.score import (
    CODES,
    QUERIES,
    RetrievalEvaluator,
    RetrievalSplit,
    chance_mrr,
    similarity_vectors,
)
from backbones import call
from search.config import TrialConfig
from search.metric import Chance

PARTS = 8  # groups of a batch by length, which keep padding short
LEAST = 16  # smallest number of pairs in such a group
EVALUATED = 256  # texts that are encoded at once
NAMES = ("name", "unnamed")  # kinds of texts that only the test split evaluates


class CodeRetrieval(RecordTask[CodeData, CodeModel, RetrievalTraining]):
    """Retrieval of functions by docstrings.

    Its metrics are those of `RetrievalEvaluator`, the primary one `mrr`. In validation the corpus is that of
    the split's functions, and names are no queries, which keeps an epoch short. In test it is all functions
    of all splits.
    """

    spec = SPEC
    noun = "documented functions"

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.texts = self.records(config)
        self.batch_size = self.shared_batch_size()

    def size(self, split: Split) -> int:
        return len(self.texts.documented_rows(split))

    @classmethod
    def records(cls, config: TrialConfig) -> CodeTexts:
        data = cls.data_of(config)
        return open_texts(data.path, vocabulary=data.vocabulary, subset=data.subset)

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str:
        return shared_name(config.data.path)

    def model(self) -> nn.Module:
        return self.placed(self._plain, lambda: self._example(2, "cpu"), to_json(self.data))

    def _plain(self) -> TwoTowers:
        code = self._encoder(max(self.data.code_length, self.data.query_length))
        return TwoTowers(code if self.chosen.shared else self._encoder(self.data.query_length), code)

    def _encoder(self, length: int) -> nn.Module:
        record = ENCODERS[self.chosen.backbone]
        return record.build(vocabulary=len(self.texts.tokenizer), length=length, **self.chosen.options)

    def batches(self, epoch: int) -> Iterator[tuple[Texts, Texts]]:
        """Yield this worker's pairs of docstrings and code, in a common order by similar code length."""
        rows = self.texts.documented_rows("train")
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(rows))
        for batch in order[: self.steps() * self.batch_size].reshape(-1, self.batch_size):
            own = rows[self.runtime.shard(torch.from_numpy(batch)).numpy()]
            own = own[self.texts.texts["code"].lengths[own].argsort(kind="stable")]
            groups = np.array_split(own, max(1, min(PARTS, len(own) // LEAST)))
            yield (
                [self._texts("docstring", group) for group in groups],
                [self._texts("code", group) for group in groups],
            )

    def example(self, count: int) -> Inputs:
        return self._example(count, self.runtime.device)

    def _example(self, count: int, device: torch.device | str) -> Inputs:
        """Return code of mean length."""
        lengths = self.texts.texts["code"].lengths[self.texts.documented_rows("train")]
        shape = (count, max(2, round(float(np.minimum(lengths, self.data.code_length).mean()))))
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        return {"code": [(tokens, torch.ones(shape, dtype=torch.bool, device=device))]}

    def loss(self, model: nn.Module, batch: tuple[Texts, Texts]) -> Tensor:
        queries, codes = (similarity_vectors(v, self.training.similarity) for v in call(model, batch))
        with torch.autocast(self.runtime.device.type, enabled=False):
            first = self.runtime.rank * len(queries)
            if self.runtime.workers > 1:  # other workers' code also counts as wrong answers
                codes = torch.cat(list(collectives.all_gather(codes)))
            own = torch.arange(first, first + len(queries), device=codes.device)
            scores = queries @ codes.T
            if self.training.loss == "softmax":
                return F.cross_entropy(scores / self.training.temperature, own)
            mine = scores.gather(1, own[:, None])
            over = (self.training.margin - mine + scores).relu()
            return over.scatter(1, own[:, None], 0.0).sum() / (len(queries) * (len(codes) - 1))

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        retrieval, texts = self._retrieval_split(split), self.texts.texts
        for kind in (*QUERIES, *CODES):
            if kind in NAMES and split != "test":
                continue
            if kind == "real":
                source, rows = self.texts.real_query_tokens(split), np.arange(len(retrieval.real))
            else:
                source, rows = texts[kind], retrieval.candidates if kind == "code" else retrieval.documented
            own = self.runtime.shard(torch.from_numpy(rows)).numpy()
            own = own[source.lengths[own].argsort(kind="stable")]
            for numbers_of_batch in np.array_split(own, -(-len(own) // EVALUATED)) if len(own) else ():
                numbers = torch.from_numpy(numbers_of_batch).to(self.runtime.device)
                encoder = "query" if kind in QUERIES else "code"
                yield EvaluationBatch(
                    numbers, {encoder: [self._padded(source, kind, numbers_of_batch)]}, (kind, numbers)
                )

    def evaluator(self, split: Split) -> RetrievalEvaluator:
        return RetrievalEvaluator(self._retrieval_split(split), self.training.similarity)

    def chance(self, split: Split) -> Chance:
        return chance_mrr(self.size(split))

    def _retrieval_split(self, split: Split) -> RetrievalSplit:
        texts = self.texts
        everything = np.arange(len(texts.file.split))
        return RetrievalSplit(
            documented=texts.documented_rows(split),
            candidates=everything if split == "test" else texts.rows(split),
            real=np.array([query.answer for query in texts.real_queries(split)], np.int64),
        )

    def _texts(self, kind: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._padded(self.texts.texts[kind], kind, rows)

    def _padded(self, source: Ragged, kind: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        length = self.data.query_length if kind in QUERIES else self.data.code_length
        tokens, mask = source.pad(rows, length)
        device = self.runtime.device
        return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        """Return the graphs `query` and `code`, each from tokens `(N, T)` to vectors `(N, D)`."""
        assert isinstance(model, TwoTowers)
        tokenizer, similarity = self.texts.tokenizer.content, self.training.similarity
        return {
            QUERY: encoder_deployment(model.query, tokenizer, self.data.query_length, similarity),
            CODE: encoder_deployment(model.code, tokenizer, self.data.code_length, similarity),
        }

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        chosen = self._deployable(split, count)
        return {
            graph: {INPUT: self._texts(kind, chosen)[0]}
            for graph, kind in ((QUERY, "docstring"), (CODE, "code"))
        }

    def shown_inputs(self, count: int) -> ShownInputs:
        rows = self._deployable("test", count)
        tokens, mask = self._texts("code", rows)
        functions = [self.texts.functions[row] for row in rows]
        return ShownInputs(
            inputs={"code": [(tokens, mask)]},
            pictures=[
                self.texts.tokenizer.names(row[real].tolist()) for row, real in zip(tokens, mask, strict=True)
            ],
            names=[function.name for function in functions],
            padded=tokens.shape[1],
        )

    def _deployable(self, split: Split, count: int) -> np.ndarray:
        """Return up to `count` documented functions of a split in whose texts the model knows a word."""
        rows = self.texts.documented_rows(split)
        for kind in ("docstring", "code"):
            rows = rows[(self._texts(kind, rows)[0] > UNKNOWN).any(1).cpu().numpy()]
        chosen: np.ndarray = rows[spread_indices(len(rows), count).numpy()]
        return chosen

    def usage(self) -> str:
        return read_usage(__file__).format(
            padding=PADDING,
            query_length=self.data.query_length,
            code_length=self.data.code_length,
            channels=check_encoder(self.chosen.backbone, self.chosen.options).hidden,
            products=PRODUCTS[self.training.similarity],
        )
