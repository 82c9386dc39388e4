"""Code search: functions by their docstrings.

config  Configuration of code retrieval
data    Functions of source code and their queries: reading, cleaning, splits and tokens
deploy  Deployment of the two encoders of code search: a graph of each, from sub-tokens to vectors
index   The index of a folder of code: a vector of each function, by an exported encoder
layers  Layers of the encoders of texts: self-attention, convolutions, and pooling to one vector
model   The encoders of text and their options, and two of them whose vectors are compared
score   Metrics of retrieval with one right answer per query, over batches and workers
search  Search a folder of code with an exported model, and read functions for its attention maps
space   The space of code search, and the published comparison of two encoders
task    Code search: finds a function by its docstring, with the vectors of two encoders
"""

from dataclasses import replace

from automl.tasks.code_retrieval.config import MRR, CodeData, CodeModel, RetrievalTraining, Similarity
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=30,
    data=CodeData,
    model=CodeModel,
    training=RetrievalTraining,
    metrics=(MRR,),
    tabled=(MRR, replace(MRR, name="mrr_names")),
    map_reader="automl.tasks.code_retrieval.search:READER",
    drawn=True,
    task="automl.tasks.code_retrieval.task:CodeRetrieval",
    spaces=("automl.tasks.code_retrieval.space",),
    detect="automl.tasks.code_retrieval.data:is_code",
    as_text="language-modelling",
    space="codesearch",
    overview="automl.tasks.code_retrieval.data.overview:summarise_code",
    published="automl.tasks.code_retrieval.data.published:DATASETS",
    models="automl.tasks.code_retrieval.model:ENCODERS",
    subject="automl.tasks.code_retrieval.model:subject",
    studies="automl.tasks.code_retrieval.space:STUDIES",
    grids="automl.tasks.code_retrieval.space:GRIDS",
)

__all__ = ["MRR", "SPEC", "CodeData", "CodeModel", "RetrievalTraining", "Similarity"]
