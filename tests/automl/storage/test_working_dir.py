"""Storage in the temporary folder of `ray job submit --working-dir` is rejected."""

from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.storage.storage import check_not_temporary


@pytest.fixture(autouse=True)
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)


def test_temporary_folders_differ_from_permanent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as error:
        check_not_temporary("searches")
    for part in ("--storage searches", "sqlite:///mlflow.db", "--working-dir", "MLFLOW_TRACKING_URI="):
        assert part in str(error.value)
    monkeypatch.chdir(tmp_path)
    check_not_temporary("searches")


@pytest.mark.parametrize("uri", ["sqlite:///here.db", "mlruns", "./mlruns", "file:mlruns"])
def test_temporary_mlflow_store_is_rejected(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(InputError, match=f"^MLflow's {uri} would be deleted"):
        check_not_temporary(str(tmp_path / "searches"))


@pytest.mark.parametrize("uri", ["http://mlflow:5000", "sqlite:////shared/mlflow.db", "file:///shared/runs"])
def test_permanent_storage_is_accepted(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    check_not_temporary(str(tmp_path / "searches"))
