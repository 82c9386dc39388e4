"""Data that changed after a search was created: the commands that reject them, and their messages."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import automl.judge.trainings
import automl.trials.session
from automl.base.errors import InputError
from automl.data import shared
from automl.data.manifest import MANIFEST_FILE
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.export.run_export import run_export
from automl.judge.run_confirm import run_confirm
from automl.search.run_search import resume_search
from automl.storage.folder import find_search
from automl.storage.storage import Storage
from automl.storage.user_code import remember
from automl.task import open_task
from automl.task.opening import check_same_data, find_search_of, restore_manifest
from automl.tasks.image_classification.data import open_image_records
from automl.trials.session import share_data
from search.config import TrialConfig
from search.record import TrialRecord
from tests.helpers.automl_cases import HERE
from tests.helpers.confirm_cases import PLAN, RECORDS, FakeWorkers, NoTracker, fake_search

SPACE = """
from search.space import SPACES

def mine(trial):
    return SPACES["digits"](trial).change(data={"source": "folder"}, training={"batch_size": 16, "epochs": 1})

mine.baseline = {**SPACES["digits"].baseline, "batch_size": 32}
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a dataset of 80 images, and the current folder with a user-defined space."""
    monkeypatch.chdir(tmp_path)
    Path("my_space.py").write_text(SPACE)
    random = np.random.RandomState(0)
    for i in range(80):
        folder = tmp_path / "photos" / ("train" if i < 60 else "test") / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.randint(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    return tmp_path / "photos"


def trials_of_photos(photos: Path) -> list[TrialRecord]:
    data = {"source": "folder", "path": str(photos), "size": 32}
    parts: dict[str, Any] = {"data": data, "training": {"batch_size": 16}}
    return [replace(trial, config=trial.config.change(**parts)) for trial in RECORDS]


def searched(photos: Path, name: str = "mine") -> Path:
    """Return the folder of a search of the unchanged photos, with a space that was named on this machine."""
    remember([f"{Path('my_space.py').resolve()}:mine"])
    return fake_search(
        Path("searches"), trials_of_photos(photos), name, space="my_space.py:mine", data=str(photos)
    )


def plain(photos: Path) -> TrialConfig:
    return trials_of_photos(photos)[0].config


def change(photos: Path, kind: str, split: str) -> str:
    """Change one image of a split, and return its name."""
    rows = open_image_records("folder", path=photos, size=32).manifest().rows()
    name = next(name for split_of_row, name, _, _ in rows if split_of_row == split)
    file = photos / name
    if kind == "removed":
        file.unlink()
    elif kind == "renamed":
        file.rename(file.with_name("new.png"))
    elif kind == "changed":
        file.write_bytes(file.read_bytes() + b"x")
    else:
        new = file.with_name("new.png")
        new.write_bytes(file.read_bytes() + b"x")
        return new.relative_to(photos).as_posix()
    return name


CHANGES = [("changed", "train"), ("renamed", "validation"), ("removed", "test"), ("added", "train")]


def resume(photos: Path, folder: Path) -> None:
    resume_search("mine")


def confirm(photos: Path, folder: Path) -> None:
    run_confirm("mine", top=1, seeds=6)


def export_it(photos: Path, folder: Path) -> None:
    run_export("out", run="abc")


@pytest.fixture
def quiet(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray and MLflow, and provide a run `abc` whose checkpoint is in the search's folder."""

    def score(variant: str, seed: int) -> float:
        return 0.9 + 0.001 * (seed % 3)

    monkeypatch.setattr(automl.trials.session, "open_workers", FakeWorkers(score).open)
    monkeypatch.setattr(automl.judge.trainings, "MlflowProcess", nullcontext)
    monkeypatch.setattr(automl.judge.trainings, "Tracker", NoTracker)
    folder = Storage("searches") / "mine" / "confirm" / "trials" / "0000"
    chosen = Chosen(name="000", checkpoint=folder, what="the run that was named", run_id="abc")
    monkeypatch.setattr(export, "choose_run", lambda run: chosen)
    content = {"config": trials_of_photos(photos)[0].config.to_json(), "model": {}, "average": {}}
    monkeypatch.setattr(export.checkpoint, "read", lambda folder, device: content)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("command", "changed"),
    [(resume, CHANGES[0]), (confirm, CHANGES[1]), (export_it, CHANGES[2]), (export_it, CHANGES[3])],
)
def test_changed_data_are_rejected_by_name(
    command: Callable[[Path, Path], None],
    changed: tuple[str, str],
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, split = changed
    folder = searched(photos)
    before = (folder / "search.json").read_text()
    name = change(photos, kind, split)
    monkeypatch.setattr(
        "automl.tasks.image_classification.data.dataset.decode", None
    )  # which may take an hour
    with pytest.raises(InputError) as error:
        command(photos, folder)
    assert f"1 {kind} ({name}" in str(error.value)
    assert "mine" in str(error.value)
    assert "scores" in str(error.value)
    assert (folder / "search.json").read_text() == before


@pytest.mark.slow("several confirmations")
@pytest.mark.usefixtures("quiet")
def test_unchanged_data_are_accepted(photos: Path) -> None:
    searched(photos)
    run_confirm("mine", top=1, seeds=6)
    with pytest.raises(InputError, match="does not fit the model"):  # there is none in the checkpoint
        run_export("out", run="abc")


def test_a_damaged_manifest_is_rejected(photos: Path) -> None:
    folder = searched(photos)
    (folder / MANIFEST_FILE).write_bytes(b"x")
    message = f"{MANIFEST_FILE}, the list of the search's data, is damaged or missing"
    with pytest.raises(InputError, match=message):
        check_same_data(plain(photos), folder, "mine")


@pytest.mark.parametrize("changed", [False, True])
def test_a_missing_manifest_is_restored_after_a_kill(changed: bool, photos: Path) -> None:
    folder = searched(photos)
    _, metadata = find_search("mine", "searches")
    (folder / MANIFEST_FILE).unlink()
    if changed:
        change(photos, "changed", "train")
    restore_manifest(folder, metadata.data, plain(photos))
    with pytest.raises(InputError, match="damaged or missing") if changed else nullcontext():
        check_same_data(plain(photos), folder, "mine")


def test_images_in_the_storage_cannot_have_changed(photos: Path) -> None:
    folder = searched(photos)
    task = open_task(plain(photos), HERE)
    try:
        name, files = task.shared_name(task.config), task.stored_files(("train", "validation"))
        assert name is not None
        shared.use(shared.publish(Storage("searches"), name, files, folder))
        change(photos, "changed", "train")
        shared.use_saved(folder, Storage("searches"))
        check_same_data(plain(photos), folder, "mine", ("train", "validation"))
        with pytest.raises(InputError, match="1 changed"):  # the test split is read here
            check_same_data(plain(photos), folder, "mine")
    finally:
        shared.use(None)
    assert share_data(task, folder, "searches", "train") is None, "alone on this machine"
    with pytest.raises(InputError, match="1 changed"):
        check_same_data(plain(photos), folder, "mine", ("train", "validation"))


@pytest.mark.parametrize("below", ["trials/0001", "confirm/trials/0001", "confirm-2/trials/0001"])
def test_the_search_of_a_checkpoint(below: str, storage: Storage) -> None:
    location = storage / "mine"
    location.write("search.json", json.dumps(PLAN.trials).encode())
    folder = location
    for name in below.split("/"):
        folder = folder / name
    assert find_search_of(folder) == location
    assert find_search_of(storage / "train" / "0001") is None
