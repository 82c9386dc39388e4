"""Spaces of sensor sequences: LARNN's own, and where attention goes in a 1-D CNN."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import optuna

import backbones
from search import choices
from search.config import ClassificationTraining, Model, SequenceData, TrialConfig

if TYPE_CHECKING:
    from backbones.site import Site

TASK = "sequence-classification"
WIDTH = 0.5  # of the CNN

# The published search drew a number of epochs after which the rate falls; these are as far apart as matters.
SCHEDULES = ("step-6", "step-12", "step-25", "step-50")

# The centre of the published ranges, for the baseline and for the first LARNN.
CENTRE = {
    "learning_rate": 0.006,
    "weight_decay": 0.002,
    "schedule": "step-25",
    "dropout": 0.1,
    "hidden": 68,
}
LSTM: dict[str, Any] = {"backbone": "bilstm", **CENTRE}
LARNN: dict[str, Any] = {
    "backbone": "larnn",
    **CENTRE,
    "heads": 20,
    "window": 38,
    "mode": "residual",
    "positional": False,
}
PLAIN: dict[str, Any] = {"modules": 0, "learning_rate": 3e-3, "weight_decay": 1e-2, "label_smoothing": 0.1}


def ucihar(trial: optuna.Trial) -> TrialConfig:
    """LARNN as its code's search has it: G. Chevalier, train.py, HYPERPARAMETERS_SPACE.

    Three layers, residual, 100 epochs with batches of 256. The hidden size is rounded to a multiple of the
    heads. Weight decay is AdamW's here and the penalty of Adam there. The bidirectional residual LSTM with
    the same hyperparameters is the baseline.
    """
    backbone = trial.suggest_categorical("backbone", ["larnn", "bilstm"])
    training = ClassificationTraining(
        epochs=100,
        batch_size=256,
        learning_rate=trial.suggest_float("learning_rate", 0.004, 0.009, log=True),
        weight_decay=trial.suggest_float("weight_decay", 0.00055, 0.0073, log=True),
        schedule=trial.suggest_categorical("schedule", SCHEDULES),  # type: ignore[arg-type]
        label_smoothing=0.0,
    )
    options: dict[str, Any] = {
        "hidden": trial.suggest_int("hidden", 50, 92),
        "layers": 3,
        "dropout": round(trial.suggest_float("dropout", 0.05, 0.5), 3),
    }
    if backbone == "larnn":
        heads = trial.suggest_int("heads", 20, 40)
        options |= {
            "heads": heads,
            "hidden": max(1, round(options["hidden"] / heads)) * heads,
            "window": trial.suggest_int("window", 25, 100),
            "mode": trial.suggest_categorical("mode", ["residual", "layer"]),
            "positional": trial.suggest_categorical("positional", [False, True]),
        }
    model = _lstm(options) if backbone == "bilstm" else Model(backbone="larnn", options=options)
    return TrialConfig(task=TASK, data=SequenceData(source="ucihar"), model=model, training=training)


def as_lstm(config: TrialConfig) -> TrialConfig:
    """The bidirectional LSTM with a LARNN's hyperparameters, as far as it has them."""
    if config.model.backbone == "bilstm":
        return config
    return config.change(model=_lstm(config.model.options))


def _lstm(options: Mapping[str, Any]) -> Model:
    size = {"hidden": options["hidden"] + options["hidden"] % 2}  # half for each direction
    return Model(backbone="bilstm", options={**size, **{key: options[key] for key in ("layers", "dropout")}})


@cache
def _sites() -> list["Site"]:
    import torch  # takes seconds

    model = backbones.build("resnet1d", classes=2, in_channels=9, width=WIDTH)
    return backbones.sites(model, torch.empty(1, 9, 128))


def sensors(trial: optuna.Trial) -> TrialConfig:
    """Up to three attentions of any type in a residual 1-D CNN."""
    return TrialConfig(
        task=TASK,
        data=SequenceData(source="ucihar"),
        model=Model(
            backbone="resnet1d",
            options={"width": WIDTH},
            placement=choices.placement(trial, _sites()),
        ),
        training=ClassificationTraining(
            epochs=30,
            batch_size=64,
            learning_rate=trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
            weight_decay=trial.suggest_float("weight_decay", 1e-4, 3e-1, log=True),
            label_smoothing=round(trial.suggest_float("label_smoothing", 0.0, 0.2, step=0.05), 2),
        ),
    )
