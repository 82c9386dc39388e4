"""Code search: functions by their docstrings."""

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
    map_reader="automl.tasks.code_retrieval.maps:READER",
    drawn=True,
    task="automl.tasks.code_retrieval.task:CodeRetrieval",
    spaces=("automl.tasks.code_retrieval.space",),
    detect="automl.tasks.code_retrieval.data:is_code",
    as_text="language-modelling",
    space="codesearch",
    overview="automl.tasks.code_retrieval.data.overview:summarise_code",
    published="automl.tasks.code_retrieval.published:DATASETS",
    models="automl.tasks.code_retrieval.model:ENCODERS",
    subject="automl.tasks.code_retrieval.model:subject",
    studies="automl.tasks.code_retrieval.study:STUDIES",
    grids="automl.tasks.code_retrieval.study:GRIDS",
)

__all__ = ["MRR", "SPEC", "CodeData", "CodeModel", "RetrievalTraining", "Similarity"]
