"""Connects to the running Ray cluster, or starts a local Ray where there is none."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from attention import InputError, check_utf8
from cluster.loopback import LOOPBACK, on_loopback
from cluster.ray_internals import draining_nodes, free_resources
from cluster.resources import TrialResources, fitting, free_on
from cluster.token import check_token

SHORT = "/tmp"  # where Ray's sockets are when TMPDIR is too long
SOCKET = 107  # bytes that the path of a socket may have
# Of these, what is left for the folder that Ray makes its own in.
LONGEST = SOCKET - len("/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.1")

_KEPT: list[bool] = []  # not empty inside of `kept`


@contextmanager
def kept() -> Iterator[None]:
    """Inside the block the Ray that `connect` starts stays for the next one, and ends with the block."""
    _KEPT.append(True)
    try:
        yield
    finally:
        _KEPT.pop()
        ray.shutdown()


@contextmanager
def connect(*, dashboard: bool = False) -> Iterator[None]:
    """Be connected to Ray inside the block.

    A cluster named by RAY_ADDRESS (which `ray job submit` sets) is used and left running; a process
    that is connected already stays so. Otherwise a local Ray is started, with all cores of this
    machine, and ended with the block. It listens on loopback alone. It has a dashboard where one is asked
    for: trials of several workers need it, because Ray Train frees the resources of those that are stopped
    through it.

    Raises InputError when the cluster cannot be reached, or a local one does not start.
    """
    if ray.is_initialized():
        yield
        return
    for what, text in (("the current folder", os.getcwd()), *(("an argument", text) for text in sys.argv)):
        check_utf8(what, text)
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _join(address)
    else:
        # Nothing about a local run is anybody's business.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray would give its workers 15, at which two busy processes at 0 leave them 1/30 of their cores. What
        # a person starts runs as whatever else they start; who wants it otherwise has `nice automl search`.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # A head on this machine that does not answer for seconds will not in a minute.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
        _shorten_temporary_folder()
        with on_loopback(), _explained():
            ray.init(
                address="local",
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"worker_process_setup_hook": name_the_cluster} if dashboard else None,
            )
    try:
        yield
    finally:
        if not _KEPT:
            ray.shutdown()


def joins() -> bool:
    """Whether `connect` joins a cluster, so that trials may run on other machines."""
    return bool(os.environ.get("RAY_ADDRESS"))


def name_the_cluster() -> None:
    """Runs first in each process of a local Ray: names the cluster that the process belongs to.

    What Ray Train starts to free the resources of stopped trials asks for the machine's latest cluster
    instead, which may be another one, or one that has long ended.
    """
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


@dataclass(frozen=True)
class Node:
    """A living node: its name for people, its resources in Ray's names; whether it is about to go.

    Ray begins nothing on a node that drains, since its owner takes it back.
    """

    name: str
    resources: Mapping[str, float]
    draining: bool = False


def nodes(labels: Mapping[str, str] | None = None) -> dict[str, Node]:
    """The living nodes of the connected cluster that have all these labels, by their ids."""
    wanted = (labels or {}).items()
    draining = draining_nodes()
    return {
        node["NodeID"]: Node(
            f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})",
            node["Resources"],
            node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"] and wanted <= node["Labels"].items()
    }


def free(labels: Mapping[str, str]) -> dict[str, Mapping[str, float]]:
    """What is free on each node that has these labels and takes something new, by the nodes' names."""
    there = free_resources()
    return {node.name: there.get(key, {}) for key, node in nodes(labels).items() if not node.draining}


def wait_for_capacity(
    trial: TrialResources,
    seconds: float,
    poll: float = 1.0,
    look: Callable[[Mapping[str, str]], Mapping[str, Mapping[str, float]]] = free,
) -> None:
    """Return as soon as a trial could be placed on what is free on the nodes that it may run on.

    Raises InputError with what was asked and what is free on which nodes when that does not happen in time.
    """
    until = time.monotonic() + seconds
    while True:
        there = look(trial.labels)
        if fitting(trial, there.values()):
            return
        if time.monotonic() >= until:
            such = "such node" if trial.labels else "node"
            what = f"free are {free_on(trial, there)}" if there else f"no {such} takes anything new"
            raise InputError(
                f"a trial asks for {trial}; {what}, and no capacity became free in {seconds:g} s. Stop what "
                f"runs there (ray status, ray job list), or ask for less."
            )
        time.sleep(poll)


def _shorten_temporary_folder() -> None:
    """Have Ray put its sockets into a folder whose name is short enough for them.

    Raises InputError where RAY_TMPDIR, which a person has set, is too long.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    place = chosen or os.environ.get("TMPDIR") or SHORT
    if len(os.fsencode(place)) <= LONGEST:
        return
    if chosen:
        raise InputError(
            f"RAY_TMPDIR must have at most {LONGEST} bytes, as a path of a socket may have {SOCKET}; got "
            f"{place} with {len(os.fsencode(place))}. Set it to a shorter folder, such as {SHORT}"
        )
    if not os.access(SHORT, os.W_OK):
        raise InputError(
            f"TMPDIR={place} is too long for Ray's sockets, and {SHORT} cannot be written; set RAY_TMPDIR to "
            f"a folder with at most {LONGEST} bytes"
        )
    print(
        f"TMPDIR is too long for Ray's sockets, which are in {SHORT}; RAY_TMPDIR changes that",
        file=sys.stderr,
    )
    os.environ["RAY_TMPDIR"] = SHORT


@contextmanager
def _explained() -> Iterator[None]:
    """Ray waits half a minute for its own start, however busy the machine is."""
    try:
        yield
    except Exception as error:  # Ray raises nothing more specific
        if "timed out during startup" not in str(error):
            raise
        raise InputError(
            "Ray did not start on this machine within 30 seconds, as the machine has too much else to do; "
            "run the command again when it has less, or set RAY_ADDRESS to a cluster that is running"
        ) from error


def _join(address: str) -> None:
    try:
        _answers(address)
        check_token(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except InputError:
        raise
    except (OSError, ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"RAY_ADDRESS={address} cannot be reached. Start a cluster with 'ray start --head' and give its "
            f"address as HOST:6379; or unset RAY_ADDRESS to run on this machine alone. ({reason})"
        ) from error


def _answers(address: str) -> None:
    """Raises OSError when nothing listens there. Ray itself tries for two minutes and prints meanwhile."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
