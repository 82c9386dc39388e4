"""Language modelling: a causal decoder predicts the next token of a text, or of sequences of recall."""

from automl.tasks.language_modelling.config import LANGUAGE, LanguageData, LanguageModel, LanguageTraining
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=60,
    data=LanguageData,
    model=LanguageModel,
    training=LanguageTraining,
    metrics=LANGUAGE,
    task="automl.tasks.language_modelling.task:LanguageModelling",
    spaces=("automl.tasks.language_modelling.space",),
    detect="automl.tasks.language_modelling.data:is_text",
    guesses=True,
    space="hybrid",
    overview="automl.tasks.language_modelling.data.overview:summarise_text",
    models="automl.tasks.language_modelling.model:DECODERS",
    subject="automl.tasks.language_modelling.model:subject",
)

__all__ = ["LANGUAGE", "SPEC", "LanguageData", "LanguageModel", "LanguageTraining"]
