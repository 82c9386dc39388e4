"""Test groups in every kind of data: members of a group are in one split, and other inputs do not move."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from automl.base.errors import InputError
from automl.data.manifest import compare_manifests
from automl.data.records import Records
from automl.data.splits import FRACTION, SPLITS, hash_names, hold_out_split
from automl.tasks.code_retrieval.data import open_texts
from automl.tasks.detection import DetectionData
from automl.tasks.detection.data import open_detection_records as open_detection
from automl.tasks.detection.data.dataset import summarise_detection
from automl.tasks.image_classification.data import open_image_records
from automl.tasks.image_classification.data.overview import summarise_folder
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation.data import open_labelled_images
from automl.tasks.sequence_classification.data import open_sequence_records as open_sequences
from automl.tasks.sequence_classification.data.dataset import summarise_sequences
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data import open_pairs
from automl.tasks.stereo.data.dataset import summarise_stereo
from tests.helpers.code_corpus import write_corpus
from tests.helpers.detection_cases import write_scenes

COUNT, MEMBERS = 80, 4
Groups = Sequence[str]
Splits = Sequence[str] | None


def picture(file: Path, i: int) -> None:
    """Write a different picture for each `i`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(i).randint(0, 256, (24, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def table(file: Path, columns: Mapping[str, Sequence[object] | None]) -> None:
    kept = {name: values for name, values in columns.items() if values is not None}
    rows = [kept.keys(), *zip(*kept.values(), strict=True)]
    file.write_text("\n".join(",".join(map(str, row)) for row in rows))


def labelled(root: Path, groups: Groups | None, splits: Splits) -> Path:
    names = [f"all/{i}.png" for i in range(COUNT)]
    for i, name in enumerate(names):
        picture(root / name, i)
    labels = ["cat" if i // 2 % 2 else "dog" for i in range(COUNT)]
    table(root / "labels.csv", {"file": names, "label": labels, "split": splits, "group": groups})
    return root


def class_folders(root: Path, groups: Groups | None, splits: Splits) -> Path:
    """Write folders of classes. The table has only groups."""
    names = []
    for i in range(COUNT):
        folder = f"{splits[i].replace('validation', 'val')}/" if splits else ""
        names.append(f"{folder}{'cat' if i // 2 % 2 else 'dog'}/{i}.png")
        picture(root / names[-1], i)
    if groups:
        table(root / "labels.csv", {"file": names, "group": groups})
    return root


def coco(root: Path, groups: Groups | None, splits: Splits) -> Path:
    counts = {split: (splits or ["train"] * COUNT).count(split) for split in SPLITS}
    write_scenes(root, {split: count for split, count in counts.items() if count})
    if groups:
        table(root / "labels.csv", {"file": sorted_images(root), "group": groups})
    return root


def sorted_images(root: Path) -> list[str]:
    order = {"train": 0, "val": 1, "test": 2}
    names = [file.relative_to(root).as_posix() for file in root.rglob("*.png")]
    return sorted(names, key=lambda name: (order[name.split("/")[0]], name))


def pairs(root: Path, groups: Groups | None, splits: Splits) -> Path:
    root.mkdir()
    views: dict[str, list[object]] = defaultdict(list)
    for i in range(COUNT):
        for view in ("left", "right"):
            picture(root / f"{view}{i}.png", i)
            views[view].append(f"{view}{i}.png")
        Image.fromarray(np.full((24, 30), 1 + i / 99, np.float32)).save(root / f"{i}.pfm")
        views["disparity"].append(f"{i}.pfm")
    table(root / "pairs.csv", {**views, "split": splits, "group": groups})
    return root / "pairs.csv"


def masks(root: Path, groups: Groups | None, splits: Splits) -> Path:
    """Write images and masks without own splits."""
    names = [f"images/{i}.png" for i in range(COUNT)]
    for i, name in enumerate(names):
        picture(root / name, i)
        labels = np.zeros((24, 30), np.uint8)
        labels[: i % 20 + 1] = 1
        (root / "masks").mkdir(exist_ok=True)
        Image.fromarray(labels).save(root / name.replace("images", "masks"))
    if groups:
        table(root / "labels.csv", {"file": names, "group": groups})
    return root


def long_csv(root: Path, groups: Groups | None, splits: Splits) -> Path:
    root.mkdir()
    steps = range(3)
    columns: dict[str, Sequence[object] | None] = {
        "series": [f"s{i}" for i in range(COUNT) for _ in steps],
        "time": [step for _ in range(COUNT) for step in steps],
        "label": ["ab"[i // 2 % 2] for i in range(COUNT) for _ in steps],
        "x": [i + step / 3 for i in range(COUNT) for step in steps],
        "split": splits and [split for split in splits for _ in steps],
        "group": groups and [group for group in groups for _ in steps],
    }
    table(root / "s.csv", columns)
    return root / "s.csv"


def npz(root: Path, groups: Groups | None, splits: Splits) -> Path:
    root.mkdir()
    x = np.random.default_rng(0).normal(size=(COUNT, 2, 5)).astype(np.float32)
    arrays, split_of = {}, np.array(splits or ["train"] * COUNT)
    for split in {*split_of.tolist()}:
        own = np.flatnonzero(split_of == split)
        arrays |= {f"x_{split}": x[own], f"y_{split}": own // 2 % 2}
        if groups:
            arrays[f"group_{split}"] = np.array(groups)[own]
    np.savez(root / "s.npz", **arrays)
    return root / "s.npz"


def code(root: Path, groups: Groups | None, splits: Splits) -> Path:
    """Write functions and their near duplicates under other names, which form the groups."""
    write_corpus(root)
    for file in sorted(root.glob("*.py")):
        (root / f"again_{file.name}").write_text(file.read_text().replace("(", "_x(", 1))
    return root


Open = Callable[[Path], Records[Any]]
KINDS: dict[str, tuple[Callable[[Path, Groups | None, Splits], Path], Open]] = {
    "labels.csv": (labelled, lambda path: open_image_records("folder", path=path, size=8)),
    "folders of classes": (class_folders, lambda path: open_image_records("folder", path=path, size=8)),
    "coco": (coco, lambda path: open_detection(DetectionData(source="coco", path=str(path)))),
    "pairs.csv": (pairs, lambda path: open_pairs(StereoData(source="pairs", path=str(path)))),
    "masks": (masks, lambda path: open_labelled_images(SegmentationData(path=str(path), size=64))),
    "csv of sequences": (long_csv, lambda path: open_sequences("series", path=path)),
    "npz": (npz, lambda path: open_sequences("series", path=path)),
}
OVERVIEWS: dict[str, Callable[[Path], Any]] = {
    "labels.csv": lambda path: summarise_folder(str(path), 24),
    "folders of classes": lambda path: summarise_folder(str(path), 24),
    "coco": summarise_detection,
    "pairs.csv": summarise_stereo,
    "csv of sequences": summarise_sequences,
    "npz": summarise_sequences,
}
SEEDS = ["patient {}", "s{}", "Größe {}"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def groups_of(seed: str) -> list[str]:
    return [seed.format(i // MEMBERS) for i in range(COUNT)]


def members(records: Records[Any]) -> dict[str, set[str]]:
    """Return the groups of each split."""
    return {split: {records.file.groups[row] for row in records.whole[split]} for split in SPLITS}


@each_kind
@pytest.mark.parametrize("seed", SEEDS)
def test_group_is_in_one_split(kind: str, seed: str, tmp_path: Path) -> None:
    write, opened = KINDS[kind]
    records = opened(write(tmp_path / "d", groups_of(seed), None))
    splits = members(records)
    assert all(splits.values())
    assert sum(map(len, splits.values())) == len(set.union(*splits.values())) == COUNT // MEMBERS
    assert sum(map(len, records.whole.values())) == COUNT
    texts = records.describe_splits()
    name = "subject" if "sequences" in kind or kind == "npz" else "group"
    for split, groups in splits.items():
        assert texts[split].endswith(f"; {len(groups)} {name}{'s' * (len(groups) != 1)}")
    assert f"by their {name}, which is in one split" in texts["test"]
    assert "that are in several splits" not in str(records.tally)


def test_duplicates_of_functions_and_groups_are_split_once(tmp_path: Path) -> None:
    texts = open_texts(code(tmp_path / "d", None, None), vocabulary=500)
    splits = [{texts.file.keys[row].tobytes() for row in texts.rows(split)} for split in SPLITS]
    assert sum(map(len, splits)) == len(set.union(*splits)) < len(texts.functions)
    assert str(texts.tally) == ""
    # The groups are literal, so that no change of a library or of the code moves them between splits.
    groups = [f"g{i // 3}" for i in range(30)]
    held, _ = hold_out_split(
        np.arange(30) % 2, hash_names(map(str, range(30))), 0.2, "test", "images", groups
    )
    assert sorted({groups[i] for i in held}) == ["g6", "g9"]


@pytest.mark.parametrize("kind", OVERVIEWS)
def test_group_in_two_given_splits_is_reported(kind: str, tmp_path: Path) -> None:
    write, opened = KINDS[kind]
    groups = groups_of("p{}")
    splits = ["train"] * 40 + ["validation"] * 20 + ["test"] * 20
    groups[41] = groups[60] = "p0"
    path = write(tmp_path / "d", groups, splits)
    counts = {split: len(rows) for split, rows in opened(path).whole.items()}
    assert counts == dict(zip(SPLITS, (40, 20, 20), strict=True)), "given splits stay unchanged"
    (line,) = (line for line in OVERVIEWS[kind](path).lines() if "several splits" in line)
    assert "1 group" in line or "1 subject" in line
    assert line.endswith(
        "that is in several splits, so that scores may be too high (assign each to one split): p0"
    )


@pytest.mark.parametrize("kind", ["labels.csv", "coco", "pairs.csv", "masks"])
def test_empty_column_of_groups_changes_nothing(kind: str, tmp_path: Path) -> None:
    write, opened = KINDS[kind]
    plain, empty = (
        opened(write(tmp_path / str(len(groups)), groups or None, None)) for groups in ([], [""] * COUNT)
    )
    assert empty.manifest().digest == plain.manifest().digest
    assert empty.describe_splits() == plain.describe_splits()


@each_kind
def test_other_groups_change_the_manifest(kind: str, tmp_path: Path) -> None:
    """The groups move inputs from one split to another."""
    write, opened = KINDS[kind]
    before = opened(write(tmp_path / "d", groups_of("a{}"), None)).manifest()
    shutil.rmtree(tmp_path / "d")
    after = opened(write(tmp_path / "d", groups_of("b{}"), None)).manifest()
    assert compare_manifests(before, after).moved
    shutil.rmtree(tmp_path / "d")
    assert opened(write(tmp_path / "d", groups_of("a{}"), None)).manifest().digest == before.digest


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["p"] * COUNT, "a test split needs two groups of images of one class without common copies"),
        (["p"] * 70 + ["q"] * 10, "a validation split needs two groups of images of one class"),
    ],
)
def test_too_few_groups_are_rejected(groups: Groups, message: str, tmp_path: Path) -> None:
    message += ".*. Add groups, remove the groups, or define the splits yourself"
    with pytest.raises(InputError, match=message):
        open_image_records("folder", path=labelled(tmp_path / "d", groups, None), size=8)


def test_classes_of_few_groups_are_reported(tmp_path: Path) -> None:
    root = labelled(tmp_path / "d", groups_of("p{}"), None)
    text = (root / "labels.csv").read_text()
    (root / "labels.csv").write_text(text.replace("dog,p3", "lion,p3").replace("cat,p3", "lion,p3"))
    records = open_image_records("folder", path=root, size=8)
    (lions,) = (
        {split} for split in SPLITS if "lion" in {records.class_name(row) for row in records.whole[split]}
    )
    assert lions == {"train"}
    for split in ("test", "validation"):
        assert f"1 class with too few groups to be in {split} (add groups, or" in str(records.tally)
    groups = ["p" if i < 10 else "" for i in range(COUNT)]
    records = open_image_records("folder", path=labelled(tmp_path / "e", groups, None), size=8)
    assert records.describe_splits()["train"].endswith(("; 1 group", "; 0 groups"))
    counts = {split: len(rows) for split, rows in records.whole.items()}
    assert 8 <= counts["test"] <= 22


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("all/1.png,p9", "labels.csv, line 82: all/1.png has the groups 'p0' and 'p9'; keep one"),
        ("all/999.png,p0", "labels.csv, line 82: there is no file"),
        ("../d/all/1.png,p0", "labels.csv, line 82: .* must be in the folder of the table"),
    ],
)
def test_invalid_tables_of_groups_are_rejected(row: str, message: str, tmp_path: Path) -> None:
    root = labelled(tmp_path / "d", groups_of("p{}"), None)
    file, group = row.split(",")
    with open(root / "labels.csv", "a") as table:
        table.write(f"\n{file},dog,{group}")
    with pytest.raises(InputError, match=message):
        open_image_records("folder", path=root, size=8)


SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=60)
HELD = st.sampled_from(["test", "validation"])


@given(SIZES, st.integers(1, 4), st.text(max_size=5), HELD, st.randoms(use_true_random=False))
def test_fractions_are_close_and_no_split_is_empty(
    sizes: list[int], classes: int, seed: str, split: str, random: Any
) -> None:
    """Groups have any sizes, one class each, and any order."""
    members = [(group, group % classes) for group, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(members)
    groups, labels = [f"{seed}{group}" for group, _ in members], np.array([label for _, label in members])
    keys = hash_names(f"{seed}/{i}" for i in range(len(members)))
    if max(len(range(label, len(sizes), classes)) for label in range(classes)) < 2:
        return
    held, kept = hold_out_split(labels, keys, FRACTION, split, "images", groups)
    assert {groups[i] for i in held}.isdisjoint(groups[i] for i in kept)
    assert sorted([*held, *kept]) == list(range(len(members)))
    for label in range(classes):
        own = sizes[label::classes]
        count = (labels[held] == label).sum()
        if len(own) > 1:
            assert 0 < count < sum(own), "each class of two groups is on either side"
            assert abs(count - FRACTION * sum(own)) <= max(own)


@given(st.lists(st.integers(0, 9), min_size=20, max_size=80), st.lists(st.integers(0, 15), min_size=20), HELD)
def test_copies_and_their_groups_are_in_one_split(
    group_numbers: list[int], contents: list[int], split: str
) -> None:
    """This holds even if one group has a copy of another group's image."""
    count = min(len(group_numbers), len(contents))
    groups, keys = [f"g{group}" for group in group_numbers[:count]], hash_names(map(str, contents[:count]))
    try:
        held, kept = hold_out_split(np.zeros(count, np.int64), keys, FRACTION, split, "images", groups)
    except InputError:  # All groups are joined into one.
        return
    for either in (groups, contents):
        assert {either[i] for i in held}.isdisjoint(either[i] for i in kept)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=2, max_size=80), HELD)
def test_every_class_stays_in_train(inputs: list[tuple[int, int]], split: str) -> None:
    """Groups have several classes."""
    labels, groups = np.array([label for label, _ in inputs]), [f"g{group}" for _, group in inputs]
    try:
        held, kept = hold_out_split(
            labels, hash_names(map(str, range(len(inputs)))), FRACTION, split, "images", groups
        )
    except InputError:
        return
    assert {*labels[kept].tolist()} == {*labels.tolist()}
    assert len(held)
