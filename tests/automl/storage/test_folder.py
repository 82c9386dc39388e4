"""The folder of a search, and `search.json` in it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FixedTrial

from automl.base.errors import InputError
from automl.config.settings import Settings
from automl.storage.folder import find_latest, find_search, new_folder, old_folder, resolve_search
from automl.storage.metadata import SEARCH_FILE, SearchMetadata, read_metadata, write_metadata
from automl.storage.storage import Storage
from automl.tasks.image_classification import ImageTraining
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import TRIALS_FOLDER
from search.space import get_source
from search.trial_scheduler import Plan

PLAN = Plan(trials=3, budget=2.0, metric=ACCURACY)


def make(storage: Path | Storage, name: str | None = "mine", **more: Any) -> tuple[Path, SearchMetadata]:
    settings = Settings(space="digits", name=name, storage=str(storage), **more).parsed
    with new_folder(settings, PLAN, fingerprint="f", data="d") as (folder, metadata):
        return folder, metadata


def test_metadata_are_written_and_named(tmp_path: Path) -> None:
    folder, metadata = make(tmp_path, trials=3, max_params="5M")
    assert folder == tmp_path / "mine"
    assert read_metadata(folder, str(tmp_path)) == metadata
    assert metadata.plan == PLAN
    assert (metadata.name, metadata.fingerprint, metadata.data) == ("mine", "f", "d")
    assert metadata.settings.terms.max_params == "5M"
    assert vars(metadata.provenance).keys() >= {"command", "commit", "versions", "gpus", "cores", "started"}
    assert metadata.provenance.versions.keys() >= {"torch", "optuna", "ray"}
    with old_folder("mine", str(tmp_path)) as (location, again):
        assert (location, again) == (folder, metadata)
    assert make(tmp_path / "a")[1].identity != make(tmp_path / "b")[1].identity
    folder, metadata = make(tmp_path, None)
    assert re.fullmatch(r"digits-\d{8}-\d{6}", metadata.name)
    assert folder.name == metadata.settings.place.name == metadata.name
    folder, metadata = make(tmp_path / "here", data="pictures")
    moved = folder.rename(tmp_path / "final")
    with old_folder("final", str(tmp_path)) as (location, reopened):
        assert (location, reopened.name, reopened.identity) == (moved, "final", metadata.identity)
        assert reopened.location.address == str(moved)
        assert reopened.settings.question.data == str(Path("pictures").resolve()), (
            "relative to the original folder"
        )
    moved.rename(tmp_path / "my search (old)")
    with pytest.raises(InputError, match="has a name that no search may have"):
        read_metadata(tmp_path / "my search (old)", str(tmp_path))


@pytest.mark.parametrize(("trained", "stays"), [(False, False), (True, True)])
def test_error_before_the_first_trial_leaves_no_files(trained: bool, stays: bool, tmp_path: Path) -> None:
    settings = Settings(space="digits", name="mine", storage=str(tmp_path)).parsed

    def fail() -> None:
        with new_folder(settings, PLAN, fingerprint="f", data="d") as (folder, _):
            (folder / "study.journal").touch()
            if trained:
                (folder / TRIALS_FOLDER).mkdir()
            raise InputError("no room")

    with pytest.raises(InputError, match="no room"):
        fail()
    assert (tmp_path / "mine").exists() is stays


def test_full_disk_is_reported(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(64 << 10))
    with pytest.raises(InputError, match=r"disk full at .*small/mine, about 10MB needed, 0B are free"):
        make(small_disk)


def test_latest_search_is_the_last_used(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    address = storage.address
    with pytest.raises(InputError, match=r"there is no search in .*; run automl search first"):
        find_latest(address)
    for name in ("a", "b", "c"):
        make(storage, name)
    assert find_latest(address) == "c"
    with old_folder("a", address) as (folder, metadata):
        assert find_latest(address) == "a", "it is resumed"
        write_metadata(folder, metadata)
        with old_folder("b", address):
            assert find_latest(address) == "b"
    assert find_latest(address) == "a", "it ended last"
    for name in ("b", "c"):
        find_search(name, address)
    assert find_latest(address) == "a", "reading does not count"
    capsys.readouterr()
    assert [resolve_search(None, address)[0], resolve_search("c", address)[0]] == ["a", "c"]
    assert capsys.readouterr().err == f"the latest search in {address} is a\n"


@pytest.mark.parametrize("location", [".", "confirm", "confirm-2"])
def test_killed_search_was_used_when_it_last_wrote(location: str, tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "killed")
    make(tmp_path, "newer")
    (folder / location).mkdir(exist_ok=True)
    study = folder / location / "study.journal"
    study.touch()
    os.utime(study, (4e9, 4e9))
    assert find_latest(str(tmp_path)) == "killed"
    os.utime(study, (0, 0))
    assert find_latest(str(tmp_path)) == "newer"


OTHER = """
import sys
from automl.storage.folder import old_folder
with old_folder("mine", sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_rejected(tmp_path: Path) -> None:
    make(tmp_path)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, tmp_path], stdin=pipe, stdout=pipe, text=True
    ) as other:
        assert other.stdout.readline() == "in\n"
        with (
            pytest.raises(InputError, match="search 'mine' is running in another process"),
            old_folder("mine", str(tmp_path)),
        ):
            pass
        other.kill()  # a killed process holds no lock
        other.wait()
    with old_folder("mine", str(tmp_path)):
        pass


def test_old_files_stay_and_unfinished_ones_go(tmp_path: Path) -> None:
    folder, metadata = make(tmp_path)

    def half(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space left"):
            write_metadata(folder, metadata)
    assert read_metadata(folder, str(tmp_path)) == metadata
    (folder / TRIALS_FOLDER / "0001").mkdir(parents=True)
    left = [folder / ".search.json.12", folder / TRIALS_FOLDER / "0001" / ".checkpoint.pt.12"]
    for file in [*left, folder / "notes.12"]:
        file.write_text("half")
    with old_folder("mine", str(tmp_path)):
        pass
    assert not any(file.exists() for file in left)
    assert (folder / "notes.12").exists(), "it is a person's"


def test_a_space_that_is_a_function(tmp_path: Path) -> None:
    def mine(trial: optuna.Trial) -> TrialConfig:
        return TrialConfig(training=ImageTraining(epochs=trial.suggest_int("epochs", 1, 9)))

    settings = Settings(space=mine, name="first", storage=str(tmp_path)).parsed
    assert settings.question.title == "test_a_space_that_is_a_function.mine"
    with new_folder(settings, PLAN, fingerprint=settings.question.open().fingerprint, data="d") as (
        folder,
        created,
    ):
        assert created.draw_space().space(FixedTrial({"epochs": 7})).training.epochs == 7
    metadata = read_metadata(folder, str(tmp_path))
    assert metadata.settings == created.settings.change(question={"space": settings.question.space_name})
    with pytest.raises(InputError, match=rf"function \S+mine of a notebook .* is in {folder}/space.py"):
        metadata.draw_space()
    assert metadata.draw_space(mine).space.draw is mine
    with pytest.raises(InputError, match=r"space 'digits' differs from that of search"):
        metadata.draw_space("digits")


def test_function_of_a_notebook_is_available_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(trial: optuna.Trial) -> TrialConfig:
        return TrialConfig(training=ImageTraining(epochs=trial.suggest_int("epochs", 1, 9)))

    mine.__module__, mine.__qualname__ = "__main__", "mine"
    mine.baseline = {"epochs": 3}  # type: ignore[attr-defined]
    settings = Settings(space=mine, storage=str(tmp_path)).parsed
    with new_folder(settings, PLAN, fingerprint=settings.question.open().fingerprint, data="d") as (
        folder,
        _,
    ):
        metadata = read_metadata(folder, str(tmp_path))
    assert (metadata.settings.question.space_name, metadata.settings.question.title) == (
        "__main__:mine",
        "mine",
    )
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    assert metadata.draw_space().space.baseline == {"epochs": 3}
    source = get_source(metadata.draw_space().space)
    assert source.startswith("def mine(trial: optuna.Trial)")
    assert source.endswith("\nmine.baseline = {'epochs': 3}\n")


def test_one_of_two_simultaneous_starts_fails(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It checked before the winner wrote `search.json`, and acquires the lock during or after that."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    settings = Settings(space="digits", name="mine", storage=storage.address).parsed
    location = storage / "mine"
    with new_folder(settings, PLAN, fingerprint="f", data="d") as (folder, metadata):
        content = (folder / SEARCH_FILE).read_bytes()
        (folder / SEARCH_FILE).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "exists", lambda *_: False)
            with pytest.raises(InputError, match="is running in another process"):
                make(storage)
        assert folder.is_dir()
        (folder / SEARCH_FILE).write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "exists", lambda *_: False)
        with pytest.raises(InputError, match="a search called 'mine' exists already"):
            make(storage)
    assert read_metadata(folder, storage.address).identity == metadata.identity
    assert location.read(SEARCH_FILE) == content


def test_failed_start_is_deleted_in_the_store(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    settings = Settings(space="digits", name="mine", storage=storage.address).parsed
    with (
        pytest.raises(InputError, match="no room"),
        new_folder(settings, PLAN, fingerprint="f", data="d") as (folder, _),
    ):
        raise InputError("no room")
    assert not folder.exists()
    assert (storage / "mine").files() == {}
