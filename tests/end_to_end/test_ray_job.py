"""`ray job submit` on a cluster that asks for a token, as `ray start` makes it."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def cluster(tmp_path):
    """A head of our own, and the environment of who talks to it."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    dashboard = free_port()
    with open(tmp_path / "head.log", "w") as log:
        head = subprocess.Popen(
            [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", f"--port={free_port()}",
             f"--dashboard-port={dashboard}", f"--ray-client-server-port={free_port()}",
             f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        for _ in range(120):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            assert head.poll() is None, (tmp_path / "head.log").read_text()
            time.sleep(0.5)
        yield {**environment, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    finally:
        head.terminate()
        try:
            head.wait(60)
        finally:
            if head.poll() is None:
                os.killpg(head.pid, 9)


def test_a_submitted_search_ends_well(cluster, tmp_path):
    command = [str(BIN / "ray"), "job", "submit", "--"]
    search = ["python", "-m", "automl.search", "--space", "digits", "--trials", "4", "--epochs", "2"]
    job = subprocess.run(
        [*command, *search], cwd=tmp_path, env=cluster, capture_output=True, text=True, timeout=300
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "succeeded" in job.stdout + job.stderr
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert (len(runs), len(children)) == (5, 4)
    for child in children:
        assert "accuracy" in child.data.metrics
        assert "learning_rate" in child.data.params
