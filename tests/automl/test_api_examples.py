"""The docstrings of the public API: they are complete, and their examples run."""

import inspect
import re
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient

import automl
import automl.trials.session
from tests.helpers.api_cases import run_examples
from tests.helpers.confirm_cases import FakeCommands, PlayedWorkers

ROOT = Path(automl.__file__).parents[1]
# The examples that need a search, in an order in which they can follow each other.
SEARCH = [
    "run_search", "Search", "load",
    "run_confirm", "ConfirmResult", "Verdict", "run_compare", "Compared",
    "run_solve", "read_status", "list_searches", "run_sync", "run_remove",
]  # fmt: skip
MODEL = [
    "run_report", "ReportResult", "run_export", "ExportResult", "run_predict", "Prediction", "Predictions",
    "preview_search",
]  # fmt: skip
TRAIN = ["run_train", "TrainResult"]
STUDY = ["run_study", "StudyResult"]
REFEREE = ["run_referee", "run_ledger", "LedgerResult"]
CODE = ["run_code_search", "CodeSearch"]  # see tests/automl/tasks/code_retrieval/test_code_export.py
SEPARATE = {"describe_data", "run_maps", *SEARCH, *MODEL, *CODE, *TRAIN, *STUDY, *REFEREE}
FUNCTIONS = [name for name in automl.__all__ if inspect.isfunction(getattr(automl, name))]


def documented(name: str, section: str) -> list[str]:
    text = inspect.getdoc(getattr(automl, name)) or ""
    match = re.search(rf"^{section}:\n((?: .*\n|\n)+)", text + "\n", re.M)
    return re.findall(r"^ {4}([\w*]+): ", match[1], re.M) if match else []


@pytest.mark.parametrize("name", sorted(set(automl.__all__) - SEPARATE))
def test_the_example_runs(name: str) -> None:
    run_examples([name])


def test_the_examples_of_a_referee_run(played: None, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeCommands(lambda variant, seed: seed % 7 + (variant == "candidate"))
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    run_examples(REFEREE)


def test_the_examples_of_a_search_run(played: None, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = PlayedWorkers(lambda variant, seed: 0.5 + seed / 100 + len(variant) / 1000)
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    run_examples(SEARCH)


def test_the_examples_of_a_training_run(store: MlflowClient) -> None:
    run_examples(TRAIN)


def test_the_example_of_a_dataset_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(["describe_data"])


@pytest.mark.slow("the same with trained models, and what needs one")
@pytest.mark.timeout(900)
def test_all_examples_of_a_search_run(store: MlflowClient) -> None:
    shutil.copy(ROOT / "docs" / "seven.png", ".")
    run_examples([*SEARCH[:-2], *MODEL, *SEARCH[-2:]])
    run_examples(STUDY)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_its_parameters(name: str) -> None:
    signature = inspect.signature(getattr(automl, name))
    parameters = [
        str(parameter).partition(":")[0].partition("=")[0] for parameter in signature.parameters.values()
    ]
    text = inspect.getdoc(getattr(automl, name)) or ""
    arguments = documented(name, "Args")
    if arguments[-1] == "**settings":  # those of `Settings`, which documents them
        parameters = ["*positional", "resume"] if name == "run_search" else ["name", "small"]
        parameters.append("**settings")
    assert arguments == parameters
    assert re.search(r"^Returns:\n    \S", text, re.M)
    assert documented(name, "Raises")[0] == "InputError"


@pytest.mark.parametrize("name", sorted(set(automl.__all__) - set(FUNCTIONS)))
def test_a_class_documents_its_attributes(name: str) -> None:
    value = getattr(automl, name)
    if name == "Callback":
        events = [event for key, event in vars(value).items() if key.startswith("on_")]
        assert len(events) == 7
        assert all("Args:\n" in (inspect.getdoc(event) or "") for event in events)
    elif is_dataclass(value):
        section = "Attributes" if documented(name, "Attributes") else "Args"
        assert documented(name, section) == [field.name for field in fields(value)]
    else:
        assert documented(name, "Args")
