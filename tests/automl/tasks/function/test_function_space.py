"""The space of a training function."""

import optuna
import pytest
import torch

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.config.settings import Settings
from automl.task import open_task
from automl.tasks.function import space as function_space_module
from automl.tasks.function.space import function_space
from search.config.tasks import declare_metric
from search.drawn import Drawn
from search.metric import Metric
from search.space import draw_randomly
from tests.helpers import FOLDER

MARKS = FOLDER / "train_marks.py"
ACCURACY = Metric(name="accuracy", maximize=True)


def space_of(folder, code, **options):
    file = folder / "train.py"
    file.write_text("import torch\nfrom torch import nn\n\n" + code)
    return function_space(f"{file}:train", ACCURACY, **options)


def test_draws_follow_the_branches_and_the_baseline_has_its_values():
    space = function_space(f"{MARKS}:train", ACCURACY)
    drawn = [config for _, config in draw_randomly(space, 40)]
    parameters = [config.training.parameters for config in drawn]
    assert {each["optimizer"] for each in parameters} == {"adam", "sgd"}
    assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in parameters)
    assert {each["width"] for each in parameters} == {4, 8}
    assert {len(config.model.placement) for config in drawn} == {0, 1, 2, 3}
    assert all(config.training.epochs == 4 and config.training.batch_size == 32 for config in drawn)
    assert space.baseline == {"modules": 0, "lr": 1e-2, "width": 4, "optimizer": "adam"}
    config = space(optuna.trial.FixedTrial(space.baseline))
    assert config.model.placement == {}


def test_start_runs_once_for_each_combination_of_discrete_values(monkeypatch):
    runs = []
    run_start = function_space_module.run_start
    monkeypatch.setattr(
        function_space_module, "run_start", lambda *args, **kw: runs.append(1) or run_start(*args, **kw)
    )
    space = function_space(f"{MARKS}:train", ACCURACY)
    list(draw_randomly(space, 100))
    assert len(runs) == 1 + 4  # for the baseline's values, and for two widths and two optimisers


@pytest.mark.slow("new processes")
def test_fingerprint_depends_on_the_code_and_not_on_its_folder(tmp_path):
    (tmp_path / "train_marks.py").write_text(MARKS.read_text())
    moved = function_space(f"{tmp_path / 'train_marks.py'}:train", ACCURACY)
    expected = Drawn(function_space(f"{MARKS}:train", ACCURACY)).fingerprint
    assert Drawn(moved).fingerprint == expected
    for options in ({"chance": 0.1}, {"epochs": 9}):
        assert Drawn(function_space(f"{MARKS}:train", ACCURACY, **options)).fingerprint != expected
    other = Metric(name="accuracy", maximize=True, margin=2.0)
    assert Drawn(function_space(f"{MARKS}:train", other)).fingerprint != expected
    (tmp_path / "train_marks.py").write_text(MARKS.read_text().replace("1e-1", "2e-1"))
    assert Drawn(function_space(f"{tmp_path / 'train_marks.py'}:train", ACCURACY)).fingerprint != expected


PLACE = "model = trial.place(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), torch.zeros(2, 1, 8, 8))"
BAD = {
    "no epochs": ("def train(trial):\n    {place}\n", "ended without trial.epochs"),
    "own loop": (
        "def train(run):\n    for seed in (1, 2):\n        for step in range(3 + 2):\n            pass\n",
        r"loop over `for epoch in trial\.epochs\(20\)`",
    ),
    "nothing placed": ("def train(trial):\n    trial.epochs(2)\n", "nothing was placed"),
    "placed twice": ("def train(trial):\n    {place}\n    {place}\n", "must be called once"),
    "error": ("def train(trial):\n    1 / 0\n", r"ZeroDivisionError: division by zero \(train.py, line 5\)"),
    "no function": ("x = 1\n", "unknown function"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_start_has_one_message(tmp_path, name):
    code, message = BAD[name]
    with pytest.raises(InputError, match=message):
        space_of(tmp_path, code.replace("{place}", PLACE))


def test_start_leaves_generators_and_output_alone(tmp_path, capsys):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    space_of(
        tmp_path,
        "def train(trial):\n    print('loud')\n    {place}\n    trial.epochs(1)\n".replace("{place}", PLACE),
    )
    assert torch.rand(1) == expected
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs --metric"),
        ({"metric": "accuracy", "minimize": True}, "a higher accuracy is better; leave --minimize out"),
        ({"metric": "loss", "minimize": False}, "a lower loss is better; leave --maximize out"),
    ],
)
def test_settings_that_do_not_fit_a_function_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Settings(train=f"{MARKS}:train", **options)


@pytest.mark.parametrize(
    ("name", "minimize", "maximize"),
    [
        ("loss", None, False),
        ("val_loss", False, True),
        ("val_loss", True, False),
        ("glossary", None, True),
        ("accuracy", False, True),
    ],
)
def test_direction_of_a_metric(name, minimize, maximize):
    assert declare_metric(name, minimize=minimize).maximize is maximize


def test_model_that_depends_on_a_continuous_hyperparameter_is_refused(tmp_path):
    code = (
        "def train(trial):\n    width = int(trial.suggest_float('width', 1, 8))\n"
        "    trial.place(nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU()), torch.zeros(2, 1, 8, 8))\n"
        "    trial.epochs(1)\n"
    )
    space = space_of(tmp_path, code)
    runtime = Runtime(device=torch.device("cpu"))
    for width in (2.0, 2.5):
        open_task(space(optuna.trial.FixedTrial({"width": width, "modules": 0})), runtime).model()
    with pytest.raises(InputError, match="depends on a continuous hyperparameter"):
        open_task(space(optuna.trial.FixedTrial({"width": 7.0, "modules": 0})), runtime).model()
