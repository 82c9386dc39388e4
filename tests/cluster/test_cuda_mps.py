"""NVIDIA's MPS, whose daemon is imitated by a script."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from cluster import cuda_mps
from cluster.connect import connect, keep_ray

# With -d, a daemon that is another process and holds no stream of its caller. `quit` ends it.
DAEMON = """#!/bin/sh
test -n "$CUDA_MPS_PIPE_DIRECTORY" && test -n "$CUDA_MPS_LOG_DIRECTORY" || exit 3
if [ "$1" = -d ]
then
    if [ -n "$MPS_FAILS" ]; then echo "$MPS_FAILS"; exit 1; fi
    setsid sleep 120 < /dev/null > /dev/null 2>&1 &
    echo $! > "$MPS_PID"
else
    read -r command
    test "$command" = "quit -t 5" && kill "$(cat "$MPS_PID")"
fi
"""
HELD = """
import time
from cluster import cuda_mps
cuda_mps._probe = lambda: None
cuda_mps.start()
time.sleep(60)
"""


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Put an imitated daemon on the path. Return the file with the number of its process."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(DAEMON)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("MPS_PID", str(tmp_path / "pid"))
    for name in (*cuda_mps.VARIABLES, "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(cuda_mps, "_probe", lambda: None)
    yield tmp_path / "pid"
    cuda_mps.stop()


def runs(file: Path) -> bool:
    """Return True if the daemon runs. One that has ended may still wait for its parent."""
    try:
        return Path(f"/proc/{int(file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait(condition) -> None:
    """Wait for what must happen. The timeout of the test ends a wait in vain."""
    while not condition():
        time.sleep(0.02)


def test_daemon_serves_processes_until_it_is_stopped(daemon, capsys):
    assert cuda_mps.start()
    assert cuda_mps.start(), "it is started once"
    folder = Path(os.environ[cuda_mps.VARIABLES[0]])
    assert runs(daemon)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(str(folder)) < 60, "its sockets have short paths"
    cuda_mps.stop()
    wait(lambda: not runs(daemon))
    assert not folder.exists()
    assert not os.environ.keys() & set(cuda_mps.VARIABLES)
    assert capsys.readouterr().err == "CUDA MPS is used: kernels of trials on one GPU overlap\n"


def test_daemon_ends_with_a_driver_that_is_killed(daemon):
    driver = subprocess.Popen([sys.executable, "-c", HELD])
    wait(lambda: daemon.exists() and daemon.read_text().strip() and runs(daemon))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait(lambda: not runs(daemon))


@pytest.mark.parametrize(
    ("variables", "client", "reason"),
    [
        ({"MPS_FAILS": "Permission denied"}, None, "Permission denied"),
        ({"PATH": "/usr/bin:/bin"}, None, "not found|No such file"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/other"}, None, "CUDA_MPS_PIPE_DIRECTORY is set"),
        ({}, "cuInit returned 805", r"its first client failed \(cuInit returned 805\)"),
    ],
)
def test_failure_to_start_is_one_line(variables, client, reason, daemon, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if client is not None:
        monkeypatch.setattr(cuda_mps, "_probe", lambda: f"its first client failed ({client})")
    before = dict(os.environ)
    assert not cuda_mps.start()
    assert dict(os.environ) == before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("CUDA MPS is not used: ")
    assert re.search(reason, lines[0])
    wait(lambda: not runs(daemon))


def test_first_client_without_a_driver_fails_with_its_reason(monkeypatch):
    monkeypatch.setattr(cuda_mps, "PROBE", cuda_mps.PROBE.replace("libcuda.so.1", "libmissing.so.1"))
    assert "its first client failed (OSError: libmissing.so.1" in cuda_mps._probe()


def test_daemon_lives_as_long_as_ray(daemon, monkeypatch):
    ended = []
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(runs(daemon)))
    with connect():
        assert not cuda_mps.is_used()
    ended.clear()
    with keep_ray():
        with connect(with_mps=True):
            assert runs(daemon)
        assert runs(daemon), "the confirmation uses the same Ray"
    assert ended == [True], "the processes of Ray end first"
    wait(lambda: not runs(daemon))
    with pytest.raises(ZeroDivisionError), connect(with_mps=True):
        raise ZeroDivisionError
    wait(lambda: not runs(daemon))


def test_running_ray_is_not_changed(monkeypatch, capsys):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with connect(with_mps=True):
        assert capsys.readouterr().err == "CUDA MPS is not used: Ray was started without it\n"
