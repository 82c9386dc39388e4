"""Loading user-defined spaces: their names, and messages about invalid ones."""

import sys
from pathlib import Path

import optuna
import pytest

from automl.base.errors import InputError
from search.drawn import check_fixed_parameters
from search.space import load_space

GOOD = """
from automl.tasks.image_classification import ImageTraining
from search.config import TrialConfig
from search.space import Space

def space(trial):
    return TrialConfig(training=ImageTraining(epochs=trial.suggest_int("epochs", 1, 9)))

space.baseline = {"epochs": 3}

def no_baseline(trial):
    return TrialConfig()

whole = Space(name="whole", draw=space, baseline={"epochs": 4}, summary="a user-defined Space")

def breaks(trial):
    return TrialConfig(seed={}["nothing"])

def returns_a_dict(trial):
    return {"epochs": 3}

def misconfigures(trial):
    return TrialConfig(training=ImageTraining(epochs=0))

def attends(trial):
    return TrialConfig.from_json({"model": {"placement": {"stage1.block1": "ssa"}}})

def prunes(trial):
    import optuna
    raise optuna.TrialPruned
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide an empty folder, and restore the interpreter's state afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    Path("my_space.py").write_text(GOOD)
    Path("my_package").mkdir()
    Path("my_package/__init__.py").touch()
    Path("my_package/spaces.py").write_text(GOOD)
    Path("broken_space.py").write_text("import no_such_module_of_mine")


@pytest.mark.parametrize("name", ["my_space.py:space", "./my_space.py:space", "my_package.spaces:space"])
def test_a_user_defined_function(name: str) -> None:
    space = load_space(name)
    assert (space.name, space.baseline) == (name, {"epochs": 3})
    assert space(optuna.trial.FixedTrial({"epochs": 7})).training.epochs == 7


def test_a_space_object_and_functions_without_a_baseline_or_modules() -> None:
    space = load_space("my_space.py:whole")
    assert (space.name, space.baseline["epochs"]) == ("whole", 4)
    assert load_space("my_space.py:no_baseline").baseline == {"modules": 0}
    check_fixed_parameters(load_space("my_space.py:no_baseline"))
    check_fixed_parameters(load_space("my_space.py:space"))
    with pytest.raises(InputError, match=r"set FUNCTION\.baseline to parameters .* such as \{'modules': 0\}"):
        check_fixed_parameters(load_space("my_space.py:attends"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wof", r"unknown space 'wof'; choose from .*, .*\. Did you mean 'woof'\?.*file\.py:function"),
        ("absent.py:space", r"there is no file absent\.py"),
        ("absent.module:space", r"absent\.module cannot be imported: .* No module named 'absent'"),
        ("broken_space.py:space", r"broken_space\.py cannot be imported: ModuleNotFoundError: .*no_such_"),
        ("my_space.py:spase", r"unknown function in my_space\.py 'spase'; .*Did you mean 'space'"),
    ],
)
def test_invalid_references_are_rejected(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_space(name)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("breaks", r"'my_space\.py:breaks' raised KeyError: 'nothing' \(my_space\.py, line 17\)"),
        ("returns_a_dict", r"must return a search\.config\.TrialConfig; got dict"),
        ("misconfigures", r"configuration: training\.epochs must be 1 or more; got 0"),
        ("space", r"'my_space\.py:space' raised ValueError: .*epochs"),
    ],
)
def test_an_invalid_function_is_reported(function: str, message: str) -> None:
    space = load_space(f"my_space.py:{function}")
    with pytest.raises(InputError, match=message):
        space(optuna.trial.FixedTrial({}))


def test_pruning_passes_through() -> None:
    with pytest.raises(optuna.TrialPruned):
        load_space("my_space.py:prunes")(optuna.trial.FixedTrial({}))


def test_two_files_of_one_name_are_two_spaces(tmp_path: Path) -> None:
    for folder, epochs in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(GOOD.replace('"epochs": 3', f'"epochs": {epochs}'))
    first, second = load_space("a/mine.py:space"), load_space("b/mine.py:space")
    assert (first.baseline, second.baseline) == ({"epochs": 1}, {"epochs": 2})
