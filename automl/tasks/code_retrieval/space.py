"""The space of code search: the encoders, their training, and attention in them.

Its study is the published comparison of two encoders (arXiv 1909.09436).
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import optuna

import backbones
from attention.spec import Placement
from automl.task.published_study import read_studies
from automl.tasks.code_retrieval import CodeModel, RetrievalTraining
from search import choices
from search.config import TrialConfig
from search.grid import SMALL, grid
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

TASK = "code-retrieval"
BASELINE_ENCODER = "selfattention"
ENCODERS = (BASELINE_ENCODER, "cnn-selfattention", "cnn", "bow")
POOLING = ("weighted_mean", "mean", "max", "first", "bert")
POSITIONS = ("learned", "sinusoidal")

# The encoders are as published: their default options are CodeSearchNet's. The training differs: a batch of
# 1,000 pairs needs more functions than a user's folder has, and the learning rate depends on the batch.
# `shared` differs, too: two encoders learn the meaning of each word separately, and some thousand pairs are
# too few for that.
PUBLISHED: Mapping[str, Any] = {
    "modules": 0,
    "pooling": "weighted_mean",
    "positions": "learned",
    "shared": True,
    "dropout": 0.1,
    "loss": "softmax",
    "similarity": "cosine",
    "temperature": 0.05,
    "learning_rate": 2e-3,
    "weight_decay": 1e-2,
    "batch_size": 128,
}
BASELINE: Mapping[str, Any] = {"encoder": BASELINE_ENCODER, **PUBLISHED}
PLAIN: Mapping[str, Any] = {"encoder": BASELINE_ENCODER, "modules": 0}


def published() -> Sequence[Mapping[str, Any]]:
    """Return the published encoders, self-attention and CNN with self-attention; then all kinds.

    The kinds are those of arXiv 1909.09436, section 4. Published ones have two encoders; the others share one
    encoder for queries and code, like the baseline.
    """
    separate = [{"encoder": encoder, **PUBLISHED, "shared": False} for encoder in ENCODERS[:2]]
    bow = {"encoder": "bow", **{name: value for name, value in PUBLISHED.items() if name != "positions"}}
    others = [{"encoder": encoder, **PUBLISHED} for encoder in ("cnn-selfattention", "cnn")]
    return [*separate, *others, bow]


def codesearch(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw one of four kinds of encoders, and up to three modules after or instead of its layers."""
    encoder = trial.suggest_categorical("encoder", ENCODERS)
    options: dict[str, Any] = {
        "pooling": trial.suggest_categorical("pooling", POOLING),
        "dropout": round(trial.suggest_float("dropout", 0.0, 0.3, step=0.05), 2),
    }
    placement: Placement = {}
    if encoder == "bow":
        trial.suggest_int("modules", 0, 0)
    else:
        options["positions"] = trial.suggest_categorical("positions", POSITIONS)
        placement = choices.placement(trial, _sites(encoder), prefix=f"{encoder}.", kinds=kinds)
    loss = trial.suggest_categorical("loss", ["softmax", "hinge"])
    loss_options: dict[str, Any] = {}
    if loss == "softmax":
        loss_options["temperature"] = trial.suggest_float("temperature", 0.02, 0.2, log=True)
    else:
        loss_options["margin"] = round(trial.suggest_float("margin", 0.1, 1.0, step=0.1), 1)
    return TrialConfig(
        task=TASK,
        model=CodeModel(
            backbone=encoder,
            options=options,
            placement=placement,
            shared=trial.suggest_categorical("shared", [False, True]),
        ),
        training=RetrievalTraining(
            epochs=4,
            batch_size=trial.suggest_categorical("batch_size", [64, 128, 256]),
            learning_rate=trial.suggest_float("learning_rate", 2e-4, 2e-2, log=True),
            weight_decay=trial.suggest_float("weight_decay", 1e-4, 3e-1, log=True),
            loss=loss,  # type: ignore[arg-type]
            similarity=trial.suggest_categorical("similarity", ["cosine", "dot"]),  # type: ignore[arg-type]
            **loss_options,
        ),
    )


def as_selfattention(config: TrialConfig) -> TrialConfig:
    """Return the configuration with the plain baseline encoder and those options that it has."""
    from automl.tasks.code_retrieval.model import ENCODERS  # imports torch, which takes seconds

    known = ENCODERS[BASELINE_ENCODER].options
    options = {name: value for name, value in config.model.options.items() if name in known}
    return config.change(model={"backbone": BASELINE_ENCODER, "options": options, "placement": {}})


@cache
def _sites(encoder: str) -> list["Site"]:
    import torch  # takes seconds

    from automl.tasks.code_retrieval.model import ENCODERS

    example = (torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.bool))
    return backbones.sites(ENCODERS[encoder].build(vocabulary=2, length=8), example)


SPACES = (
    Space(
        name="codesearch",
        draw=codesearch,
        baseline=BASELINE,
        free=published,
        plain=PLAIN,
        as_baseline=as_selfattention,
        summary="encoders of queries and code, and attention in them; --data FOLDER of source code",
    ),
)

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
COMPARED: Mapping[str, str] = {"Self Attn": "selfattention", "CNN Self Attn": "cnn-selfattention"}


def _encoders(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw one of two encoders: in batches of 1,000 as published, or small batches and one encoder."""
    backbone = COMPARED[trial.suggest_categorical("encoder", list(COMPARED))]
    training = RetrievalTraining(epochs=4, batch_size=64, learning_rate=2e-3) if small else CODESEARCHNET
    model = CodeModel(backbone=backbone, options={"pooling": "weighted_mean"}, shared=small)
    return TrialConfig(task=TASK, model=model, training=training)


GRIDS = tuple(
    grid(f"codesearch-encoders{form}", partial(_encoders, small=bool(form)), {"encoder": "Self Attn"})
    for form in ("", SMALL)
)
STUDIES = read_studies(__file__)
