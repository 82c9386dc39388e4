"""Task detection, from its model to predictions with its export."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from torch import Tensor

from attention import Spec
from automl.export import run_export as export
from automl.export.export_result import ExportResult
from automl.export.formats import CONFIG, MLFLOW_MODEL, forms_of
from automl.export.predict import run_predict
from automl.task import open_task
from automl.task.deployment import MODEL
from automl.tasks.detection import DetectionData, DetectionTraining
from automl.tasks.detection.data.dataset import read_scenes
from automl.tasks.detection.deploy import DetectionDeployment
from automl.tasks.detection.task import Detection
from search.config import TrialConfig
from tests.helpers import others_slow
from tests.helpers.automl_cases import HERE, untrained
from tests.helpers.code_cases import CHOSEN
from tests.helpers.detection_cases import SMALL, few_scenes

PLACEMENT = {"fpn.p3": Spec("decomposed"), "stage2.block2": Spec("ssa")}


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    with few_scenes(8, 4):
        yield


def opened(masks: bool = True) -> Detection:
    config = TrialConfig(
        task="detection", data=DetectionData(), model=SMALL, training=DetectionTraining(batch_size=4)
    ).change(model={"masks": masks, "placement": PLACEMENT})
    task = open_task(config, HERE)
    assert isinstance(task, Detection)
    return task


def trained(task: Detection) -> Any:
    """Create a model with many detections, changed statistics of norms and no equal scores."""
    model = untrained(task, 0.01)
    predictor = model.roi_heads.box_predictor
    with torch.no_grad():
        predictor.cls_score.weight.normal_(0, 0.5)
        predictor.bbox_pred.weight.normal_(0, 0.2)
    return model


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("masks", others_slow([True, False], False), ids=["masks", "boxes"])
def test_graph_matches_torchvision(masks: bool) -> None:
    task = opened(masks)
    model = trained(task)
    numbers = torch.Generator().manual_seed(1)
    images = [torch.randint(256, (h, w, 3), generator=numbers, dtype=torch.uint8) for h, w in SIZES]
    padded = torch.randint(256, (len(images), 96, 96, 3), generator=numbers, dtype=torch.uint8)
    for canvas, image in zip(padded, images, strict=True):
        canvas[: image.shape[0], : image.shape[1]] = image
    inputs = {"images": padded, "sizes": torch.tensor(SIZES)}
    graph = {name: torch.from_numpy(value) for name, value in task.deployment(model).run(inputs).items()}
    with torch.no_grad():
        detections = model([image.permute(2, 0, 1).float() / 255 for image in images])
    assert sum(len(detection["scores"]) for detection in detections) > len(images)
    for i, detection in enumerate(detections):
        count = len(detection["scores"])
        torch.testing.assert_close(graph["scores"][i][:count], detection["scores"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(graph["boxes"][i][:count], detection["boxes"], rtol=1e-5, atol=1e-4)
        assert torch.equal(graph["labels"][i][:count], detection["labels"])
        assert not graph["scores"][i][count:].any()
        if masks:
            check_masks(graph["masks"][i][:count], detection["boxes"], detection["masks"])


SIZES = [(96, 96), (60, 96), (96, 33)]


def check_masks(ours: Tensor, boxes: Tensor, theirs: Tensor) -> None:
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    height, width = theirs.shape[2:]
    pasted = paste_masks_in_image(ours.unsqueeze(1), boxes, (height, width))
    torch.testing.assert_close(pasted, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def result(few: None, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    folder, task = tmp_path_factory.mktemp("export"), opened()
    return export._write(folder, task, trained(task), CHOSEN, folder, None)


@pytest.mark.slow("exports a detector")
def test_every_form_answers_like_the_model(result: ExportResult) -> None:
    assert result.differences.keys() == {*forms_of(MODEL), MLFLOW_MODEL}
    assert all(0 <= difference <= Detection.tolerance for difference in result.differences.values())
    assert {"box_ap", "mask_ap"} <= result.test.keys()


@pytest.mark.slow("exports a detector")
def test_pictures_become_results_of_coco_and_pictures(result: ExportResult, tmp_path: Path) -> None:
    """A large image is scaled. Detections are in its own pixels."""
    photo = read_scenes().splits["test"][0]
    small = Image.fromarray(np.asarray(photo.image))
    small.save(tmp_path / "small.png")
    small.resize((288, 288), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    result_of_files = run_predict(Path(str(result.folder)), [tmp_path], out=tmp_path / "out")
    assert [Path(prediction.input).name for prediction in result_of_files.predictions] == [
        "large.png",
        "small.png",
    ]
    assert "cannot be read as an image" in result_of_files.unread[str(tmp_path / "broken.png")]
    labels = json.loads((Path(str(result.folder)) / CONFIG).read_text())["graphs"]["model"]["details"][
        "labels"
    ]
    answers = {}
    for name, side in (("small", 96), ("large", 288)):
        entries = answers[name] = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        with Image.open(tmp_path / "out" / f"{name}.png") as picture:
            assert picture.size == (side, side)
        assert entries
        for entry in entries:
            assert entry["image_id"] == name
            assert labels[entry["category_id"] - 1] == entry["category"]
            left, top, width, height = entry["bbox"]
            assert -0.01 <= left <= left + width <= side + 0.01
            assert -0.01 <= top <= top + height <= side + 0.01
            assert entry["segmentation"]["size"] == [side, side]
            box = coco_mask.toBbox(entry["segmentation"])
            if box[2:].all():  # the mask lies in its box
                assert box[0] >= left - 2
                assert box[0] + box[2] <= left + width + 2
    assert len(answers["small"]) == len(answers["large"])


@pytest.mark.parametrize(("name", "number"), [("000031.png", 31), ("street.png", "street")])
def test_predictions_have_the_annotations_numbers(name: str, number: int | str, tmp_path: Path) -> None:
    image = {"id": 31, "file_name": "000031.png", "width": 40, "height": 30}
    annotation = {
        "id": 1,
        "image_id": 31,
        "category_id": 7,
        "bbox": [4, 4, 16, 16],
        "area": 256,
        "iscrowd": 0,
    }
    content = {"images": [image], "annotations": [annotation], "categories": [{"id": 7, "name": "disc"}]}
    truth = tmp_path / "instances.json"
    truth.write_text(json.dumps(content))
    Image.new("RGB", (40, 30)).save(tmp_path / name)
    details = {"labels": ["box", "disc"], "category_ids": [1, 7], "size": 64, "canvas": 64}
    outputs = {
        "boxes": np.array([[4.0, 4, 20, 20]], np.float32),
        "labels": np.array([2]),
        "scores": np.array([0.9], np.float32),
        "masks": np.full((1, 28, 28), 0.9, np.float32),
    }
    file, _ = Detection.write({"details": details}, str(tmp_path / name), outputs, tmp_path / "out")
    (entry,) = json.loads(file.read_text())
    assert (entry["image_id"], entry["file_name"]) == (number, name)
    assert (entry["category_id"], entry["category"]) == (7, "disc")
    if number == 31:
        assert COCO(truth).loadRes(str(file)).getCatIds() == [7]


def answer(scores: list[float], shift: float = 0.0) -> dict[str, np.ndarray]:
    count = len(scores)
    boxes = np.tile(np.array([10.0, 10, 50, 60]), (1, count, 1)) + 20 * np.arange(count)[None, :, None]
    return {"boxes": boxes + shift, "labels": np.arange(1, count + 1)[None], "scores": np.array([scores])}


@pytest.mark.parametrize(
    ("theirs", "least", "most"),
    [
        (answer([0.9, 0.5, 0.05]), 0, 1e-9),
        (answer([0.9, 0.5, 0.0]), 0, 1e-9),  # what is hardly found may be missing
        (answer([0.9, 0.52, 0.05]), 0.019, 0.021),
        (answer([0.9, 0.0, 0.05]), 0.99, 1),
        (answer([0.9, 0.5, 0.05], shift=1), 1 / 100 - 1e-3, 1 / 100 + 1e-3),
    ],
)
def test_forms_are_compared_by_objects(theirs: dict[str, np.ndarray], least: float, most: float) -> None:
    assert least <= DetectionDeployment().compare(answer([0.9, 0.5, 0.05]), theirs) <= most
