"""Task stereo, from its model to predictions with its export."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attention import Spec
from automl.export import run_export as export
from automl.export.export_result import ExportResult
from automl.export.formats import CONFIG, MLFLOW_MODEL, forms_of
from automl.export.predict import run_predict
from automl.task import open_task
from automl.task.deployment import MODEL
from automl.tasks.stereo import StereoData, StereoModel, StereoTraining
from automl.tasks.stereo.data import planes
from automl.tasks.stereo.data.pairs import read_disparity
from automl.tasks.stereo.task import Stereo, colour_disparity
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE, untrained
from tests.helpers.code_cases import CHOSEN

pytestmark = pytest.mark.slow("another export")


@pytest.fixture(scope="module")
def task() -> Stereo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planes, "COUNTS", {"train": 4, "validation": 2, "test": 3})
        config = TrialConfig(
            task="stereo",
            data=StereoData(height=32, width=48, max_disparity=32),
            model=StereoModel(
                options={"width": 0.25, "blocks": 1, "pool": 8},
                placement={"backbone.pyramid": Spec("decomposed"), "stage6.block1": Spec("decomposed")},
            ),
            training=StereoTraining(epochs=1, batch_size=2),
        )
        task = open_task(config, HERE)
        assert isinstance(task, Stereo)
        return task


@pytest.fixture(scope="module")
def result(task: Stereo, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    folder = tmp_path_factory.mktemp("export")
    return export._write(folder, task, untrained(task, 0.3), CHOSEN, folder, None)


def test_every_form_answers_like_the_model(task: Stereo, result: ExportResult) -> None:
    assert result.differences.keys() == {*forms_of(MODEL), MLFLOW_MODEL}
    assert all(0 <= difference <= task.tolerance for difference in result.differences.values())
    assert "epe" in result.test


def pair(task: Stereo, folder: Path, name: str, crop: int = 0) -> None:
    left, right = task.pairs.file.images(int(task.pairs.rows("test")[0]))
    for side, image in (("left", left), ("right", right)):
        (folder / side).mkdir(exist_ok=True)
        Image.fromarray(image[: image.shape[0] - crop]).save(folder / side / f"{name}.png")


def test_predictions_are_written_as_pfm_and_picture(
    task: Stereo, result: ExportResult, tmp_path: Path
) -> None:
    pair(task, tmp_path, "one")
    pair(task, tmp_path, "small", crop=24)
    lines = ["left,right", "left/one.png,right/one.png", "left/small.png,right/small.png"]
    (tmp_path / "pairs.csv").write_text("\n".join([*lines, lines[1]]))
    result_of_pairs = run_predict(result.folder, [tmp_path / "pairs.csv"], out=tmp_path / "out")
    names = [[file.name for file in prediction.files] for prediction in result_of_pairs.predictions]
    assert names == [["one.pfm", "one.png"], ["small.pfm", "small.png"], ["one-2.pfm", "one-2.png"]]
    whole = read_disparity(tmp_path / "out" / "one.pfm")
    assert whole.shape == (80, 176)
    assert read_disparity(tmp_path / "out" / "small.pfm").shape == (56, 176)
    inputs = {name: value.numpy() for name, value in task.model_inputs("test", 1).items()}
    assert inputs["left"].shape == (1, 80, 176, 3)
    config = json.loads((Path(result.folder) / CONFIG).read_text())
    assert config["graphs"]["model"]["details"] == {"height": 80, "width": 176}
    picture = np.asarray(Image.open(tmp_path / "out" / "one.png"))
    assert (picture == colour_disparity(whole, 32)).all()
