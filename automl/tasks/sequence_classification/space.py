"""Spaces of sensor sequences: the two published searches of LARNN, and attention in a 1-D CNN."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

import backbones
from automl.tasks.sequence_classification import SequenceData
from search import choices
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

TASK = "sequence-classification"
WIDTH = 0.5  # of the CNN

PLAIN = choices.plain(learning_rate=3e-3, weight_decay=1e-2, label_smoothing=0.1)

# Activations and norms of the author's code, see automl.tasks.sequence_classification.larnn.backbone.
FORM: dict[str, Any] = {"activation": "all", "norm": "all"}


def log_range(centre: float, spread: float) -> tuple[float, float]:
    """Return the ends of `centre * e**x` for x between -`spread` and `spread`."""
    return centre * exp(-spread), centre * exp(spread)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One of the two searches of LARNN's author, a record of `rounds.toml`.

    learning_rate, weight_decay and hidden are drawn from log-uniform distributions, like hyperopt's
    `loguniform`, and dropout from a uniform one. decay_every, heads and window are integers with equal
    probabilities: the author's `quniform(a - 0.499, b + 0.499, 1)`. For the window it is `uniform(a, b)`,
    which is truncated, so that b - 1 is the largest. activation, layers and residual are categories.

    Attributes:
        trials: Its trials, by the author's result files.
        accuracy: The accuracy of the best trial on the test split of UCI HAR [%].
        baseline: The parameters of an LSTM in the middle of the ranges.
        best: The parameters of the author's best trial.
    """

    ordinal: str
    trials: int
    epochs: int
    accuracy: str
    learning_rate: tuple[float, float]
    weight_decay: tuple[float, float]
    decay_every: tuple[int, int]
    hidden: tuple[float, float]
    heads: tuple[int, int]
    window: tuple[int, int]
    activation: Sequence[bool]
    layers: Sequence[int]
    residual: Sequence[bool]
    baseline: Mapping[str, Any]
    best: Mapping[str, Any]


_RECORDS = tomllib.loads(Path(__file__).with_name("rounds.toml").read_text())
ROUNDS = {name: Round(**record) for name, record in _RECORDS.items()}
DROPOUT = (0.05, 0.5)


def larnn(trial: optuna.Trial) -> TrialConfig:
    """Draw from LARNN's first search, as in its README. `ucihar` is the second search.

    Source: G. Chevalier, LARNN: Linear Attention Recurrent Neural Network (2018), arXiv 1808.05578,
    HYPERPARAMETERS_SPACE of its README. The hidden size is rounded to a multiple of the heads, as there. The
    query, the input and the output of the attention always have an ELU, as in its code. The baseline is the
    bidirectional LSTM with the same hyperparameters.
    """
    return _draw(trial, ROUNDS["larnn"])


def ucihar(trial: optuna.Trial) -> TrialConfig:
    """Draw from LARNN's second search, of 100 epochs, as in its code. `larnn` is the first search.

    Source: G. Chevalier, HYPERPARAMETERS_SPACE of train.py. The layers (three), the residual connections and
    the activation of keys and values (both on) are fixed. Otherwise like `larnn`.
    """
    return _draw(trial, ROUNDS["ucihar"])


def _draw(trial: optuna.Trial, ranges: Round) -> TrialConfig:
    backbone = trial.suggest_categorical("backbone", ["larnn", "bilstm"])
    training = ClassificationTraining(
        epochs=ranges.epochs,
        batch_size=256,
        optimizer="adam",
        learning_rate=trial.suggest_float("learning_rate", *log_range(*ranges.learning_rate), log=True),
        weight_decay=trial.suggest_float("weight_decay", *log_range(*ranges.weight_decay), log=True),
        decayed="all",
        beta2=0.999,
        eps=1e-8,
        schedule="step",
        decay_every=trial.suggest_int("decay_every", *ranges.decay_every),
        label_smoothing=0.0,
    )
    hidden = trial.suggest_float("hidden", *log_range(*ranges.hidden), log=True)
    options: dict[str, Any] = {
        "hidden": round(hidden),
        "layers": _choose(trial, "layers", ranges.layers),
        "dropout": trial.suggest_float("dropout", *DROPOUT),
    }
    if backbone == "larnn":
        heads = trial.suggest_int("heads", *ranges.heads)
        options |= {
            "heads": heads,
            "hidden": max(1, round(hidden / heads)) * heads,
            "window": trial.suggest_int("window", *ranges.window),
            "mode": trial.suggest_categorical("mode", ["residual", "layer"]),
            "positional": trial.suggest_categorical("positional", [False, True]),
            "activation_on_keys_and_values": _choose(trial, "activation", ranges.activation),
            "residual": _choose(trial, "residual", ranges.residual),
            **FORM,
        }
    model = _lstm(options) if backbone == "bilstm" else Model(backbone="larnn", options=options)
    return TrialConfig(task=TASK, data=SequenceData(source="ucihar"), model=model, training=training)


def _choose(trial: optuna.Trial, name: str, choices: Sequence[Any]) -> Any:
    """Draw a category. A single one is no parameter of the trial."""
    return choices[0] if len(choices) == 1 else trial.suggest_categorical(name, choices)


def as_lstm(config: TrialConfig) -> TrialConfig:
    """Return the configuration with a bidirectional LSTM of the hyperparameters that both models have."""
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


def sensors(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw up to three modules of any type in a residual 1-D CNN."""
    return TrialConfig(
        task=TASK,
        data=SequenceData(source="ucihar"),
        model=Model(
            backbone="resnet1d",
            options={"width": WIDTH},
            placement=choices.placement(trial, _sites(), kinds=kinds),
        ),
        training=ClassificationTraining(
            epochs=30,
            batch_size=64,
            learning_rate=trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
            weight_decay=trial.suggest_float("weight_decay", 1e-4, 3e-1, log=True),
            label_smoothing=round(trial.suggest_float("label_smoothing", 0.0, 0.2, step=0.05), 2),
        ),
    )


SPACES = (
    *(
        Space(
            name=name,
            draw=draw,
            baseline=ROUNDS[name].baseline,
            free=lambda name=name: [ROUNDS[name].best],  # type: ignore[misc]
            plain={"backbone": "bilstm"},
            as_baseline=as_lstm,
            summary=f"LARNN's {ROUNDS[name].ordinal} published search, {ROUNDS[name].epochs} epochs; "
            "UCI HAR or --data",
        )
        for name, draw in (("larnn", larnn), ("ucihar", ucihar))
    ),
    Space(
        name="sensors",
        draw=sensors,
        baseline=PLAIN,
        free=lambda: choices.free(_sites(), baseline=PLAIN),
        summary="attention in a residual 1-D CNN on sequences of sensors; UCI HAR or --data",
    ),
)
