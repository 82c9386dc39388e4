"""The published comparison of two encoders of code search (arXiv 1909.09436)."""

from collections.abc import Mapping
from functools import partial

import optuna

from automl.tasks.code_retrieval import CodeModel, RetrievalTraining, space
from automl.tasks.published_study import read_studies
from search.config import TrialConfig
from search.grid import SMALL, grid

# Like CodeSearchNet's code, with a constant learning rate, but with fewer epochs.
CODESEARCHNET = RetrievalTraining(
    epochs=30,
    batch_size=1000,
    optimizer="adam",
    learning_rate=5e-4,
    weight_decay=0.0,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    schedule="step",
    decay_factor=1.0,
    clip=1.0,
    similarity="dot",
    temperature=1.0,
)
ENCODERS: Mapping[str, str] = {"Self Attn": "selfattention", "CNN Self Attn": "cnn-selfattention"}


def _encoders(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw one of two encoders: in batches of 1,000 as published, or small batches and one encoder."""
    backbone = ENCODERS[trial.suggest_categorical("encoder", list(ENCODERS))]
    training = RetrievalTraining(epochs=4, batch_size=64, learning_rate=2e-3) if small else CODESEARCHNET
    model = CodeModel(backbone=backbone, options={"pooling": "weighted_mean"}, shared=small)
    return TrialConfig(task=space.TASK, model=model, training=training)


GRIDS = tuple(
    grid(f"codesearch-encoders{form}", partial(_encoders, small=bool(form)), {"encoder": "Self Attn"})
    for form in ("", SMALL)
)
STUDIES = read_studies(__file__)
