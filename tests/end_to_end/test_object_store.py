"""A search that is kept in an object store, with MLflow over PostgreSQL, used from two machines.

The machines are two folders here, each with a home, a cache and a current folder of its own: what one leaves
behind, the other finds in the two servers or not at all. Both have credentials wherever a person may have
them, and what they write and print is searched for every one.
"""

import base64
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import mlflow
import pytest
import sqlalchemy
from pyarrow.fs import FileSelector, FileSystem

from automl.judge.verdict import FORMAT
from search.record import CHECKPOINT_FILE
from search.study import open_study

AUTOML = Path(sys.executable).parent / "automl"
NAME = "far"
pytestmark = pytest.mark.slow("a whole search in an object store")
TRIALS = 2


@dataclass
class Machine:
    """A machine on which a user runs commands; `outputs` is all that they have printed."""

    folder: Path
    environment: dict[str, str]
    outputs: list[str] = field(default_factory=list)

    def automl(self, *arguments: object) -> str:
        """Standard output of a command that ends well."""
        work, home = self.folder / "work", self.folder / "home"
        work.mkdir(parents=True, exist_ok=True)
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), "AUTOML_CACHE": str(self.folder / "cache")}
        run = subprocess.run(
            [AUTOML, *map(str, arguments)],
            cwd=work,
            env={**os.environ, **self.environment, **own},
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.outputs += [run.stdout, run.stderr]
        assert run.returncode == 0, run.stderr
        return run.stdout

    def files(self, name: str) -> list[Path]:
        return list(self.folder.rglob(name))


@pytest.fixture(scope="module")
def secrets(object_store, database):
    """Secrets that must not leak, by where they are set."""
    return {
        "the store's key": object_store.secret,
        "its session": "planted-session-token",
        "the address of MLflow": "planted-tracking-address",
        "MLflow's password": "planted-tracking-password",
        "MLflow's token": "planted-tracking-token",
        "Ray's token": "0123456789abcdef" * 4,
        "the proxy": "planted-proxy",
        "PostgreSQL": sqlalchemy.make_url(database).password,
    }


@pytest.fixture(scope="module")
def ray_logs():
    """The folder for Ray's, which every user of a machine may read. Sockets in it need a short name."""
    folder = Path(tempfile.mkdtemp(prefix="automl-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def machines(tmp_path_factory, object_store, mlflow_server, secrets, ray_logs):
    environment = {
        **object_store.environment,
        "AWS_SESSION_TOKEN": secrets["its session"],
        "MLFLOW_TRACKING_URI": mlflow_server.replace(
            "://", f"://somebody:{secrets['the address of MLflow']}@"
        ),
        "MLFLOW_TRACKING_USERNAME": "somebody",
        "MLFLOW_TRACKING_PASSWORD": secrets["MLflow's password"],
        "MLFLOW_TRACKING_TOKEN": secrets["MLflow's token"],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets["Ray's token"],
        "RAY_TMPDIR": str(ray_logs),
        "HTTPS_PROXY": f"http://somebody:{secrets['the proxy']}@127.0.0.1:9",
        "NO_PROXY": "localhost,127.0.0.1",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # reading all fonts anew takes ten seconds
    }
    return [Machine(tmp_path_factory.mktemp(name), environment) for name in ("here", "there")]


@pytest.fixture(scope="module")
def searched(machines, object_store):
    """The search on the first machine: its JSON, and the options that name it."""
    here, _ = machines
    options = ["--storage", object_store.address("searches")]
    output = here.automl(
        "search", "--space", "digits", "--trials", TRIALS, "--epochs", 1, "--subset", 0.25, "--name", NAME,
        "--concurrent", 1,
        *options, "--json",
    )  # fmt: skip
    return json.loads(output), options


@pytest.fixture(scope="module")
def confirmed(machines, searched):
    """Its confirmation on the second machine, which has never seen it: its JSON."""
    _, remote = machines
    output = remote.automl("confirm", "--search", NAME, *searched[1], "--top", 1, "--seeds", 6, "--json")
    return json.loads(output)


@pytest.fixture
def objects(object_store, monkeypatch):
    """Reads all that the store has below a folder: content by name."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)

    def read(folder: str = "") -> dict[str, bytes]:
        files, path = FileSystem.from_uri(object_store.address(folder))
        content = {}
        for info in files.get_file_info(FileSelector(path.rstrip("/"), recursive=True)):
            if info.is_file:
                with files.open_input_file(info.path) as file:
                    content[info.path.removeprefix(f"{path}/")] = file.read()
        return content

    return read


def test_the_store_has_all_of_the_search(machines, objects, mlflow_server, searched, tmp_path):
    result, _ = searched
    assert (result["trials"], result["errors"]) == (TRIALS, 0)
    location = objects(f"searches/{NAME}")
    best = f"trials/{result['best']['number']:04d}/{CHECKPOINT_FILE}"
    assert {"study.journal", "search.json", "result.json", best} <= location.keys()
    (tmp_path / "study.journal").write_bytes(location["study.journal"])
    study = open_study(tmp_path, name=NAME)
    assert len(study.trials) == TRIALS
    for machine in machines:
        assert not machine.files(CHECKPOINT_FILE), "trials write theirs to the store alone"
    client = mlflow.MlflowClient(mlflow_server)
    run = client.get_run(result["best"]["run_id"])
    assert run.data.metrics["accuracy"] == pytest.approx(result["best"]["value"])
    assert run.info.artifact_uri.startswith("mlflow-artifacts:")
    name = f"{run.info.experiment_id}/{run.info.run_id}/artifacts/config.json"
    assert json.loads(objects("mlflow")[name]) == result["best"]["config"]


def test_another_machine_goes_on_with_it(machines, objects, searched, confirmed):
    local, remote = machines
    result, options = searched
    status = json.loads(remote.automl("status", NAME, *options, "--json"))
    assert status["best"][1] == pytest.approx(result["best"]["value"])
    assert (status["running"], status["trials"]) == (False, TRIALS)
    assert status["verdict"] == confirmed["headline"]
    assert json.loads(objects(f"searches/{NAME}")["confirm/verdict.json"]) == {**confirmed, "format": FORMAT}
    again = json.loads(local.automl("status", *options, "--json"))
    assert again == {**status, "quiet": again["quiet"]}, "and the first sees what the second has done"


def test_every_machine_reports_on_it(machines, mlflow_server, searched, confirmed):
    result, options = searched
    for machine in machines:
        output = machine.automl("report", "--search", NAME, *options)
        page = Path(output.split()[1])
        assert confirmed["headline"] in html.unescape(page.read_text())
        assert machine.folder in page.parents
    client = mlflow.MlflowClient(mlflow_server)
    best = client.get_run(result["best"]["run_id"])
    names = [file.path for file in client.list_artifacts(best.data.tags["mlflow.parentRunId"], "report")]
    assert "report/index.html" in names


def test_another_machine_exports_it(machines, searched, confirmed):
    _, remote = machines
    _, options = searched
    output = remote.automl("export", "--best", *options, "--out", "exported")
    assert output.startswith("exported ")
    assert (remote.folder / "work" / "exported" / "model.onnx").exists()


def test_no_credential_is_kept_or_printed(machines, objects, ray_logs, database, secrets, confirmed):
    """This is the last of the file: what the tests above have left is read here."""
    scheduler = sqlalchemy.create_engine(database)
    with scheduler.connect() as connection:
        tables = {
            f"table {name}": repr(connection.execute(sqlalchemy.text(f'select * from "{name}"')).all())
            for name in sqlalchemy.inspect(scheduler).get_table_names()
        }
    scheduler.dispose()
    files = [
        file
        for folder in (ray_logs, *(machine.folder for machine in machines))
        for file in folder.rglob("*")
        if file.is_file()
    ]
    outputs = {f"output of {machine.folder.name}": "".join(machine.outputs) for machine in machines}
    assert {"search.json", "runtime_env_agent.log", "MODEL_CARD.md"} <= {file.name for file in files}
    assert sum(map(len, tables.values())) > 10_000
    content = {name: text.encode() for name, text in (tables | outputs).items()}
    content |= {str(file): file.read_bytes() for file in files}
    content |= objects()
    for what, secret in secrets.items():
        forms = [secret.encode(), base64.b64encode(f"somebody:{secret}".encode())]
        leaks = [name for name, text in content.items() if any(form in text for form in forms)]
        assert leaks == [], what
