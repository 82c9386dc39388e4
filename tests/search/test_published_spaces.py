"""Spaces that repeat published searches draw what their sources draw: bounds, scale and fixed values.

Each row of a table is written as its source has it. 2,000 draws of a space are compared with many draws of
the source's own distribution by a two-sample Kolmogorov-Smirnov test.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare, ks_2samp

from search.config import TrialConfig
from search.spaces import SPACES

DRAWS, SOURCE_DRAWS, LEVEL = 2000, 200_000, 1e-3
Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Values]


# Those of hyperopt 0.1, https://hyperopt.github.io/hyperopt/getting-started/search_spaces.


def loguniform(low: float, high: float, times: float = 1.0) -> Draw:
    return lambda random: times * np.exp(random.uniform(low, high, SOURCE_DRAWS))


def quniform(low: float, high: float) -> Draw:
    return lambda random: np.round(random.uniform(low, high, SOURCE_DRAWS))


def uniform(low: float, high: float) -> Draw:
    return lambda random: random.uniform(low, high, SOURCE_DRAWS)


def truncated(low: float, high: float) -> Draw:
    """Return a `uniform` draw as the source's `int(hyperparameters['larnn_window_size'])`."""
    return lambda random: np.trunc(random.uniform(low, high, SOURCE_DRAWS))


# By space and parameter: bounds, and what the source draws from.
NUMBERS: dict[str, dict[str, tuple[float, float, Draw]]] = {
    # G. Chevalier, README.md: HYPERPARAMETERS_SPACE.
    "larnn": {
        "learning_rate": (0.0030327, 0.0082436, loguniform(-0.5, 0.5, 0.005)),
        "decay_every": (3, 10, quniform(3 - 0.499, 10 + 0.499)),
        "weight_decay": (0.0013627, 0.0183465, loguniform(-1.3, 1.3, 0.005)),
        "dropout": (0.05, 0.5, uniform(0.05, 0.5)),
        "hidden": (35.1239, 116.6156, loguniform(-0.6, 0.6, 64)),
        "heads": (6, 36, quniform(6 - 0.499, 36 + 0.499)),
        "window": (10, 49, truncated(10, 50)),
    },
    # G. Chevalier, train.py: HYPERPARAMETERS_SPACE, of the second round.
    "ucihar": {
        "learning_rate": (0.0040219, 0.0089510, loguniform(-0.4, 0.4, 0.006)),
        "decay_every": (6, 50, quniform(6 - 0.499, 50 + 0.499)),
        "weight_decay": (0.00054506, 0.0073386, loguniform(-1.3, 1.3, 0.002)),
        "dropout": (0.05, 0.5, uniform(0.05, 0.5)),
        "hidden": (50.3756, 91.7905, loguniform(-0.3, 0.3, 68)),
        "heads": (20, 40, quniform(20 - 0.499, 40 + 0.499)),
        "window": (25, 99, truncated(25, 100)),
    },
    # The blocks' `num_parallel`, which is 2 by default and meant to grow.
    "vit-published": {"branches": (1, 4, quniform(1 - 0.499, 4 + 0.499))},
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
LARNN_FORM = {"activation": "all", "norm": "all"}
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
FIXED = {"larnn": {"backbone": "larnn"}, "ucihar": {"backbone": "larnn"}, "vit-published": {}}


@cache
def drawn(space: str) -> list[tuple[dict[str, Any], TrialConfig]]:
    random = optuna.samplers.RandomSampler(seed=0)
    sampler = optuna.samplers.PartialFixedSampler(FIXED[space], random) if FIXED[space] else random
    study = optuna.create_study(sampler=sampler)
    trials = [study.ask() for _ in range(DRAWS)]
    return [(trial.params, config) for trial, config in ((trial, SPACES[space](trial)) for trial in trials)]


def values(space: str, name: str) -> list[Any]:
    return [params[name] for params, _ in drawn(space) if name in params]


EVERY_NUMBER = [(space, name) for space, rows in NUMBERS.items() for name in rows]
EVERY_CHOICE = [(space, name) for space, rows in CHOICES.items() for name in rows]


@pytest.mark.parametrize("space", NUMBERS)
def test_nothing_else_is_drawn(space: str) -> None:
    names = {name for params, _ in drawn(space) for name in params}
    assert names == {*NUMBERS[space], *CHOICES[space], *FIXED[space]}


@pytest.mark.parametrize(("space", "name"), EVERY_NUMBER)
def test_bounds_and_scale_are_those_of_the_source(space: str, name: str) -> None:
    low, high, source = NUMBERS[space][name]
    ours, theirs = np.array(values(space, name), float), source(np.random.default_rng(1))
    width = high - low
    for sample in (ours, theirs):
        # The ends are met: of 2,000 draws one lies within a hundredth of the range.
        assert low - 1e-4 * width <= sample.min() <= low + 0.01 * width
        assert high - 0.01 * width <= sample.max() <= high + 1e-4 * width
    assert ks_2samp(ours, theirs).pvalue > LEVEL


@pytest.mark.parametrize(("space", "name"), EVERY_NUMBER)
def test_the_test_of_the_scale_can_fail(space: str, name: str) -> None:
    """Distinguish equal bounds on another scale, if the range is wide enough."""
    low, high, source = NUMBERS[space][name]
    theirs, random = source(np.random.default_rng(1)), np.random.default_rng(2)
    if high / low < 1.5 or name == "branches":
        return
    logarithmic = name in ("learning_rate", "weight_decay", "hidden")
    wrong = random.uniform(low, high, DRAWS)
    if not logarithmic:
        wrong = np.exp(random.uniform(np.log(low), np.log(high), DRAWS))
    assert ks_2samp(wrong, theirs).pvalue < LEVEL


@pytest.mark.parametrize(("space", "name"), EVERY_CHOICE)
def test_choices_are_those_of_the_source_and_equally_likely(space: str, name: str) -> None:
    drawn_values = values(space, name)
    assert set(drawn_values) == set(CHOICES[space][name])
    assert len(set(map(type, drawn_values))) == 1
    assert chisquare([drawn_values.count(choice) for choice in CHOICES[space][name]]).pvalue > LEVEL


@pytest.mark.parametrize("space", NUMBERS)
def test_fixed_values_are_as_published(space: str) -> None:
    for params, config in drawn(space)[:200]:
        training, options = config.training, config.model.options
        assert {name: getattr(training, name) for name in TRAINING[space]} == TRAINING[space]
        assert {name: options[name] for name in OPTIONS[space]} == OPTIONS[space]
        own = {"learning_rate", "weight_decay", "decay_every", "optimizer"} & params.keys()
        assert {name: getattr(training, name) for name in own} == {name: params[name] for name in own}
        assert not config.model.placement


@pytest.mark.parametrize("space", ["larnn", "ucihar"])
def test_the_hidden_size_is_rounded_as_in_the_source(space: str) -> None:
    for params, config in drawn(space):
        hidden, heads = params["hidden"], params["heads"]
        options = config.model.options
        assert options["hidden"] == round(hidden / heads) * heads >= heads
        names = {"heads", "window", "mode", "positional", "dropout"}
        assert {name: options[name] for name in names} == {name: params[name] for name in names}


def test_the_baselines_and_the_published_trials_can_be_drawn() -> None:
    for name in NUMBERS:
        space = SPACES[name]
        for params in (space.baseline, *space.published()):
            study = optuna.create_study()
            study.enqueue_trial(dict(params))
            trial = study.ask()
            config = space(trial)
            assert {key: trial.params[key] for key in params} == dict(params)
            assert space.as_baseline(config).model.placement == {}
        assert space.as_baseline(space(optuna.trial.FixedTrial(trial.params))) != config or not params
    assert (
        SPACES["larnn"].draw(optuna.trial.FixedTrial(SPACES["larnn"].published()[0])).model.options["hidden"]
        == 68
    )
    best = SPACES["ucihar"].draw(optuna.trial.FixedTrial(SPACES["ucihar"].published()[0]))
    assert best.model.options["hidden"] == 81
    assert best.training.decay_every == 26
