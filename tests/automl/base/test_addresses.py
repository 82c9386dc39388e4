"""Users and passwords of addresses are not shown or stored."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.storage.logs import capture_library_logs
from automl.storage.metadata import collect_provenance
from automl.tracking import client

PLANTED = "pla+nted%21"
ADDRESS = f"http://somebody:{PLANTED}@127.0.0.1:1/path"  # no server listens there
PUBLIC = "http://***@127.0.0.1:1/path"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ADDRESS, PUBLIC),
        (f"to {ADDRESS}, then '{ADDRESS}'", f"to {PUBLIC}, then '{PUBLIC}'"),
        (f"postgresql+psycopg2://me:a@{PLANTED}@host/db", "postgresql+psycopg2://***@host/db"),
        (f"/home/me/http:/me:{PLANTED}@host/db", "/home/me/http:/***@host/db"),
        (f"https://{PLANTED}@host:5000", "https://***@host:5000"),
        (f"--storage=S3://key:{PLANTED}@bucket", "--storage=S3://***@bucket"),
        (
            f"s3://bucket/a@b?secret_key={PLANTED}&region=eu&session_token={PLANTED}",
            "s3://bucket/a@b?secret_key=***&region=eu&session_token=***",
        ),
        (f"https://host/blob?sv=1&sig={PLANTED}#x", "https://host/blob?sv=1&sig=***#x"),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            "abfss://container@account.dfs.core.windows.net/a",
        ),
        (f"abfss://account:{PLANTED}@container/a", "abfss://***@container/a"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("ask me@host, see http://host/me@work?keep=3", "ask me@host, see http://host/me@work?keep=3"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def test_logs_of_libraries_are_redacted(tmp_path: Path) -> None:
    with capture_library_logs(tmp_path / "log.txt"):
        log = logging.getLogger("mlflow")
        log.warning("%s does not answer", ADDRESS)
        try:
            raise ConnectionError(ADDRESS)
        except ConnectionError:
            log.exception("it failed")
    message = (tmp_path / "log.txt").read_text()
    assert PLANTED not in message
    assert f"{PUBLIC} does not answer" in message
    assert f"ConnectionError: {PUBLIC}" in message


def test_stored_command_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/automl", "search", "--data", ADDRESS])
    assert collect_provenance().command == ["automl", "search", "--data", PUBLIC]


def test_message_about_a_server_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)
    with pytest.raises(InputError, match="does not answer") as raised:
        client.open_client()
    assert f"MLflow at {PUBLIC} does not" in str(raised.value)
    assert PLANTED not in str(raised.value)


def test_error_message_is_redacted(cli: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = cli("train", "--dataset", "nette", "--data", ADDRESS)
    assert code == 2
    assert "127.0.0.1:1/path" in err
    assert PLANTED not in out + err


def test_traceback_is_redacted() -> None:
    """Run in a new process, where Python prints the uncaught error."""
    program = f"import automl.cli.main as c; c.main(program=lambda *_, **options: open({ADDRESS!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '{PUBLIC}'" in done.stderr
    assert PLANTED not in done.stderr
