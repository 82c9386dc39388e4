"""Language modelling: a causal decoder predicts the next token of a text, or of sequences of recall.

config        Configuration of language modelling
data          Text for language models, and sequences of associative recall
deploy        Deployment of a causal decoder: its graphs, with a state or without, their usage and its speed
gpt           A decoder for causal language models, from tokens to logits; sizes of decoders
hugging_face  Causal language models of Hugging Face, from a local folder or by name: `hf:FOLDER`, `hf:NAME`
needles       Recall of planted facts, at the length of the training and at up to eight times that length
model         The causal language models: the built-in decoder, and those of Hugging Face by the prefix `hf:`
score         Metrics of predicted tokens, over batches and workers
space         Spaces of hybrid decoders: the mixer of each layer
task          Language modelling: a causal decoder predicts the next token
transformers_folder  A trained decoder in the format of transformers
transformers_layers  Layers of transformers that compute what mixers of decoders compute
transformers_tokenizer  Tokenizer of a decoder in the format of transformers
"""

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
    overview="automl.tasks.language_modelling.data.windows:summarise_text",
    models="automl.tasks.language_modelling.model:DECODERS",
    subject="automl.tasks.language_modelling.model:subject",
)

__all__ = ["LANGUAGE", "SPEC", "LanguageData", "LanguageModel", "LanguageTraining"]
