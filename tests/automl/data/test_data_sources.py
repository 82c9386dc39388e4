import csv
import json
import os
import shutil
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from automl.base.errors import InputError
from automl.data.digits import read_digits
from automl.data.manifest import Manifest
from automl.data.records import Item, Listing
from automl.search.prepare import fit
from automl.task import task_of_data
from automl.task.opening import describe_data
from automl.tasks.image_classification.data import open_image_records
from automl.tasks.image_classification.data.dataset import list_images
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation.data import open_labelled_images
from automl.tasks.sequence_classification.data import long_csv

Make = Callable[..., Path]


def counts(listing: Listing[Item]) -> dict[str, int]:
    return {split: len(images) for split, images in listing.splits.items()}


def test_digits_are_those_of_scikit_learn() -> None:
    digits = load_digits()
    images, labels = read_digits()
    np.testing.assert_array_equal(images, digits.images, strict=False)
    np.testing.assert_array_equal(labels, digits.target)
    listing = list_images("digits", None, 32)
    assert listing.classes == tuple("0123456789")
    assert counts(listing) == {"train": 1797}
    pixels = np.stack([item.image for item in listing.splits["train"]])
    assert (pixels.dtype, pixels.shape) == (np.uint8, (1797, 8, 8))
    assert (pixels.min(), pixels.max()) == (0, 255)


@pytest.mark.parametrize("held", ["val", "test"])
def test_folder_with_one_held_out_split(held: str, tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"train/cat": 3, "train/dog": 2, f"{held}/dog": 4})
    listing = list_images("folder", str(root), 32)
    assert listing.classes == ("cat", "dog")
    assert counts(listing) == {"train": 5, "test": 4}
    assert {item.label for item in listing.splits["test"]} == {1}
    assert listing.splits["test"][0].name == f"{held}/dog/0000.png"


@pytest.mark.parametrize(
    "names", [("training", "validation"), ("Train", "Testing"), ("train", "valid", "test")], ids=" ".join
)
def test_usual_names_of_splits(names: tuple[str, ...], tmp_path: Path, make_folder: Make) -> None:
    sizes = {f"{name}/{kind}": 4 - i for i, name in enumerate(names) for kind in "ab"}
    splits = ("train", "validation", "test") if len(names) == 3 else ("train", "test")
    sizes_of = counts(list_images("folder", make_folder(tmp_path / "d", sizes), 32))
    assert sizes_of == {split: 8 - 2 * i for i, split in enumerate(splits)}


def test_plain_folders_and_archives_have_a_test_split(tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"cat": 10, "dog/deep/er": 5})
    records = open_image_records("folder", path=root, size=32)
    splits = [records.inputs(split) for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == len({item.name for images in splits for item in images}) == 15
    assert all({item.label for item in images} == {0, 1} for images in splits)
    moved = shutil.move(root, tmp_path / "elsewhere")
    again = open_image_records("folder", path=moved, size=32)
    assert [item.name for item in again.inputs("test")] == [item.name for item in splits[2]]
    root = make_folder(
        tmp_path / "imagewoof", {"train/n02086240": 2, "train/n02111889": 2, "val/n02111889": 1}
    )
    with tarfile.open(tmp_path / "w.tgz", "w:gz") as file:
        file.add(root, "imagewoof")
    listing = list_images("woof", tmp_path / "w.tgz", 128)
    assert listing.classes == ("Shih-Tzu", "Samoyed")
    assert counts(listing) == {"train": 4, "test": 1}


@pytest.mark.parametrize("names", [["train"], ["test"], ["val", "train"], ["test", "testing"], ["Train"]])
def test_class_may_have_the_name_of_a_split(names: list[str], tmp_path: Path, make_folder: Make) -> None:
    listing = list_images("folder", make_folder(tmp_path / "d", dict.fromkeys(["bus", *names], 6)), 32)
    assert listing.classes == tuple(sorted(["bus", *names]))
    assert sum(counts(listing).values()) == 6 * (1 + len(names))


def test_other_and_hidden_files_are_ignored(tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"cat": 5, "dog": 5, ".hidden": 2, "dog/.cache": 2, "__MACOSX": 1})
    (root / "notes").mkdir()
    for name in ("notes/a.txt", "cat/labels.csv", "cat/._0.png", "dog/Thumbs.db", "README.md", "loose.png"):
        (root / name).write_text("x")
    listing = list_images("folder", root, 32)
    assert listing.classes == ("cat", "dog")
    assert sum(counts(listing).values()) == 10
    assert left_out(listing) == {
        "images outside of the folders of classes": ["loose.png"],
        "files that cannot be read as images": ["cat/labels.csv", "notes/a.txt"],
        "folders without images": ["notes"],
        "files of the operating system or hidden": ["cat/._0.png", "dog/Thumbs.db"],
    }


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({}, "no folders with images"),
        ({"train/a": 2, "train/b": 2, "val/a": 0}, "val has no folders with images"),
        ({"train/a": 2, "Training/a": 2, "val/a": 1}, "train/ and Training/, which are both the train split"),
        ({"cat": 3}, "only one class, 'cat'"),
        ({"train/a": 2, "train/b": 2}, "has train/ but no val/ or test/"),
        ({"train/a": 2, "train/b": 2, "validate/a": 2}, "has train/ but no val/.* beside it validate;"),
        ({"val/a": 2, "test/b": 2}, "has val/ or test/ but no train/"),
        ({"train/a": 2, "train/b": 2, "test/a": 1, "test/c": 1}, "'c' .1 in all. are not. Choose from a, b"),
        ({"a": 1, "b": 1}, "a test split needs two different images of one class"),
    ],
)
def test_invalid_folders_are_rejected(
    folders: dict[str, int], message: str, tmp_path: Path, make_folder: Make
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    with pytest.raises(InputError, match=message):
        open_image_records("folder", path=make_folder(root, folders), size=32)


def left_out(listing: Listing[Item]) -> dict[str, list[str]]:
    return {kind: names for kind, (_, names) in listing.tally.left_out.items()}


@pytest.mark.parametrize("name", ["{i}.jfif", "{i}.JPE", "{i}.jpg_large", "{i}", "{i}.jpg~"])
def test_images_with_unusual_suffixes_are_read(name: str, tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"cat": 5, "fox": 5})
    for i, file in enumerate(sorted((root / "fox").iterdir())):
        with Image.open(file) as image:
            image.convert("RGB").save(root / "fox" / name.format(i=i), "JPEG")
        file.unlink()
    (root / "fox" / "notes.txt").write_text("text")
    listing = list_images("folder", root, 32)
    assert listing.classes == ("cat", "fox")
    assert sum(counts(listing).values()) == 10
    assert left_out(listing) == {"files that cannot be read as images": ["fox/notes.txt"]}


@pytest.mark.parametrize("suffix", ["jxl", "CR2", "dcm", "psd"])
def test_class_of_unreadable_pictures_is_rejected(suffix: str, tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"cat": 5, "dog": 5, "fox": 0})
    for i in range(4):
        (root / f"fox/{i}.{suffix}").write_bytes(b"II*\0")
    with pytest.raises(InputError, match=rf"fox has 4 pictures, none of which can be read: 0.{suffix}"):
        list_images("folder", root, 32)
    shutil.copy(root / "cat" / "0000.png", root / "fox" / "new.png")
    (root / "cat" / "0000.png").unlink()
    listing = list_images("folder", root, 32)
    assert listing.tally.left_out["files that cannot be read as images"][0] == 4


@pytest.mark.parametrize(
    "links",
    [
        {"dog/all": ".."},
        {"all": "."},
        {"dog/away": "../../other", "../other/back": "../d"},
        {"dog/away": "../../other", "../other/up": ".."},
    ],
    ids=str,
)
def test_links_to_parent_folders_are_not_followed(
    links: dict[str, str], tmp_path: Path, make_folder: Make
) -> None:
    root = make_folder(tmp_path / "d", {"cat": 5, "dog": 5})
    (tmp_path / "other").mkdir()
    for name, target in links.items():
        (root / name).symlink_to(target)
    listing = list_images("folder", root, 32)
    assert sum(counts(listing).values()) == 10
    assert "links to a folder above them" in left_out(listing)


def test_images_in_two_classes_and_elsewhere(tmp_path: Path, make_folder: Make) -> None:
    make_folder(tmp_path / "raw", {"c": 5, "d": 6})
    root = make_folder(tmp_path / "d", {"dog": 0})
    (root / "cat").symlink_to("../raw/c")
    (root / "dog" / "more").symlink_to("../../raw/d")
    assert sum(counts(list_images("folder", root, 32)).values()) == 11
    root = make_folder(tmp_path / "e", {"cat": 5, "dog": 5})
    shutil.copytree(root / "dog", root / "hound")
    listing = list_images("folder", root, 32)
    assert sum(counts(listing).values()) == 15
    assert [*listing.tally.kept.values()] == [(5, [f"dog/{i:04}.png and hound/{i:04}.png" for i in range(3)])]
    root = make_folder(tmp_path / "f", {"train/cat": 6, "train/dog": 6, "test/cat": 3, "test/dog": 3})
    shutil.copy(root / "train/cat/0001.png", root / "train/dog/a.png")
    shutil.copy(root / "train/cat/0002.png", root / "test/dog/b.png")
    shutil.copy(root / "train/cat/0003.png", root / "train/cat/c.png")
    (root / "train/dog/d.png").symlink_to("../cat/0005.png")
    (root / "rest").mkdir()
    listing = list_images("folder", root, 32)
    assert counts(listing) == {"train": 10, "test": 6}
    assert left_out(listing) == {
        "folders that belong to no split": ["rest/"],
        "images with two different labels": [
            "train/cat/0001.png and train/dog/a.png",
            "train/cat/0002.png and test/dog/b.png",
            "train/cat/0005.png and train/dog/d.png",
        ],
    }
    assert [*listing.tally.kept.values()] == [(1, ["train/cat/c.png"])]


def labelled(root: Path, make_folder: Make, rows: str) -> Path:
    """Write six images into one folder, and their table."""
    make_folder(root, {"images": 6})
    (root / "labels.csv").write_text(rows)
    return root


def test_tables_have_labels_and_splits(tmp_path: Path, make_folder: Make) -> None:
    rows = "".join(f"images/{i:04}.png,{'cat' if i % 2 else 'dog'}\n" for i in range(6))
    listing = list_images("folder", labelled(tmp_path / "d", make_folder, f"Filename,Label\n{rows}"), 32)
    assert listing.classes == ("cat", "dog")
    assert sum(counts(listing).values()) == 6
    assert listing.splits.keys() == {"train"}
    rows = "".join(f"images/{i:04}.png,{'cat' if i % 2 else 'dog'}\n" for i in range(5))
    rows += "images/0000.png,cat\nimages/0001.png,cat\n"
    listing = list_images("folder", labelled(tmp_path / "e", make_folder, f"file,label\n{rows}"), 32)
    assert sum(counts(listing).values()) == 4
    assert left_out(listing) == {
        "images that labels.csv does not name": ["images/0005.png"],
        "rows of labels.csv that repeat an image": ["images/0001.png"],
        "images with two different labels": ["images/0000.png as cat and dog"],
    }
    splits = ["train", "train", "train", "Training", "val", "val"]
    rows = "".join(f"images/{i:04}.png,{i % 2},{split}\n" for i, split in enumerate(splits))
    listing = list_images("folder", labelled(tmp_path / "f", make_folder, f"file,class,split\n{rows}"), 32)
    assert counts(listing) == {"train": 4, "test": 2}
    listing = list_images("folder", tiny_imagenet(tmp_path / "g", make_folder, TINY), 32)
    assert listing.classes == ("a", "b")
    assert counts(listing) == {"train": 5, "test": 3}
    assert [listing.classes[item.label] for item in listing.splits["test"]] == ["a", "b", "b"]
    assert len(left_out(listing)["images of the test split, which have no labels"]) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("file,label\nimages/0000.png,a\nimages/9.png,b\n", "line 3: there is no file .*9.png"),
        ("file,label\n../0000.png,a\n", "line 2: .* must be in the folder"),
        ("file,label\nimages/0000.png,\n", "line 2: 0000.png has no label"),
        ("file,label,split\nimages/0000.png,a,first\n", "line 2: the split must be one of train"),
    ],
)
def test_invalid_tables_are_rejected(rows: str, message: str, tmp_path: Path, make_folder: Make) -> None:
    with pytest.raises(InputError, match=message):
        list_images("folder", labelled(tmp_path / "d", make_folder, rows), 32)


TINY = "val_0.JPEG\ta\t0\t32\t44\t62\nval_1.JPEG\tb\t52\t55\t57\t59\n\nval_2.JPEG\tb\t4\t0\t60\t55\n"


def tiny_imagenet(root: Path, make_folder: Make, annotations: str) -> str:
    """Write the layout of http://cs231n.stanford.edu/tiny-imagenet-200.zip."""
    make_folder(root, {"train/a/images": 2, "train/b/images": 3, "val/images": 3, "test/images": 2})
    for name in ("a", "b"):
        (root / f"train/{name}/{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t62\t63\n")
    for i, image in enumerate(sorted((root / "val/images").iterdir())):
        image.rename(image.with_name(f"val_{i}.JPEG"))
    (root / "val/val_annotations.txt").write_text(annotations)
    (root / "wnids.txt").write_text("a\nb\n")
    return str(root)


def test_names_that_are_not_utf8_are_texts(tmp_path: Path, make_folder: Make) -> None:
    root = make_folder(tmp_path / "d", {"a": 10, "b": 10, "c": 10})
    (root / "a").rename(root / os.fsdecode(b"caf\xe9"))
    (root / "b").rename(root / os.fsdecode(b"caf\xe8"))
    (root / "c" / "0000.png").rename(root / "c" / os.fsdecode(b"\xff.png"))
    listing = list_images("folder", root, 8)
    assert listing.classes == ("c", "caf\\xe8", "caf\\xe9"), "two names stay two"
    names = {item.name for split in listing.splits.values() for item in split}
    assert {"c/\\xff.png", "caf\\xe9/0000.png"} <= names
    Manifest.from_splits({"train": [(item.name, "c", item.content) for item in listing.splits["train"]]})


COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Äpfel") for form in ("NFC", "NFD"))


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(abs(hash(str(path))))
    Image.fromarray(noise.integers(0, 256, (12, 16, 3), np.uint8)).save(path)


def table(path: Path, *rows: tuple[object, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def folders(root: Path, first: str, second: str) -> set[str]:
    """Write train and test folders as if copied from two machines."""
    for folder in (f"train/{first}", "train/b", f"val/{second}"):
        picture(root / folder / "0.png")
    listing = list_images("folder", str(root), 32)
    assert [len(images) for images in listing.splits.values()] == [2, 1]
    return {listing.classes[item.label] for item in listing.splits["test"]}


def labels(root: Path, first: str, second: str) -> set[str]:
    rows = []
    for i, (stored, name, label) in enumerate(
        [(first, second, first), (second, first, second), ("b", "b", "b")] * 2
    ):
        picture(root / f"{stored}{i}.png")
        rows.append((f"{name}{i}.png", label))
    table(root / "labels.csv", ("file", "label"), *rows)
    listing = list_images("folder", str(root), 32)
    assert sum(map(len, listing.splits.values())) == 6
    return {*listing.classes} - {"b"}


def series_csv(root: Path, first: str, second: str) -> set[str]:
    rows = [
        (f"{split}{label}", step, step, label, split)
        for split, label in (("train", first), ("train", "b"), ("test", second))
        for step in range(3)
    ]
    file = table(root / "a.csv", ("series", "time", "x", "label", "split"), *rows)
    return {*long_csv.read_recording([file]).splits["test"].labels}


@pytest.mark.parametrize(
    ("first", "second"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)], ids=["composed", "decomposed"]
)
@pytest.mark.parametrize("read", [folders, labels, series_csv])
def test_both_spellings_are_one_name(
    read: Callable[[Path, str, str], set[str]], first: str, second: str, tmp_path: Path
) -> None:
    assert read(tmp_path, first, second) == {COMPOSED}


Cli = Callable[..., tuple[int, str, str]]


def images(*folders: Path, suffix: str = "png") -> None:
    for folder in folders:
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (32, 32), (i, 0, 0)).save(folder / f"{i}.{suffix}")


def files(folder: Path, suffix: str, content: str = "0 1\n") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(3):
        (folder / f"{i}.{suffix}").write_text(content)


def yolo(root: Path) -> None:
    for split in ("train", "val"):
        images(root / split / "images")
        files(root / split / "labels", "txt")
    files(root, "txt")  # more texts than images


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("stereo pairs", lambda root: images(root / "left", root / "right")),
        ("sequences", lambda root: files(root, "csv")),
        ("images with objects", yolo),
        ("images and their masks", lambda root: images(root / "images", root / "masks", suffix="jpg")),
    ],
)
def test_nearly_a_layout(message: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "data")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for file in (tmp_path / "data").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path))
    for path in (str(tmp_path / "data"), str(tmp_path / "data.zip")):
        for read in (task_of_data, describe_data, fit):
            with pytest.raises(InputError, match=f"looks like {message}.*--space folder"):
                read(path)  # type: ignore[operator]
        try:
            describe_data(path, space="folder")  # images by class, as was asked for
        except InputError as error:
            assert "looks like" not in str(error)  # noqa: PT017  # there may be too few


def test_layouts_of_no_task_are_named(tmp_path: Path) -> None:
    images(*(tmp_path / name for name in ("left", "right", "up", "masks", "labels")))
    files(tmp_path, "json", json.dumps({"made": "by me"}))
    assert task_of_data(str(tmp_path)) is None
    with pytest.raises(InputError, match=r"look like grey levels: of the labels 0 to 128 only 0, 128 occur"):
        open_labelled_images(save_masks(tmp_path / "grey", 0, 128, 255))
    assert len(open_labelled_images(save_masks(tmp_path / "rare", 0, 2, 3)).classes) == 4
    data = save_masks(tmp_path / "named", 0, 128)
    (tmp_path / "named/classes.txt").write_text("\n".join(f"class {i}" for i in range(129)))
    assert len(open_labelled_images(data).classes) == 129


def save_masks(root: Path, *values: int) -> SegmentationData:
    images(root / "images")
    (root / "masks").mkdir()
    for i in range(3):
        Image.fromarray(np.resize(np.uint8(values), (32, 32))).save(root / f"masks/{i}.png")
    return SegmentationData(path=str(root), size=32)


def test_commands_show_data_as_searches_read_them(tmp_path: Path, cli: Cli) -> None:
    for i in range(40):
        (tmp_path / f"{i}.py").write_text(
            f"def add{i}(a):\n    '''Add {i} times.'''\n    return a{' + a' * i}\n"
        )
    assert "functions" in cli("data", str(tmp_path))[1]
    code, out, err = cli("data", str(tmp_path), "--space", "hybrid")
    assert code == 0, err
    assert "documents" in out
    assert f"automl search --space hybrid --data {tmp_path}" in out
