"""Settings that a search chooses from its data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import automl
from automl.base.errors import InputError
from automl.config.nouns import Question, Terms
from automl.config.settings import ParsedSettings, Settings
from automl.search.prepare import choose_validations, fit, fit_epochs, open_settings, prepare
from automl.tasks.image_classification.space import list_sites
from search.config import Model, TrialConfig
from search.trial_scheduler import Plan
from tests.helpers.automl_cases import Cli, Regression, opened


def photographs(folder: Path, *sizes: tuple[int, int]) -> str:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i, size in enumerate(sizes * 3):
            pixels = np.random.default_rng([i, len(label), *size]).integers(0, 256, (size[1], size[0], 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / label / f"{i}.png")
    return str(folder)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [([(20, 30)], 32), ([(92, 112)], 64), ([(300, 200)], 128), ([(40, 300), (90, 90), (120, 94)], 64)],
)
def test_size_depends_on_the_images(sizes: list[tuple[int, int]], side: int, tmp_path: Path) -> None:
    space = fit(photographs(tmp_path / "photos", *sizes))
    assert space.settings == {"space": "folder", "backbone": "xresnet18", "size": side}
    assert f"backbone xresnet18 at {side} px, since there are " in space.why


def test_explicit_settings_stay_and_stereo_has_its_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = photographs(tmp_path / "photos", (50, 50))
    assert fit(photos, backbone="timm:test_vit").settings == {"space": "folder", "size": 48}
    assert fit(photos, size=24).settings == {"space": "folder", "backbone": "xresnet18"}
    monkeypatch.setattr("automl.tasks.image_classification.fit.MANY", 1)
    assert fit(photos, size=24).settings == {"space": "folder"}
    assert fit(photos, size=24).why.startswith("random weights, since ")
    (tmp_path / "pairs.csv").write_text("left,right,disparity\nl.png,r.png,d.pfm\n")
    assert fit(str(tmp_path / "pairs.csv")).settings == {"space": "sceneflow"}


@pytest.mark.parametrize(
    ("settings", "training", "epochs"),
    [
        ({"data": "photos"}, {}, 43),  # seven steps an epoch
        ({"subset": 0.2}, {"epochs": 42}, 43),
        ({"data": "photos"}, {"epochs": 5, "accumulate": 3}, 150),
        ({"data": "photos"}, {"epochs": 43}, None),
        ({"data": "photos", "epochs": 1}, {}, None),
        ({"data": "photos", "space": "mine.py:space"}, {}, None),
        ({}, {}, None),  # the bundled data have epochs of their own
    ],
)
def test_training_with_few_steps_gets_more_epochs(
    settings: dict[str, Any], training: dict[str, Any], epochs: int | None
) -> None:
    fitted = fit_epochs(Question(**{"space": "folder", **settings}), opened(training=training))
    if epochs is None:
        assert fitted is None
    else:
        assert fitted.settings == {"epochs": epochs}
        assert "steps of" in fitted.why
        assert "set another number with --epochs" in fitted.why


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"metric": "acuracy"}, "unknown metric 'acuracy'; .* Did you mean 'accuracy'"),
        ({"size": 4}, "data.size must lie between 24 and 1024 pixels; got 4"),
        ({"augment": "strog"}, "unknown augmentation 'strog'"),
    ],
)
def test_mistakes_are_reported_before_data_are_read_and_models_built(
    setting: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fit.open_image_records", "space.list_sites"):
        monkeypatch.setattr(f"automl.tasks.image_classification.{name}", None)
    with pytest.raises(InputError, match=message):
        open_settings({"data": str(tmp_path), **setting})
    with pytest.raises(InputError, match=message):
        open_settings({"space": "folder", "backbone": "vit", **setting}).question.open().baseline  # noqa: B018


def test_only_backbones_of_images_are_offered_for_images() -> None:
    for build in (lambda name: TrialConfig(model=Model(backbone=name)), lambda name: list_sites(name, 32)):
        message = "unknown backbone 'resnet19'; choose from small-resnet, vit, xres"
        with pytest.raises(InputError, match=message):
            build("resnet19")


def test_chosen_epochs_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = photographs(tmp_path / "photos", (32, 32), (33, 40), (50, 50))
    settings = Settings(space="folder", data=data, size=32, backbone="timm:test_resnet").parsed
    ready = prepare(settings)
    assert ready.settings.question.epochs == ready.plan.budget == ready.baseline.training.epochs
    assert ready.task.steps() * ready.plan.budget >= 300
    assert f"chosen    {ready.settings.question.epochs} epochs" in capsys.readouterr().err
    assert all(config.training.epochs == ready.settings.question.epochs for config in ready.configs)
    assert prepare(settings.change(question={"epochs": 2})).plan.budget == 2
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize(
    ("asked", "epochs", "steps", "validated", "chosen"),
    [
        *((None, 1, 9000, 0.1, 9), (None, 2, 9000, 0.1, 4), (None, 5, 9000, 0.1, 1), (4, 9, 30, 1, 4)),
        *((None, 1, 5999, 0.1, 5), (None, 1, 700, 0.1, 1), (None, 1, 9000, 0.25, 4), (1, 1, 9000, 0.1, 1)),
    ],
)
def test_a_long_epoch_has_several_validations(
    asked: int | None, epochs: int, steps: int, validated: float, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, terms = Regression(epochs=epochs), Terms(validations_per_epoch=asked)
    monkeypatch.setattr(task, "steps", lambda: steps)
    monkeypatch.setattr(task, "size", lambda split: 8 * steps * (1 if split == "train" else validated))
    plan = Plan(trials=1, budget=epochs, metric=task.metric)
    assert choose_validations(terms, plan, task) == chosen
    assert choose_validations(terms, replace(plan, pruning=False), task) == (asked or 1)
    with pytest.raises(InputError, match=f"at most {steps}, the steps of an epoch; got {steps + 1}"):
        choose_validations(Terms(validations_per_epoch=steps + 1), plan, task)


def test_types_of_an_own_space_are_stored_with_the_folder_of_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from automl.tasks.image_classification.space import digits\n"
        "from torch import nn\n\n"
        "class Gate(nn.Conv2d):\n"
        "    def __init__(self, channels):\n"
        "        super().__init__(channels, channels, 1)\n\n"
        "def space(trial, kinds=('ssa', 'mine.py:Gate')):\n"
        "    return digits(trial, kinds)\n\n"
        "space.baseline = {'modules': 0}\n"
    )
    monkeypatch.setattr("automl.search.prepare.ATTENTION_DRAWS", 20)
    monkeypatch.setattr("automl.search.prepare.find_missing_formats", lambda *_: {})  # it exports
    ready = prepare(Settings(space="mine.py:space", subset=0.1, epochs=1).parsed)
    assert ready.settings.question.attention == f"ssa,{tmp_path}/mine.py:Gate"


@pytest.mark.parametrize(
    "options",
    [
        {"data": "photos"},
        {"data": "photos", "size": 24, "trials": 3},
        {"data": "photos", "weights": "default", "backbone": "torchvision:resnet18"},
        {"data": "pairs.csv"},
        {"data": "text.txt", "context": 64},
        {"data": "code", "full": 1},
        {"data": "missing"},
        {"size": 24},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_python_and_the_command_line_choose_alike(
    options: dict[str, Any],
    cli: Cli,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", (50, 50))
    (tmp_path / "pairs.csv").write_text("left,right,disparity\nl.png,r.png,d.pfm\n")
    (tmp_path / "text.txt").write_text("a line of text\n" * 99)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("def read(file):\n    '''Read a file.'''\n    return 1\n" * 9)
    started: list[ParsedSettings] = []

    def start(settings: ParsedSettings) -> None:
        started.append(settings)
        raise InputError("started")

    monkeypatch.setattr("automl.search.run_search.start_search", start)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    code, _, command_line = cli("search", *words)
    assert code == 2
    with pytest.raises(InputError) as raised:
        automl.run_search(**options)
    python = capsys.readouterr().err
    assert command_line == f"{python}error: {raised.value}\n"
    assert len(started) in (0, 2)
    assert not started or started[0].to_json() == started[1].to_json()
