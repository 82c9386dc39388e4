"""Test manifests and their comparison."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from automl.data.manifest import Manifest, compare_manifests
from automl.tasks.image_classification.data import open_image_records, open_split

SPLITS = ("train", "validation", "test")
LAYOUTS = {
    "own": {f"{split}/{name}": 6 for split in ("train", "val", "test") for name in "ab"},
    "val": {f"{split}/{name}": 20 for split in ("train", "val") for name in "ab"},
    "plain": {"a": 30, "b": 30},
}


def listed(root: Path, **more: float) -> Manifest:
    return open_image_records("folder", path=root, size=8, **more).manifest()


def splits_by_name(manifest: Manifest) -> dict[str, str]:
    """Return the split of each image by its name."""
    return {name: split for split, name, _, _ in manifest.rows()}


@pytest.fixture(params=LAYOUTS)
def root(request: pytest.FixtureRequest, tmp_path: Path, make_folder: Callable[..., Path]) -> Path:
    return make_folder(tmp_path / "d", LAYOUTS[request.param])


@pytest.mark.parametrize("subset", [1.0, 0.5])
def test_manifest_lists_the_opened_inputs(root: Path, subset: float) -> None:
    manifest = listed(root, subset=subset)
    opened = {s: open_split("folder", s, path=root, size=8, subset=subset) for s in SPLITS}
    rows = [
        (split, name, images.classes[label])
        for split, images in opened.items()
        for name, label in zip(images.names(), images.labels.tolist(), strict=True)
    ]
    assert [row[:3] for row in manifest.rows()] == rows
    assert {row[0] for row in rows} == set(SPLITS)


# Largest number of other images that move if a test and a validation split are held out. A change removes one
# content and adds one.
MOVED = {"renamed": 0, "added": 2, "removed": 2, "changed": 4}


def pick(root: Path, split: str) -> str:
    """Return the name of an image of a split."""
    return next(
        name for name, own in sorted(splits_by_name(listed(root)).items(), reverse=True) if own == split
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("change", ["added", "removed", "renamed", "changed"])
def test_change_is_reported_and_moves_few_others_of_its_class(root: Path, split: str, change: str) -> None:
    before, name = listed(root), pick(root, split)
    file = root / name
    new = file.with_name("0000new.png")
    if change == "added":
        new.write_bytes(file.read_bytes() + b"another")
    elif change == "removed":
        file.unlink()
    elif change == "renamed":
        file.rename(new)
    else:
        file.write_bytes(file.read_bytes() + b"another")
    after = listed(root)
    touched = {name, new.relative_to(root).as_posix()}
    now, then = splits_by_name(after), splits_by_name(before)
    moved = [n for n in then.keys() - touched if now[n] != then[n]]
    assert len(moved) <= MOVED[change]
    assert {n.split("/")[-2] for n in moved} <= {file.parent.name}
    assert after.digest != before.digest
    differences = compare_manifests(before, after)
    expected = {"added": new, "removed": file, "renamed": file, "changed": file}[change]
    assert expected.relative_to(root).as_posix() in str(differences)
    assert f"1 {change} (" in str(differences)
    if change == "renamed":
        assert splits_by_name(after)[new.relative_to(root).as_posix()] == split


def test_manifests_are_small_and_of_the_images_alone(root: Path) -> None:
    """The location of the folder, the times of the files and other files have no effect."""
    before = listed(root)
    moved = shutil.copytree(root, root.with_name("moved"))
    for file in moved.rglob("*.png"):
        os.utime(file, (1, 1))
    (moved / "notes.txt").write_text("x")
    after = listed(moved)
    assert after.digest == before.digest
    assert not compare_manifests(before, after)
    assert str(compare_manifests(before, after)) == ""
    small = manifest_of("WOOF_160", train=[("a/1", "a", A)], test=[("b/1", "b", B)])
    large = manifest_of("WOOF_320", train=[("a/1", "a", B)], test=[("b/1", "b", C)])
    assert not compare_manifests(small, large)
    assert str(compare_manifests(small, manifest_of("WOOF_160", train=[("a/1", "a", B)], test=[]))) == (
        "1 changed (a/1); 1 removed (b/1)"
    )
    # In an archive like ImageNet's, 16 bytes per image are its hash, and names add little.
    random = [os.urandom(32) for _ in range(20_000)]
    rows = [
        (f"train/n{i // 1300:08}/n{i // 1300:08}_{i}.JPEG", f"class {i // 1300}", c)
        for i, c in enumerate(random)
    ]
    manifest = manifest_of(train=rows[:15_000], test=rows[15_000:])
    content = manifest.to_bytes()
    assert len(content) < 30 * len(rows)
    again = Manifest.from_bytes(content)
    assert (again.digest, len(again)) == (manifest.digest, 20_000)
    assert not compare_manifests(manifest, again)


A, B, C = (bytes([i]) * 32 for i in range(3))


def manifest_of(archive: str | None = None, **splits: list[tuple[str, str, bytes]]) -> Manifest:
    return Manifest.from_splits(splits, archive=archive)


BEFORE = manifest_of(train=[("a/1", "a", A), ("a/2", "a", B)], test=[("b/1", "b", C)])


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (
            manifest_of(train=[("a/1", "a", A)], test=[("b/1", "b", C), ("a/2", "a", B)]),
            "1 moved (a/2 from train to test)",
        ),
        (
            manifest_of(train=[("a/1", "a", A), ("b/2", "b", B)], test=[("b/1", "b", C)]),
            "1 moved (a/2 from class a to b)",
        ),
        (manifest_of(train=[("a/1", "c", A), ("a/2", "a", B)], test=[("b/1", "b", C)]), "1 changed (a/1)"),
        (
            manifest_of(train=[("a/1", "a", B), ("a/2", "a", A)], test=[("b/2", "b", C)]),
            "2 changed (a/1, a/2); 1 renamed (b/1 to b/2)",
        ),
    ],
)
def test_differences_are_described(after: Manifest, text: str) -> None:
    differences = compare_manifests(BEFORE, after)
    assert differences
    assert str(differences) == text


def test_downloaded_photographs_are_split_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its archives have different sizes of each photograph, whose content therefore differs."""
    from automl.tasks.image_classification.data import dataset as image_sources

    monkeypatch.setattr(image_sources, "fetch_files", lambda *_: root)
    before = open_image_records("woof", size=128).manifest()
    for file in root.rglob("*.png"):
        file.write_bytes(file.read_bytes() + b"larger")
    after = open_image_records("woof", size=200).manifest()
    assert (before.archive, after.archive) == ("imagewoof2-160", "imagewoof2-320")
    assert splits_by_name(after) == splits_by_name(before)
    assert not compare_manifests(before, after)
