"""Connecting to Ray and waiting for capacity, without a Ray."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import ray

from automl.base.errors import InputError
from cluster import connect as cluster_connect
from cluster.connect import (
    connect,
    keep_ray,
    list_free_resources,
    use_node_address,
    wait_for_capacity,
    watch_head,
)
from cluster.ray_internals import services, start_patiently, state
from cluster.resources import TrialResources


def give_free_resources(monkeypatch, *answers):
    """Replace `list_free_resources`. It returns the answers in turn and repeats the last one."""
    remaining = list(answers)

    def list_free(labels):
        nodes = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return {f"node {i}": node for i, node in enumerate(nodes)}

    monkeypatch.setattr(cluster_connect, "list_free_resources", list_free)
    monkeypatch.setattr(cluster_connect, "POLL", 0.01)
    return remaining


@pytest.mark.parametrize(
    ("trial", "nodes", "fits"),
    [
        (TrialResources(cpus=4), [{"CPU": 2.0}, {"CPU": 4.0}], True),
        (TrialResources(cpus=2, workers=2), [{"CPU": 2.0}, {"CPU": 2.0}], True),
        (TrialResources(gpus=0.5), [{"CPU": 1.0, "GPU": 0.5}], True),
        (TrialResources(gpus=1, workers=2), [{"CPU": 1.0, "GPU": 1.5}, {"CPU": 1.0, "GPU": 1.0}], True),
        (TrialResources(cpus=4), [{"CPU": 2.0}, {"CPU": 2.0}], False),
        (TrialResources(cpus=2, workers=2), [{"CPU": 3.0}, {"CPU": 1.0}], False),
        (TrialResources(gpus=1), [{"CPU": 8.0}, {"GPU": 1.0}], False),
        (TrialResources(gpus=0.5), [{"CPU": 1.0, "GPU": 0.25}, {"CPU": 1.0, "GPU": 0.25}], False),
        (TrialResources(gpus=2), [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}], False),
    ],
)
def test_free_capacity_returns_at_once_and_pieces_on_several_nodes_do_not_suffice(
    trial, nodes, fits, monkeypatch
):
    give_free_resources(monkeypatch, nodes)
    message = r"a trial asks for .*; free are .* on node 0; .* on node 1, and no capacity"
    with nullcontext() if fits else pytest.raises(InputError, match=message):
        wait_for_capacity(trial, seconds=0)


def test_wait_ends_when_capacity_becomes_free(monkeypatch):
    remaining = give_free_resources(monkeypatch, [{}], [{"CPU": 1.0}], [{"CPU": 4.0}])
    wait_for_capacity(TrialResources(cpus=4), seconds=60)
    assert len(remaining) == 1


def test_only_nodes_with_the_labels_that_do_not_drain_are_used(monkeypatch):
    common = {"NodeManagerAddress": "10.0.0.1", "Resources": {}}
    metadata = [
        {"NodeID": key, "Labels": {"zone": "b" if key == "b" else "a"}, "Alive": key != "dead", **common}
        for key in ("a", "b", "c", "dead", "new")
    ]
    monkeypatch.setattr(ray, "nodes", lambda: metadata)
    monkeypatch.setattr(state.state, "get_draining_nodes", lambda: {"c": 0})
    monkeypatch.setattr(
        state.state, "available_resources_per_node", lambda: {key: {"CPU": 1.0} for key in "abc"}
    )
    assert list_free_resources({"zone": "a"}) == {"10.0.0.1 (a)": {"CPU": 1.0}, "10.0.0.1 (new)": {}}
    wait_for_capacity(TrialResources(labels={"zone": "b"}), seconds=0)
    with pytest.raises(InputError, match="on one node with zone=c; no such node takes anything new"):
        wait_for_capacity(TrialResources(labels={"zone": "c"}), seconds=0)


def test_workers_of_a_trial_use_the_address_of_their_node(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    for address, interface in (("192.0.2.1", None), ("127.0.0.1", "lo")):
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda address=address: address)
        use_node_address()
        assert os.environ.get("GLOO_SOCKET_IFNAME") == interface


def test_unreachable_cluster_is_rejected_at_once(monkeypatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"RAY_ADDRESS={address} cannot be reached"), connect():
            pass


def test_ray_is_awaited_as_long_as_its_processes_live(monkeypatch, capsys):
    """They have sessions of their own, so that a signal to the process group does not end them first."""
    answers = iter([False, False, True, False])

    def get_node(address, node_id):
        if not next(answers):
            raise RuntimeError("not registered")
        return node_id

    monkeypatch.setattr(services, "get_node", get_node)
    with start_patiently(news=0):
        process = services.ConsolePopen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert os.getsid(process.pid) == process.pid
        assert services.get_node("here", "a node") == "a node"
        assert capsys.readouterr().err.count("waiting for Ray to start, 0 s so far\n") == 2
        process.communicate(b"\n")
        with pytest.raises(RuntimeError, match="not registered"):
            services.get_node("here", "a node")
    assert services.get_node is get_node
    assert issubclass(services.ConsolePopen, subprocess.Popen)


@pytest.mark.parametrize("known", [True, False])
def test_cores_and_token_of_a_local_ray(known, monkeypatch, tmp_path):
    started = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setattr("cluster.connect.TOKEN_FILE", str(tmp_path / "auth_token"))
    if known:
        (tmp_path / "auth_token").touch()
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    monkeypatch.setattr("automl.base.process.QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options["num_cpus"]))
    before = signal.getsignal(signal.SIGTERM)
    for quota in ("max 100000\n", "150000 100000\n", "50000 100000\n"):
        (tmp_path / "cpu.max").write_text(quota)
        with connect():
            assert len(os.environ.get("RAY_AUTH_TOKEN", "")) == (0 if known else 64)
            assert signal.getsignal(signal.SIGTERM) is before
    assert started == [len(os.sched_getaffinity(0)), 1, 1]


@pytest.mark.parametrize(("variable", "length"), [("TMPDIR", 60), ("TMPDIR", 20), ("RAY_TMPDIR", 60)])
def test_temporary_folder_too_long_for_sockets_is_replaced_or_rejected(variable, length, monkeypatch, capsys):
    started = []
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, "/" + "x" * length)
    monkeypatch.setattr(ray, "init", lambda **options: started.append(os.environ.get("RAY_TMPDIR")))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    if variable == "RAY_TMPDIR":
        with pytest.raises(InputError, match=r"RAY_TMPDIR must have at most \d+ bytes"), connect():
            pass
        assert started == []
        return
    with connect():
        pass
    assert started == (["/tmp"] if length == 60 else [None])
    assert ("TMPDIR is too long" in capsys.readouterr().err) == (length == 60)


def test_kept_ray_serves_several_connections(monkeypatch):
    calls = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append("init"))
    monkeypatch.setattr(ray, "is_initialized", lambda: calls[-1:] == ["init"])
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    with keep_ray():
        for _ in range(2):
            with connect():
                assert calls == ["init"]
        assert calls == ["init"]
    assert calls == ["init", "shutdown"]
    with connect():
        pass
    assert calls[2:] == ["init", "shutdown"]


@pytest.mark.parametrize(("ends", "silent"), [(True, False), (True, True), (False, False)])
def test_end_of_the_head_is_reported_once(ends, silent, monkeypatch):
    calls = []
    was_called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))

        def lost(lost_address):
            calls.append(lost_address)
            was_called.set()

        with watch_head(lost, period=0.01):
            if silent:
                monkeypatch.setattr(cluster_connect, "_check_listening", Mock(side_effect=TimeoutError))
            elif ends:
                server.close()
            assert was_called.wait(10 if ends else 0.1) is ends
    assert calls == [address] * ends
