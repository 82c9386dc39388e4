"""Spaces that repeat published searches draw what their sources draw: bounds, scale and fixed values.

The sources name distributions of hyperopt 0.1. `quniform(a - 0.499, b + 0.499, 1)` is an integer from a to b
with equal probabilities. The source truncates the window, so that its upper end is not drawn.
"""

from functools import cache
from math import exp
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from search.config import TrialConfig
from search.space import SPACES

LARNN_FORM = {"activation": "all", "norm": "all"}


LARNN_TRAINING = {
    "batch_size": 256,
    "optimizer": "adam",
    "decayed": "all",
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "schedule": "step",
    "decay_factor": 0.75,
    "label_smoothing": 0.0,
    "clip": 0.0,
    "class_weights": "none",
}


OPTIONS: dict[str, dict[str, Any]] = {
    "larnn": LARNN_FORM,
    "ucihar": {"layers": 3, "residual": True, "activation_on_keys_and_values": True, **LARNN_FORM},
    "vit-published": {
        "embed_dim": 192,
        "depth": 12,
        "heads": 3,
        "mlp_ratio": 4.0,
        "patch_size": 12,
        "pool": "token",
    },
}


TRAINING: dict[str, dict[str, Any]] = {
    "larnn": {"epochs": 25, **LARNN_TRAINING},
    "ucihar": {"epochs": 100, **LARNN_TRAINING},
    "vit-published": {
        "epochs": 25,
        "learning_rate": 3e-4,
        "weight_decay": 0.01,
        "decayed": "all",
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "schedule": "cosine",
        "label_smoothing": 0.0,
        "mixup": 0.0,
        "cutmix": 0.0,
        "policy": "none",
        "erasing": 0.0,
        "layer_decay": 1.0,
        "average": 0.0,
    },
}


DRAWS = 200


def loguniform(low: float, high: float, times: float) -> FloatDistribution:
    return FloatDistribution(times * exp(low), times * exp(high), log=True)


NUMBERS: dict[str, dict[str, BaseDistribution]] = {
    # G. Chevalier, README.md: HYPERPARAMETERS_SPACE.
    "larnn": {
        "learning_rate": loguniform(-0.5, 0.5, 0.005),
        "decay_every": IntDistribution(3, 10),
        "weight_decay": loguniform(-1.3, 1.3, 0.005),
        "dropout": FloatDistribution(0.05, 0.5),
        "hidden": loguniform(-0.6, 0.6, 64),
        "heads": IntDistribution(6, 36),
        "window": IntDistribution(10, 49),
    },
    # G. Chevalier, train.py: HYPERPARAMETERS_SPACE, of the second round.
    "ucihar": {
        "learning_rate": loguniform(-0.4, 0.4, 0.006),
        "decay_every": IntDistribution(6, 50),
        "weight_decay": loguniform(-1.3, 1.3, 0.002),
        "dropout": FloatDistribution(0.05, 0.5),
        "hidden": loguniform(-0.3, 0.3, 68),
        "heads": IntDistribution(20, 40),
        "window": IntDistribution(25, 99),
    },
    # The blocks' `num_parallel`, which is 2 by default and meant to grow.
    "vit-published": {"branches": IntDistribution(1, 4)},
}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "larnn": {
        "mode": ["residual", "layer"],
        "positional": [False, True],
        "activation": [False, True],
        "layers": [2, 3],
        "residual": [False, True],
    },
    "ucihar": {"mode": ["residual", "layer"], "positional": [False, True]},
    "vit-published": {
        "block": ["block", "layer-scale", "parallel", "parallel-layer-scale"],
        "optimizer": ["adam", "adamw"],
    },
}
FIXED = {"larnn": {"backbone": "larnn"}, "ucihar": {"backbone": "larnn"}, "vit-published": {}}


@cache
def drawn(space: str) -> list[tuple[optuna.Trial, TrialConfig]]:
    random = optuna.samplers.RandomSampler(seed=0)
    sampler = optuna.samplers.PartialFixedSampler(FIXED[space], random) if FIXED[space] else random
    study = optuna.create_study(sampler=sampler)
    trials = [study.ask() for _ in range(DRAWS)]
    return [(trial, SPACES[space](trial)) for trial in trials]


@pytest.mark.parametrize("space", NUMBERS)
def test_distributions_are_those_of_the_source(space: str) -> None:
    ours = {name: kind for trial, _ in drawn(space) for name, kind in trial.distributions.items()}
    theirs = {**NUMBERS[space], **{name: CategoricalDistribution(c) for name, c in CHOICES[space].items()}}
    assert ours.keys() == {*theirs, *FIXED[space]}, "nothing else is drawn"
    for name, kind in theirs.items():
        assert type(ours[name]) is type(kind)
        assert vars(ours[name]) == pytest.approx(vars(kind)) if name in NUMBERS[space] else ours[name] == kind


@pytest.mark.parametrize("space", NUMBERS)
def test_fixed_values_are_as_published(space: str) -> None:
    for trial, config in drawn(space):
        params, training, options = trial.params, config.training, config.model.options
        assert {name: getattr(training, name) for name in TRAINING[space]} == TRAINING[space]
        assert {name: options[name] for name in OPTIONS[space]} == OPTIONS[space]
        own = {"learning_rate", "weight_decay", "decay_every", "optimizer"} & params.keys()
        assert {name: getattr(training, name) for name in own} == {name: params[name] for name in own}
        assert not config.model.placement


@pytest.mark.parametrize("space", ["larnn", "ucihar"])
def test_the_hidden_size_is_rounded_as_in_the_source(space: str) -> None:
    for trial, config in drawn(space):
        params = trial.params
        hidden, heads = params["hidden"], params["heads"]
        options = config.model.options
        assert options["hidden"] == round(hidden / heads) * heads >= heads
        names = {"heads", "window", "mode", "positional", "dropout"}
        assert {name: options[name] for name in names} == {name: params[name] for name in names}


def test_the_baselines_and_the_published_trials_can_be_drawn() -> None:
    for name in NUMBERS:
        space = SPACES[name]
        for params in (space.baseline, *space.free()):
            study = optuna.create_study()
            study.enqueue_trial(dict(params))
            trial = study.ask()
            config = space(trial)
            assert {key: trial.params[key] for key in params} == dict(params)
            assert space.as_baseline(config).model.placement == {}
        assert space.as_baseline(space(optuna.trial.FixedTrial(trial.params))) != config or not params
    first = SPACES["larnn"].draw(optuna.trial.FixedTrial(SPACES["larnn"].free()[0]))
    assert first.model.options["hidden"] == 68
    best = SPACES["ucihar"].draw(optuna.trial.FixedTrial(SPACES["ucihar"].free()[0]))
    assert best.model.options["hidden"] == 81
    assert best.training.decay_every == 26
