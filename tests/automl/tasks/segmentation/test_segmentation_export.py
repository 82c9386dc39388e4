"""Task segmentation, from its model to predictions with its export."""

import json
from collections.abc import Iterator
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
from automl.tasks.segmentation import SegmentationData, SegmentationTraining
from automl.tasks.segmentation.task import Segmentation
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE, untrained
from tests.helpers.code_cases import CHOSEN
from tests.helpers.segmentation_cases import NAMES, SMALL, few_scenes


@pytest.fixture(scope="module")
def task() -> Iterator[Segmentation]:
    with few_scenes(8, 4):
        config = TrialConfig(
            task="segmentation",
            data=SegmentationData(size=64),
            model=SMALL,
            training=SegmentationTraining(epochs=1, batch_size=4),
        )
        placement = {"skip1": Spec("ssa"), "bottleneck": Spec("sagan"), "stage2.block1": Spec("decomposed")}
        task = open_task(config.change(model={"placement": placement}), HERE)
        assert isinstance(task, Segmentation)
        yield task


@pytest.fixture(scope="module")
def result(task: Segmentation, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    folder = tmp_path_factory.mktemp("export")
    return export._write(folder, task, untrained(task, 0.3), CHOSEN, folder, None)


def test_every_form_answers_like_the_model(task: Segmentation, result: ExportResult) -> None:
    assert result.differences.keys() == {*forms_of(MODEL), MLFLOW_MODEL}
    assert all(0 <= difference <= task.tolerance for difference in result.differences.values())
    assert {"miou", "pixel_accuracy", "dice"} <= result.test.keys()
    details = json.loads((Path(result.folder) / CONFIG).read_text())["graphs"]["model"]["details"]
    assert details == {"labels": NAMES, "size": 64}


def test_masks_and_overlays_have_the_images_size(
    task: Segmentation, result: ExportResult, tmp_path: Path
) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    result_of_file = run_predict(result.folder, [tmp_path / "photo.png"], out=tmp_path / "out")
    assert [file.name for file in result_of_file.predictions[0].files] == ["photo.png", "photo-overlay.png"]
    mask, overlay = (Image.open(file) for file in result_of_file.predictions[0].files)
    assert (mask.mode, mask.size, overlay.mode, overlay.size) == ("P", (90, 50), "RGB", (90, 50))
    labels = np.asarray(mask)
    fractions = result_of_file.predictions[0].values["shares"]
    assert {NAMES[label] for label in np.unique(labels)} == fractions.keys()
    assert sum(fractions.values()) == pytest.approx(1)
    assert [*fractions.values()] == sorted(fractions.values(), reverse=True)
    halves = (photo.astype(float) + np.asarray(mask.convert("RGB"))) / 2
    assert np.abs(np.asarray(overlay) - halves).max() <= 1
    size = (64, 64)
    resized = np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BILINEAR))
    own = task.deployment(task.model()).inputs["images"]
    assert resized.shape == tuple(own.shape[1:])
