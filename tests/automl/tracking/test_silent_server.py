"""A server of MLflow that never answers in full: it hangs, or sends a byte now and then."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.export.run_export import run_export
from automl.report.read import read_search
from automl.report.run_report import _links, _track
from automl.search.driver import run_sync
from automl.tracking import client
from automl.trials.train import run_train
from tests.helpers.automl_cases import HERE, tiny
from tests.helpers.confirm_cases import RECORDS, fake_search

RUN = "0" * 32


@pytest.fixture(params=["hangs", "drips"])
def silent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server, which MLflow is to be at, with little patience for it."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while not over.wait(0.05):
                    if request.param == "drips":
                        connection.sendall(b"H")
            except OSError:
                pass

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setattr(client, "NEWS", 0.05)
        monkeypatch.setattr(client, "_silent", {})
        yield address
        over.set()


def test_commands_that_need_mlflow_say_what_they_wait_for(
    silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_search(tmp_path / "searches", RECORDS)
    commands: list[Callable[[], object]] = [
        lambda: run_sync("mine"),
        lambda: run_export(tmp_path / "out", run=RUN),
    ]
    for command in commands:
        with pytest.raises(InputError, match=f"{silent} does not answer within 1 s; restart the server"):
            command()
    assert capsys.readouterr().err == f"waiting for MLflow at {silent}, 1 s at most\n", "once for all"


def test_a_report_and_a_training_go_on_without_it(
    silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_search(tmp_path / "searches", RECORDS)
    search = read_search("mine", "searches")
    assert _links(search) == {}
    assert _track(search, tmp_path, []) is None
    assert "the report is not in MLflow" in capsys.readouterr().err
    result = run_train(tiny(), runtime=HERE)
    assert (result.run_id, len(result.history)) == (None, 1)
    assert "Training continues without it" in capsys.readouterr().err
