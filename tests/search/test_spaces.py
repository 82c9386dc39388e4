"""Every built-in space: its draws can be trained, stored and drawn again."""

import copy
import json
import random
import warnings
from functools import cache
from itertools import product
from typing import Any

import optuna
import pytest
import torch
from torch import nn

from automl.base.errors import InputError
from automl.tasks.image_classification import vit_space as vit_spaces
from backbones import Site, build, insert, sites
from search import choices
from search.config import Model, TrialConfig
from search.drawn import Drawn
from search.space import SPACES, Space, draw_randomly, load_space
from tests.helpers import others_slow
from tests.helpers.search_cases import SMALL

SAMPLES = 200


def fingerprint(space: Space) -> str:
    return Drawn(space).fingerprint


@cache
def _samples(name: str) -> list[tuple[dict[str, Any], TrialConfig]]:
    """Return parameters and configurations of the baseline and of random trials."""
    space = SPACES[name]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(dict(space.baseline))
    samples = []
    for _ in range(SAMPLES):
        trial = study.ask()
        config = space(trial)
        samples.append((trial.params, config))
    return samples


NAMES = ("digits", "nette", "woof")


@pytest.fixture(params=NAMES)
def space(request: pytest.FixtureRequest) -> Space:
    return SPACES[request.param]


@cache
def _shared_training(backbone: str, width: float) -> nn.Module:
    torch.manual_seed(0)
    return build(backbone, classes=10, width=width)


@pytest.mark.parametrize("name", others_slow(NAMES, "digits"))
def test_every_sample_trains(name: str) -> None:
    """Train a step at 32 pixels, with a backbone of the sample's kind and width."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([3, 7])
    for params, config in _samples(name)[:3]:
        shared_training = copy.deepcopy(
            _shared_training(config.model.backbone, config.model.options.get("width", 1.0))
        )
        model = insert(shared_training, config.model.placement).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=config.training.learning_rate)
        loss = nn.functional.cross_entropy(
            model(images), labels, label_smoothing=config.training.label_smoothing
        )
        loss.backward()
        optimizer.step()
        assert loss.isfinite(), params
        assert all(parameter.isfinite().all() for parameter in model.parameters()), params
        inserted = [name for name, _ in model.named_parameters() if name.endswith("site_attention.gamma")]
        assert len(inserted) == len(config.model.placement), params


def test_samples_round_trip_through_json_and_the_first_is_the_published_baseline(space: Space) -> None:
    for _, config in _samples(space.name)[:50]:
        assert TrialConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    params, config = _samples(space.name)[0]
    assert params == space.baseline
    assert config.model.placement == {}
    assert config.model.backbone == "xresnet18"
    training = config.training
    assert (training.optimizer, training.learning_rate, training.weight_decay) == ("adamw", 3e-3, 1e-2)
    assert (training.batch_size, training.schedule) == (64, "one-cycle")
    assert (training.mixup, training.label_smoothing) == (0.0, 0.1)


def test_free_answers_lie_within_the_space(space: Space) -> None:
    proposed = space.free()
    assert len(proposed) == len(choices.FREE)
    for params, (where, kind, _) in zip(proposed, choices.FREE, strict=True):
        study = optuna.create_study()
        study.enqueue_trial(dict(params))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config = space(study.ask())
        assert study.trials[0].params == params, "all of them are named, and none is out of range"
        assert {spec.type for spec in config.model.placement.values()} == {kind}
        stage, _, branch = where.partition(" ")
        last = "stage3" if space.name == "digits" else "stage4"  # in which a digit has one position
        every = [f"stage{i + 1}" for i in range(choices.MOST)]
        stages = {choices.EVERY: every, choices.LAST: [last]}.get(stage, [stage])
        assert [site.partition(".")[0] for site in config.model.placement] == stages
        assert all(site.endswith("branch") == bool(branch) for site in config.model.placement)
        assert config.training.learning_rate == 3e-3


def changed(name: str, **ranges: Any) -> Space:
    """Return the space `digits` with another range."""

    def draw(trial: optuna.Trial) -> TrialConfig:
        config = SPACES["digits"](trial)
        for key, values in ranges.items():
            trial.suggest_categorical(key, values)
        return config

    return Space(name=name, draw=draw, baseline={}, summary="")


def test_a_fingerprint_depends_on_the_parameters() -> None:
    digits = SPACES["digits"]
    assert fingerprint(digits) == fingerprint(digits) == fingerprint(changed("a name does not matter"))
    different = [digits, SPACES["nette"], *(changed("x", x=x) for x in ([1, 2], [1, 2, 3], ["1", "2"]))]
    different.append(changed("y", y=[1, 2]))
    assert len({fingerprint(space) for space in different}) == len(different)
    parameters = [fingerprint(space).partition("-")[0] for space in (digits, *different[1:])]
    assert parameters[0] not in parameters[1:]


def making(**parts: Any) -> Space:
    """Return a space that draws like `digits` and returns other configurations."""

    def draw(trial: optuna.Trial) -> TrialConfig:
        return SPACES["digits"](trial).change(**parts)

    return Space(name="x", draw=draw, baseline={}, summary="")


@pytest.mark.parametrize(
    "parts",
    [
        {"data": {"source": "nette"}},
        {"data": {"size": 48}},
        {"model": {"backbone": "xresnet34"}},
        {"training": {"learning_rate": 1e-3}},
    ],
    ids=str,
)
def test_a_fingerprint_depends_on_the_configurations(parts: dict[str, Any]) -> None:
    digits, other = fingerprint(SPACES["digits"]), fingerprint(making(**parts))
    assert digits != other == fingerprint(making(**parts))
    assert digits.partition("-")[0] == other.partition("-")[0], "which draw the same parameters"


def test_a_fingerprint_ignores_paths_and_seeds_and_the_last_digits_of_numbers() -> None:
    """The last digits differ between machines."""
    for parts in ({"data": {"path": "/elsewhere"}}, {"seed": 3}):
        assert fingerprint(making(**parts)) == fingerprint(SPACES["digits"])

    def nearly(trial: optuna.Trial) -> TrialConfig:
        config = SPACES["digits"](trial)
        return config.change(training={"learning_rate": config.training.learning_rate * (1 + 1e-13)})

    space = Space(name="x", draw=nearly, baseline={}, summary="")
    assert fingerprint(space) == fingerprint(SPACES["digits"])


def test_a_fingerprint_stays_the_same() -> None:
    """Sets have another order in each process. A change of the configuration's fields changes it, too."""
    assert fingerprint(SMALL) == "885a2648eee1457d-7c2412bb86df37c6"


def test_decomposed_attention_after_res3_and_res4() -> None:
    space = SPACES["resnet50-da"]
    drawn = [config.model.placement for _, config in draw_randomly(space, 40) if config is not None]
    assert {len(placement) for placement in drawn} == set(range(8))
    assert {site for placement in drawn for site in placement} == {
        *(f"stage2.block{i}" for i in range(1, 5)),
        *(f"stage3.block{i}" for i in range(1, 7)),
    }
    for placement in drawn:
        kinds = {
            (spec.type, spec.options["normalisation"], spec.options["heads"]) for spec in placement.values()
        }
        assert len(kinds) == bool(placement), "the modules of a trial are of one kind"
    ends = [[params[f"site{i}"] for i in range(1, params["modules"] + 1)] for params in space.free()]
    assert ends == [[9], [3], [3, 9]]


def test_a_space_with_its_own_random_numbers_is_rejected() -> None:
    def draw(trial: optuna.Trial) -> TrialConfig:
        return TrialConfig(model=Model(options={"width": random.uniform(0.5, 1)}))

    with pytest.raises(InputError, match="space 'dice' returned different configurations for the same"):
        fingerprint(Space(name="dice", draw=draw, baseline={}, summary=""))


SITES = [Site(name=f"s{i}", path=f"{i}", channels=16 << i, stride=1, resolution=(8, 8)) for i in range(4)]


def test_every_set_of_sites_can_be_drawn_in_exactly_one_way() -> None:
    drawn = []
    for modules, *indices in product(range(4), repeat=4):
        sites_and_types = {f"site{i}": index for i, index in enumerate(indices, start=1)}
        sites_and_types |= {f"type{i}": "sagan" for i in (1, 2, 3)}
        trial = optuna.trial.FixedTrial({"modules": modules, **sites_and_types})
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a value out of its range, which names nothing
            try:
                placement = choices.placement(trial, SITES, most=3)
            except UserWarning:
                continue
        drawn.append((tuple(placement), tuple(indices[:modules])))
    ways = {(placement, indices) for placement, indices in drawn}
    assert len(ways) == len({placement for placement, _ in ways}) == 1 + 4 + 6 + 4


def test_modules_and_options_fit_every_model() -> None:
    """No more modules than sites are asked for, and options fit every width."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [choices.placement(study.ask(), SITES[:2], most=3) for _ in range(30)]
    assert {len(placement) for placement in drawn} == {0, 1, 2}
    for channels in [1, 3, 6, 12, 30, 256] * 4:
        spec = choices.attention(study.ask(), 1, channels)
        with torch.device("meta"):  # large weights take long to fill
            assert spec.build(channels).channels == channels


def test_sites_are_those_of_the_backbone_that_is_trained() -> None:
    """Spaces search for sites once, at 128 pixels. The names are the same at other sizes."""
    model = build("xresnet18", classes=2)
    small, large = ([s.name for s in sites(model, torch.empty(1, 3, n, n))] for n in (32, 256))
    assert small == large


def test_digits_attends_to_more_than_one_position() -> None:
    digits_sites = sites(_shared_training("xresnet18", 0.25), torch.empty(1, 3, 32, 32))
    single = {site.name for site in digits_sites if site.positions == 1}
    assert single
    assert not any(single & set(config.model.placement) for _, config in _samples("digits"))


@pytest.mark.parametrize("name", others_slow(["vit", "faces", "deit"], "vit"))
def test_a_transformers_sites_are_where_its_space_says(name: str) -> None:
    """Test every depth, pooling and kind of block, with the smallest width."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    configs = [SPACES[name](study.ask()) for _ in range(60)]
    drawn = {site for config in configs for site in config.model.placement}
    assert {"mixer" in site for site in drawn} == {True, False}
    for depth, block, pool in product((1, 4), ("block", "parallel-layer-scale"), ("token", "mean")):
        options = {"depth": depth, "block": block, "pool": pool}
        model = build("vit", classes=3, size=24, embed_dim=12, patch_size=12, **options)
        names = {site.name for site in sites(model, torch.empty(2, 3, 24, 24))}
        after = vit_spaces.sites_after_blocks(options)
        assert after == [f"stage1.block{i}" for i in range(1, depth + 1) if f"stage1.block{i}" in names]
        assert {vit_spaces.mixer_site(site, options) for site in after} <= names


@pytest.mark.parametrize(
    "name", others_slow([n for n, space in SPACES.items() if space.with_backbone], "digits", "hybrid")
)
def test_options_of_a_backbone_are_those_of_all_its_models(name: str) -> None:
    first = SPACES[name](optuna.trial.FixedTrial(dict(SPACES[name].baseline))).model
    backbone, options = ("gpt", {"depth": 3}) if first.kinds else ("xresnet18", {"width": 0.5})
    space = load_space(name, backbone, None, options)
    configs = [config for _, config in draw_randomly(space, 3, first=space.baseline) if config]
    assert all(config.model.options.items() >= options.items() for config in configs)
    assert all(len(config.model.kinds) in (0, 3) for config in configs)
