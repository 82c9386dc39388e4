"""`automl remove`."""

import sys
from pathlib import Path

import pytest
from filelock import FileLock

from automl.base.errors import InputError
from automl.storage.folder import find_search, old_folder
from automl.storage.remove import find_removable, run_remove
from automl.storage.storage import Storage
from tests.helpers.automl_cases import Cli
from tests.helpers.confirm_cases import RECORDS, fake_search


def test_search_is_deleted_and_nothing_else(storage: Storage) -> None:
    folder, other = fake_search(storage), fake_search(storage, name="other")
    (storage / "mine" / RECORDS[0].folder).write("checkpoint.pt", b"weights")
    (storage / ".data").write("images", b"")
    before = (storage / "other").files()
    assert find_removable("mine", str(storage)).size > len(b"weights")
    run_remove("mine", str(storage))
    assert not (storage / "mine").files()
    assert not folder.exists(), "the working copy is deleted, too"
    assert other.exists()
    assert (storage / "other").files() == before
    assert (storage / ".data").exists("images")
    with pytest.raises(InputError, match=r"no search called 'mine' in .*; there are other"):
        run_remove("mine", str(storage))


def test_running_search_is_not_deleted(storage: Storage) -> None:
    fake_search(storage)
    with (
        old_folder("mine", str(storage)),
        pytest.raises(InputError, match=r"search 'mine' is running, or was killed .* stop it before"),
    ):
        run_remove("mine", str(storage))
    assert find_search("mine", str(storage))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../kept/mine", "mine/.", "mine/confirm", "folder", "unknown"]
)
def test_name_outside_the_storage_is_rejected(name: str, tmp_path: Path) -> None:
    fake_search(tmp_path / "kept")
    (tmp_path / "kept" / "folder").mkdir()
    with pytest.raises(InputError, match="no search called"):
        run_remove(name, str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "mine" / "search.json").exists()


def test_damaged_and_linked_searches(tmp_path: Path) -> None:
    folder = fake_search(tmp_path / "kept")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    (folder / "photos").symlink_to(tmp_path / "photos")
    run_remove("mine", str(tmp_path / "kept"))
    assert (tmp_path / "photos" / "cat.jpg").exists()
    damaged = tmp_path / "damaged"
    (fake_search(damaged) / "search.json").write_text("{")
    assert find_removable("mine", str(damaged)).name == "mine"
    run_remove("mine", str(damaged))
    assert list(damaged.iterdir()) == []
    folder = fake_search(tmp_path)
    with FileLock(folder / ".lock"), pytest.raises(InputError, match="is running"):
        run_remove("mine", str(tmp_path))


@pytest.mark.parametrize(
    ("more", "terminal", "answer", "code", "gone"),
    [
        (("--yes",), False, None, 0, True),
        ((), False, None, 2, False),
        ((), True, True, 0, True),
        ((), True, False, 0, False),
    ],
    ids=["yes", "no terminal", "asked: yes", "asked: no"],
)
def test_command_asks_before_it_deletes(
    more, terminal, answer, code, gone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = fake_search(tmp_path / "searches")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal, raising=False)
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text, **how: asked.append(text) or answer)
    ended, out, err = cli("remove", "mine", *more)
    assert ended == code
    assert folder.exists() is not gone
    if gone:
        assert out.startswith(f"removed   search mine in {folder}, 0.0 MB\n")
        assert "not deleted: its runs in MLflow, exported and registered models" in out
    assert ("give --yes to delete mine" in err) == (code == 2)
    assert asked == ([f"Delete search mine in {folder}, 0.0 MB?"] if terminal else [])
