"""The docstrings of the public API: they are complete, and their examples run."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

import automl
import automl.trials.session
from tests.helpers.api_cases import run_examples
from tests.helpers.confirm_cases import FakeCommands, PlayedWorkers

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
