"""Code search: functions by their docstrings.

data    Functions of source code and their queries: reading, cleaning, splits and tokens
deploy  Deployment of the two encoders of code search: a graph of each, from sub-tokens to vectors
layers  Layers of the encoders of texts: self-attention, convolutions, and pooling to one vector
model   The encoders of text and their options, and two of them whose vectors are compared
score   Metrics of retrieval with one right answer per query, over batches and workers
search  Search a folder of code with an exported model
space   The space of code search, and the published comparison of two encoders
task    Code search: finds a function by its docstring, with the vectors of two encoders
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

from automl.base.errors import InputError
from search.config.sections import Data, Model, Training
from search.config.tasks import TaskSpec
from search.metric import Metric

RetrievalLoss = Literal["softmax", "hinge"]
Similarity = Literal["cosine", "dot"]

MRR = Metric(name="mrr", maximize=True, margin=0.01)  # the mean reciprocal rank, from 0 to 1


@dataclass(frozen=True, kw_only=True)
class CodeData(Data):
    """Functions of source code with their docstrings: CodeSearchNet's or CoSQA's files, or a folder of code.

    Attributes:
        vocabulary: The largest number of sub-tokens.
        query_length: The number of sub-tokens at which a query is cut.
        code_length: The number of sub-tokens at which code is cut.
    """

    source: str = "code"
    vocabulary: int = 10_000
    query_length: int = 30
    code_length: int = 200

    def problems(self) -> Iterator[str]:
        if not 100 <= self.vocabulary <= 1_000_000:
            yield f"data.vocabulary must lie between 100 and 1,000,000; got {self.vocabulary}"
        for name in ("query_length", "code_length"):
            if not 2 <= getattr(self, name) <= 1024:
                yield f"data.{name} must lie between 2 and 1024 sub-tokens; got {getattr(self, name)}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class CodeModel(Model):
    """An encoder of queries and one of code, both of the kind `backbone` with the same options.

    The placement is in the encoder of code.

    Attributes:
        shared: If True, one encoder with the placement encodes both.
    """

    backbone: str = "selfattention"
    shared: bool = False

    def problems(self) -> Iterator[str]:
        from automl.tasks.code_retrieval.model import check_encoder  # imports torch, which takes seconds

        try:
            check_encoder(self.backbone, self.options)
        except InputError as error:
            yield str(error)
        if self.weights:
            yield f"model.weights: text encoders start from new weights; got {self.weights!r}"


@dataclass(frozen=True, kw_only=True)
class RetrievalTraining(Training):
    """Training that moves each query nearer to its own code than to the other code in the batch.

    Attributes:
        loss: `softmax` is the cross-entropy of the similarities divided by `temperature`. `hinge` penalises
            other code whose similarity is less than `margin` below that of the query's own code.
        similarity: The similarity of two vectors.
    """

    loss: RetrievalLoss = "softmax"
    similarity: Similarity = "cosine"
    temperature: float = 0.05
    margin: float = 0.5

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("temperature", "margin"):
            if not (isfinite(value := getattr(self, name)) and value > 0):
                yield f"training.{name} must be above 0; got {value}"


SPEC = TaskSpec(
    order=30,
    data=CodeData,
    model=CodeModel,
    training=RetrievalTraining,
    metrics=(MRR,),
    tabled=(MRR, replace(MRR, name="mrr_names")),
    drawn=True,
    task="automl.tasks.code_retrieval.task:CodeRetrieval",
    spaces=("automl.tasks.code_retrieval.space",),
    detect="automl.tasks.code_retrieval.data:is_code",
    as_text="language-modelling",
    space="codesearch",
    overview="automl.tasks.code_retrieval.data.corpus:summarise_code",
    published="automl.tasks.code_retrieval.data.published:DATASETS",
    models="automl.tasks.code_retrieval.model:ENCODERS",
    subject="automl.tasks.code_retrieval.model:subject",
    studies="automl.tasks.code_retrieval.space:STUDIES",
    grids="automl.tasks.code_retrieval.space:GRIDS",
)

__all__ = ["MRR", "SPEC", "CodeData", "CodeModel", "RetrievalTraining", "Similarity"]
