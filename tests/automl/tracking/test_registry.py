import shutil
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from automl.base.errors import InputError
from automl.export.run_export import ExportResult, run_export
from automl.storage.storage import Storage
from automl.task import open_task
from automl.tasks.image_classification.task import ImageAnswers
from automl.tracking.run_spec import VERDICT
from automl.tracking.runs import check_registry, register
from automl.training import checkpoint
from automl.trials.train import TrainResult
from search.config import TrialConfig
from tests.helpers.automl_cases import CPU, HERE


def probabilities(uri: str, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(mlflow.pyfunc.load_model(uri).predict({"images": inputs})["probabilities"])


@pytest.mark.usefixtures("at_work")
def test_the_alias_names_a_model_that_predicts_like_the_trained_one(
    exported: ExportResult, trained: TrainResult, tmp_path: Path
) -> None:
    version = exported.registered
    assert (version.name, version.version, version.alias) == ("digits", "1", "champion")
    assert version.uri == "models:/digits@champion"
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    inputs = task.model_inputs("test", 50)["images"]
    with torch.inference_mode():
        expected = ImageAnswers(model).eval()(inputs).numpy()
    # The store has files of its own: the export folder may go.
    away = shutil.move(exported.folder, tmp_path / "away")
    try:
        answers = probabilities(version.uri, inputs.numpy())
    finally:
        shutil.move(away, exported.folder)
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-4)


def test_the_version_belongs_to_its_run(exported: ExportResult, at_work: Path) -> None:
    client = MlflowClient()
    version = client.get_model_version_by_alias("digits", "champion")
    assert version.run_id == exported.run_id
    assert version.tags[VERDICT] == "not confirmed on fresh seeds"
    assert version.tags["test_accuracy"] == f"{exported.test['accuracy']:.4f}"
    outputs = client.get_run(exported.run_id).outputs.model_outputs
    logged = client.get_logged_model(outputs[0].model_id)
    assert logged.source_run_id == exported.run_id
    assert logged.status == "READY"
    assert logged.artifact_location.startswith((at_work / "mlruns").as_uri())


@pytest.fixture
def run_of(store: MlflowClient) -> str:
    run: str = store.create_run(store.create_experiment("space")).info.run_id
    return run


def put(exported: ExportResult, run_id: str, alias: str = "champion", name: str = "mine") -> str:
    tags = {VERDICT: "none"}
    return register(exported.folder / "mlflow-model", run_id, name, alias, description="a", tags=tags).version


def test_a_second_registration_moves_the_alias(
    exported: ExportResult, run_of: str, store: MlflowClient
) -> None:
    assert [put(exported, run_of) for _ in range(2)] == ["1", "2"]
    assert store.get_registered_model("mine").aliases == {"champion": 2}
    check_registry("mine", "challenger")
    assert put(exported, run_of, alias="challenger") == "3"
    assert store.get_registered_model("mine").aliases == {"champion": 2, "challenger": 3}
    sources = {store.get_model_version("mine", str(version)).source for version in (1, 2, 3)}
    assert len(sources) == 3
    zeros = np.zeros((1, 24, 24, 3), np.uint8)
    assert probabilities("models:/mine@challenger", zeros).shape == (1, 10)
    assert probabilities("models:/mine/1", zeros).shape == (1, 10)


BAD = [
    ("a/b", "champion", "does not take 'a/b' as the name of a model"),
    ("mine", "a b", "--alias must consist of letters.*got 'a b'"),
]


@pytest.mark.parametrize(("name", "alias", "message"), BAD, ids=[f"{n}@{a[:6]}" for n, a, _ in BAD])
def test_names_that_mlflow_rejects(
    name: str, alias: str, message: str, store: MlflowClient, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run_export(tmp_path / "out", best=True, register_as=name, alias=alias)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow("exports again")
@pytest.mark.usefixtures("at_work")
def test_a_store_that_takes_no_files_leaves_the_export(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_model_artifacts", full)
    with pytest.raises(InputError, match=r"'mine' \(.*No space left.*The model is in .*/out all the same"):
        run_export(tmp_path / "out", run=trained.run_id, register_as="mine")
    assert (tmp_path / "out" / "model.onnx").exists()
