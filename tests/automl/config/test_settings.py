"""Settings of a search: valid values, and messages for invalid ones."""

import json
from pathlib import Path
from typing import Any

import optuna
import pytest

from attention import Spec
from automl.base.errors import InputError
from automl.base.serialise import from_json, to_json
from automl.config.nouns import TRIALS, Limits, Question, SearchPlan, Terms
from automl.config.settings import ParsedSettings, Settings
from automl.tasks.image_classification import ImageTraining
from search.config import Model, TrialConfig
from search.drawn import Drawn
from search.space import SPACES, Space, draw_randomly
from tests.helpers import others_slow

BAD: list[tuple[dict[str, Any], str]] = [
    ({"trials": 0}, "--trials must be 1 or more; got 0"),
    ({"validations_per_epoch": 0}, "--validations-per-epoch must be 1 or more; got 0"),
    ({"budget": "banana"}, "--budget must be a time such as 90s, 30m, 2h or 1h30m; got 'banana'"),
    ({"equal": "tim"}, "unknown value of --equal 'tim'"),
    ({"max_params": "lots"}, "--max-params must be a number"),
    ({"name": "a/b"}, "--name may hold up to 100 letters"),
    ({"seed": -1}, "seed must lie between 0"),
    ({"resource": ["disk=much"]}, "--resource must be NAME=AMOUNT with a number; got 'disk=much'"),
    ({"resource": ["CPU=1"]}, "--resource is for custom Ray resources"),
    ({"trials": True}, "--trials must be a whole number; got True"),
    ({"subset": "half"}, "--subset must be a number; got 'half'"),
    ({"budget": 3600}, "--budget must be text; got 3600"),
    ({"lr": -1}, "unknown setting 'lr'; choose from attention, "),
    ({"name": ".."}, "--name may hold up to 100 letters"),  # another folder than one in the storage
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values) for values, _ in BAD])
def test_invalid_value_is_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Settings(**{"space": "digits", **values})
    assert message in str(error.value)


def test_positional_settings_and_other_types(tmp_path: Path) -> None:
    settings = Settings(
        space="folder", data=tmp_path, storage=tmp_path / "kept", max_params=5e6, max_memory=2**31, subset=1
    )
    assert (settings.data, settings.storage) == (str(tmp_path), f"{tmp_path}/kept")
    assert settings.parsed.terms.limits == Limits(params=5e6, memory=2.0**31)
    terms = Terms(max_params="5M", max_macs="1.8G", max_memory="2GB", max_latency_ms=20.0)
    assert terms.limits == Limits(params=5e6, macs=1.8e9, memory=2e9, latency=20.0)
    assert Terms().limits == Limits()


@pytest.mark.parametrize(
    ("values", "trials", "seconds"),
    [
        ({}, TRIALS, None),
        ({"trials": 3}, 3, None),
        ({"budget": "1h30m"}, None, 5400),
        ({"trials": 3, "budget": "90s"}, 3, 90),
    ],
)
def test_trials_and_budget(values: dict[str, Any], trials: int | None, seconds: float | None) -> None:
    plan = SearchPlan(**values)
    assert (plan.most, plan.seconds) == (trials, seconds)


def adjust(config: TrialConfig, **options: Any) -> TrialConfig:
    return Question(space="digits", **options).draw(SPACES["digits"]).space.adjust(config)


def test_settings_are_applied_to_a_configuration() -> None:
    config = TrialConfig().change(training={"epochs": 7}, data={"size": 48})
    adjusted = adjust(config, epochs=3, size=32, subset=0.5, seed=9, data="here")
    assert (adjusted.training.epochs, adjusted.data.size, adjusted.data.subset) == (3, 32, 0.5)
    assert adjusted.seed == 9
    assert str(adjusted.data.path).endswith("/here"), "absolute, for processes elsewhere"
    adjusted = adjust(config, metric="macro_f1", class_weights="balanced", augment="strong")
    assert adjusted.metric == "macro_f1"
    training = adjusted.training
    assert isinstance(training, ImageTraining)
    assert (training.class_weights, training.policy, training.cutmix) == ("balanced", "rand", 1.0)
    assert adjust(config) == config


LARGE = (
    "resnext101-da",
    "resnet50-da",
    "coco-da",
    "sceneflow",
    "scenes",
    "unet",
    "planes",
)  # spaces whose models take seconds


@pytest.mark.parametrize("name", others_slow(SPACES, *(name for name in SPACES if name not in LARGE)))
def test_settings_that_are_left_out_keep_the_choices_of_the_space(name: str) -> None:
    _, drawn = next(draw_randomly(SPACES[name], 1, first=SPACES[name].baseline))
    config = drawn.change(data={"subset": 0.3}, training={"epochs": 7}, seed=0)
    assert adjust(config) == config


def test_settings_are_written_read_and_changed() -> None:
    settings = Settings(
        space="a.py:f",
        trials=3,
        budget="2h",
        max_params="5M",
        seed=4,
        resource=["accelerator_type:H200=0.01"],
        label=["zone=a"],
    )
    shape = settings.parsed.place.shape
    assert shape.custom == {"accelerator_type:H200": 0.01}
    assert shape.labels == {"zone": "a"}
    written = json.loads(json.dumps(to_json(settings.parsed)))
    assert from_json(Settings, written, "settings") == settings
    assert ParsedSettings.from_json(written) == settings.parsed
    with pytest.raises(InputError, match="unknown key 'colour'; known: space, "):
        ParsedSettings.from_json({**written, "colour": "red"})
    settings = Settings(space="digits", label=["zone=a"], concurrent=3).parsed
    assert settings.change() == settings
    moved = settings.change(place={"label": ["zone=b"]}).place
    assert (moved.shape.labels, moved.concurrent) == ({"zone": "b"}, 3)
    with pytest.raises(InputError, match="--concurrent must be 1 or more; got 0"):
        settings.change(place={"concurrent": 0})


@pytest.mark.parametrize(
    ("trials", "budget", "expected"),
    [
        (None, None, (8, None)),
        ("+5", None, (15, None)),
        ("20", None, (20, None)),
        (None, "1h", (8, 3600)),
        ("+0", "30m", (10, 1800)),
    ],
)
def test_budget_is_extended(
    trials: str | None, budget: str | None, expected: tuple[int, float | None]
) -> None:
    plan = SearchPlan(trials=8).extended(trials, budget, 10)
    assert (plan.most, plan.seconds) == expected


def test_the_baseline_is_the_configuration_of_trial_0() -> None:
    question = Question(space="digits", epochs=2, seed=3)
    config = question.open().baseline
    assert (config.model.placement, config.training.epochs, config.seed) == ({}, 2, 3)
    assert config.training.learning_rate == 3e-3
    assert question.open().baseline == config
    assert config.model == Model(backbone="xresnet18", options={"width": 0.25})

    def never(trial: optuna.Trial) -> TrialConfig:
        raise optuna.TrialPruned

    with pytest.raises(InputError, match="space 'never' raised TrialPruned for its own baseline"):
        _ = Drawn(Space(name="never", draw=never, baseline={}, summary="")).baseline


def space_with_attention(trial: optuna.Trial) -> TrialConfig:
    count = trial.suggest_int("count", 0, 1)
    return TrialConfig().change(model={"placement": {"stage1.block1": Spec("ssa")} if count else {}})


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ({"count": 2}, "`baseline` of space 'mine' sets the parameter 'count' to 2; choose from 0 to 1"),
        ({"cuont": 0}, "names the parameter 'cuont', which the space never draws"),
        ({"modules": 0}, "draws attention (ssa @ stage1.block1); set FUNCTION.baseline to"),
    ],
)
def test_invalid_baseline_is_rejected(baseline: dict[str, Any], message: str) -> None:
    space = Space(name="mine", draw=space_with_attention, baseline=baseline, plain={"count": 0}, summary="")
    with pytest.raises(InputError) as error:
        _ = Drawn(space).baseline
    assert message in str(error.value)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        space="mine.py:space", data="../data", backbone="net.py:Net", sampler="s.py:Sampler"
    ).parsed
    whole = settings.absolute()
    assert whole.question.space == f"{tmp_path}/mine.py:space"
    assert whole.question.data == str(tmp_path.parent / "data")
    assert whole.question.backbone == f"{tmp_path}/net.py:Net"
    assert whole.plan.sampler == f"{tmp_path}/s.py:Sampler"
    assert whole.question.title == settings.question.title
    named = Settings(space="digits", backbone="timm:test_resnet").parsed
    assert named.absolute() == named


PROFILE = {"params": 2.5e6, "macs": 1e9, "memory": 3e9, "latency": 20.0, "time_ratio": 1.5}


@pytest.mark.parametrize(("limits", "violations", "excess"), [
    (Limits(), {}, None),
    (Limits(params=5e6), {"params": -0.5}, None),
    (Limits(params=2.5e6), {"params": 0.0}, None),
    (Limits(params=2e6), {"params": 0.25}, "params 2.5M exceeds the limit of 2M"),
    (Limits(params=2e6, macs=4e9, memory=2e9, latency=10), {"params": 0.25, "macs": -0.75, "memory": 0.5,
     "latency": 1.0}, "params 2.5M exceeds the limit of 2M; memory 3GB exceeds the limit of 2GB; "
     "latency 20 ms exceeds the limit of 10 ms"),
])  # fmt: skip
def test_limits(limits: Limits, violations: dict[str, float], excess: str | None) -> None:
    assert limits.violations(PROFILE) == violations
    assert limits.excess(PROFILE) == excess
    assert limits.nothing is (not violations)
