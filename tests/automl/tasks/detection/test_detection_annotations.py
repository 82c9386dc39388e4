"""Test reading of annotation files and reports of every fault."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from automl.base.errors import InputError
from automl.tasks.detection import DetectionData
from automl.tasks.detection.data import dataset as detection_cache
from automl.tasks.detection.data import masks, open_split
from automl.tasks.detection.data.annotations import build_objects, read_annotations
from automl.tasks.detection.data.coco_folder import is_coco, read_coco_folder
from automl.tasks.detection.data.dataset import summarise_detection

pytestmark = pytest.mark.usefixtures("cache")

Content = dict[str, Any]
SQUARE = [[2.0, 3.0, 12.0, 3.0, 12.0, 9.0, 2.0, 9.0]]


def content() -> Content:
    """Return two images, one of them without objects."""
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": 20, "height": 10},
            {"id": 9, "file_name": "b.png", "width": 16, "height": 16},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 5, "bbox": [2, 3, 10, 6], "area": 60.0, "iscrowd": 0}
            | {"segmentation": SQUARE},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 1}
            | {"segmentation": {"size": [10, 20], "counts": [0, 4, 196]}},
        ],
        "categories": [{"id": 5, "name": "dog"}, {"id": 3, "name": "cat"}],
    }


def write(root: Path, name: str, value: Content) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for i, image in enumerate(value["images"]):
        size = image["width"], image["height"]
        if "file_name" in image:
            Image.new("RGB", size, (i, len(name), 0)).save(folder / image["file_name"])
    (root / "annotations").mkdir(exist_ok=True)
    file = root / "annotations" / f"instances_{name}.json"
    file.write_text(json.dumps(value))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("train2017", "val2017", "test2017"):
        write(tmp_path / "coco", name, content())
    return tmp_path / "coco"


def test_a_folder_is_read(root: Path) -> None:
    assert is_coco(root)
    assert is_coco(root.parent)  # a folder with only this folder
    listing = read_coco_folder(root)
    assert listing.categories == {3: "cat", 5: "dog"}
    counts = {split: len(photos) for split, photos in listing.splits.items()}
    assert counts == dict.fromkeys(("train", "validation", "test"), 2)
    images = open_split(DetectionData(source="coco", path=str(root), size=10), "train")
    assert images.classes == ("cat", "dog")
    assert images.image(0).shape == (5, 10, 3)  # the longer side is bounded
    objects = images.objects(0)
    assert objects.boxes.tolist() == [[2, 3, 10, 6], [0, 0, 4, 4]]  # of the original
    assert (objects.labels.tolist(), objects.crowd.tolist()) == ([2, 1], [False, True])
    assert objects.masks is not None
    decoded = masks.decode_masks(objects.masks, 5, 10)
    assert decoded[0].sum() == pytest.approx(60 / 4, abs=3)
    assert len(images.objects(1)) == 0  # data, not a mistake


def test_polygons_and_run_lengths_give_the_same_mask() -> None:
    shape = np.zeros((10, 20), np.uint8)
    shape[3:9, 2:12] = 1
    runs = coco.encode(np.asfortranarray(shape))
    flat, lengths, value = shape.T.ravel().tolist(), [0], 0
    for pixel in flat:
        if pixel != value:
            lengths.append(0)
            value = pixel
        lengths[-1] += 1
    for form in (SQUARE, *({"size": [10, 20], "counts": c} for c in (lengths, runs["counts"].decode()))):
        assert masks.filter_segmentation(form, 10, 20)[1] == []
        (again,) = masks.decode_masks([masks.encode_segmentation(form, 10, 20)], 10, 20)
        assert (again == shape).all()


@pytest.mark.parametrize("seed", range(20))
def test_compressed_run_lengths_of_any_mask_are_accepted_and_others_refused(seed: int) -> None:
    draw = np.random.default_rng(seed)
    height, width = draw.integers(1, 70, 2)
    shape = np.asfortranarray(draw.random((height, width)) < draw.random(), dtype=np.uint8)
    counts = coco.encode(shape)["counts"].decode()
    size = [int(height), int(width)]
    assert not masks.filter_segmentation({"size": size, "counts": counts}, *size)[1]
    assert masks.filter_segmentation({"size": size, "counts": counts[:-1]}, *size)[1]
    assert masks.filter_segmentation({"size": size, "counts": counts + "1"}, *size)[1]
    assert masks.filter_segmentation({"size": [size[0] + 1, size[1]], "counts": counts}, *size)[1]


def test_boxes_end_at_the_edge_and_impossible_areas_are_computed() -> None:
    annotation = {"bbox": [-0.5, 2, 30.5, 8.5], "category_id": 1}
    objects = build_objects([annotation], {1: 1}, (10, 30), masked=False)
    assert objects.boxes.tolist() == [[0, 2, 30, 8]]
    assert objects.areas.tolist() == [240]
    for area in (NAN, HUGE, -1, 1e9, "60"):
        annotation = {"bbox": [2, 3, 10, 6], "category_id": 1, "area": area}
        assert build_objects([annotation], {1: 1}, (10, 20), masked=False).areas.tolist() == [60]


def entry(kind: str, number: int, **values: Any) -> Callable[[Content], None]:
    return lambda content: content[kind][number].update(values)


WRONG: list[tuple[Callable[[Content], Any], str]] = [
    (entry("categories", 0, id=3), r"category 3 is listed twice"),
    (entry("annotations", 0, image_id=8), r"annotation 1 has the image 8, which is not listed"),
    (entry("annotations", 0, bbox=[1, 2, 0, 4]), r"annotation 1 of a.png has a box of no area: \[1, 2, 0"),
    (
        entry("annotations", 1, segmentation={"size": [10, 20], "counts": [0, 4, 195]}),
        r"annotation 2 of a.png: the run lengths of its mask must sum to 200",
    ),
    (entry("images", 0, file_name="..\\b.png"), r"image 7 must have a `file_name` below the folder"),
    (entry("images", 1, file_name="../b.png"), r"image 9 must have a `file_name` below the folder"),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_faults_name_file_and_entry(spoil: Callable[[Content], Any], message: str, tmp_path: Path) -> None:
    value = content()
    spoil(value)
    file = tmp_path / "instances_train.json"
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=message) as raised:
        read_annotations(file)
    assert str(file) in str(raised.value)


INFINITE, NAN, HUGE = float("inf"), float("nan"), 10**400
ODD: list[Content] = [
    {"bbox": [1, 1, 2, 0]},
    {"bbox": [-1, 1, 1, 4]},  # no area is left within the image
    {"segmentation": [[2, 3, 4, 3, 6, 3]]},  # on a line
    {"segmentation": [[2, 3, 5e8, 3, 4, 5e8]]},
    {"segmentation": [[30, 3, 34, 3, 34, 8]]},  # outside of the image
    {"segmentation": [[INFINITE, 3, 4, 3, 4, 8]]},
    {"segmentation": {"size": [10, 20], "counts": "P" * 20 + "0"}},  # a run of too many letters
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:50])
def test_an_invalid_object_is_left_out(
    odd: Content, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = content()
    good = value["annotations"][0]
    value["annotations"] = [{**good, "id": i} for i in range(15)] + [{**good, "id": -1, **odd}]
    file = tmp_path / "instances_train.json"
    file.write_text(json.dumps(value))
    read = read_annotations(file)
    assert len(read.images[0].annotations) == 15
    assert len(build_objects(read.images[0].annotations, {5: 1}, (10, 20), masked=True)) == 15
    assert len(read.left_out) == 1
    assert re.fullmatch(
        r"warning: left out: 1 of 16 objects of .*_train.json: annotation -1 .*\n", capsys.readouterr().err
    )
    value["annotations"] *= 2  # Two of 32 are more than one in a hundred.
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"2 of its 32 objects are wrong; at most one in a hundred"):
        read_annotations(file)


GROUPED = [
    {"id": 0, "name": "animals", "supercategory": "none"},
    {"id": 3, "name": "cat", "supercategory": "animals"},
    {"id": 5, "name": "dog", "supercategory": "animals"},
]


def write_roboflow(root: Path) -> None:
    for name in ("train", "valid", "test"):
        file = write(root, name, {**content(), "categories": GROUPED})
        file.rename(root / name / "_annotations.coco.json")


def write_label_studio(root: Path) -> None:
    value = content()
    for image in value["images"]:
        image["file_name"] = f"images\\{image['file_name']}"
    write(root, "images", content()).unlink()
    (root / "result.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (write_roboflow, {"train": "train/a.png", "validation": "valid/a.png", "test": "test/a.png"}),
        (write_label_studio, {"train": "images/a.png"}),
    ],
)
def test_layouts_of_tools_are_read(
    make: Callable[[Path], None], names: dict[str, str], tmp_path: Path
) -> None:
    make(tmp_path / "export")
    assert is_coco(tmp_path / "export")
    listing = read_coco_folder(tmp_path / "export")
    assert listing.categories == {3: "cat", 5: "dog"}  # not the group of them
    assert {split: photos[0].name for split, photos in listing.splits.items()} == names


def test_missing_images_and_other_categories_are_reported(root: Path) -> None:
    (root / "val2017" / "b.png").unlink()
    with pytest.raises(InputError, match=r"instances_val2017.json names 2 images; 1 does not exist: 9"):
        read_coco_folder(root)
    file = root / "annotations" / "instances_val2017.json"
    value = content()
    value["categories"][1]["name"] = "horse"
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"must list the same categories; they differ in 3"):
        read_coco_folder(root)


@pytest.mark.parametrize(
    "summarise",
    [summarise_detection, lambda root: open_split(DetectionData(source="coco", path=root, size=9), "train")],
)
def test_wrong_images_are_reported_before_decoding(
    summarise: Callable[[str], object], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection_cache, "_make_row", pytest.fail)
    Image.new("RGB", (10, 20)).save(root / "train2017" / "a.png")  # lying on its side
    (root / "train2017" / "b.png").write_bytes(b"no image")
    message = r"a.png has .* say 20 x 10; .*b.png cannot be decoded .*\(2 of \d images"
    with pytest.raises(InputError, match=message):
        summarise(str(root))


def test_data_without_masks_are_read(root: Path) -> None:
    for file in root.glob("annotations/*.json"):
        value = content()
        for annotation in value["annotations"]:
            del annotation["segmentation"]
        file.write_text(json.dumps(value))
    images = open_split(DetectionData(source="coco", path=str(root), size=64), "train")
    assert not images.has_masks
    assert images.objects(0).masks is None
