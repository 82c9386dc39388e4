"""Connects to the running Ray cluster, or starts a local Ray; its head, and nodes that come and go."""

import fcntl
import logging
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc
import ray
from ray.exceptions import AuthenticationError

from automl.base.errors import InputError, check_utf8
from automl.base.process import count_cores
from cluster.ray_internals import (
    LocalJob,
    ask_cluster_id,
    draining_nodes,
    free_resources,
    node_of_actor,
    start_patiently,
)
from cluster.resources import TrialResources, count_fitting, describe_free, describe_shortage

LOOPBACK = "127.0.0.1"
SHORT = "/tmp"  # folder of Ray's sockets if TMPDIR is too long
SOCKET = 107  # maximum length of a socket's path [bytes]
# Maximum length of the folder in which Ray creates its own [bytes].
LONGEST = SOCKET - len("/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.1")
POLL = 1.0  # seconds between two checks of the free resources
PERIOD = 1.0  # seconds between two checks of the head; Ray exits some 10 s after the head has ended
TIMES = 2  # consecutive checks that must fail
ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux: the address of a network interface
TOKEN_FILE = os.path.expanduser("~/.ray/auth_token")
TOKEN_ADVICE = (
    "'export RAY_AUTH_MODE=token', and put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN; "
    "'ray get-auth-token' prints it on the machine where the cluster was started."
)

_KEPT: list[bool] = []  # Not empty inside `keep_ray`.


@contextmanager
def keep_ray() -> Iterator[None]:
    """Keep the local Ray that `connect` starts for later calls. It ends with the block."""
    _KEPT.append(True)
    try:
        yield
    finally:
        _KEPT.pop()
        ray.shutdown()


@contextmanager
def connect(*, dashboard: bool = False) -> Iterator[None]:
    """Connect to Ray for the duration of the block.

    If RAY_ADDRESS is set, as by `ray job submit`, joins that cluster and leaves it running. A process that is
    already connected stays so. Otherwise starts a local Ray with all cores of this machine, which listens on
    loopback only, and ends it with the block.

    Args:
        dashboard: Start the dashboard of a local Ray. Trials of several workers need it, because Ray Train
            uses it to free the resources of stopped workers.

    Raises:
        InputError: The cluster cannot be reached, or a local Ray does not start.
    """
    if ray.is_initialized():
        yield
        return
    for what, text in (("the current folder", os.getcwd()), *(("an argument", text) for text in sys.argv)):
        check_utf8(what, text)
    address = os.environ.get("RAY_ADDRESS")
    on_signal = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            _join(address, HOOK if dashboard and not address.startswith("ray://") else None)
        else:
            _shorten_temporary_folder()
            _start(dashboard)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_signal)  # Ray's own handler exits with code 15
        yield
    finally:
        if not _KEPT:
            ray.shutdown()


def set_cluster_address() -> None:
    """Set RAY_ADDRESS to the cluster of this process. Runs first in each process of Ray.

    The process that frees the resources of Ray Train would otherwise connect to the machine's latest cluster.
    """
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


HOOK = {"worker_process_setup_hook": set_cluster_address}


def use_node_address() -> None:
    """Make Gloo use the network interface of this node's address, unless one is set."""
    # It would take the address of the host's name, which Debian makes 127.0.1.1. No other node reaches that.
    address = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                answer = fcntl.ioctl(probe, ADDRESS_OF, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


@dataclass(frozen=True)
class Node:
    """Living node of a cluster.

    Attributes:
        name: Name for messages.
        resources: Resources by Ray's names.
        draining: Whether the owner is taking the node back. Ray starts nothing on such a node.
    """

    name: str
    resources: Mapping[str, float]
    draining: bool = False


def list_nodes(labels: Mapping[str, str] | None = None) -> dict[str, Node]:
    """Return the living nodes of the connected cluster that have all these labels, by id."""
    required = (labels or {}).items()
    draining = draining_nodes()
    return {
        node["NodeID"]: Node(
            f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})",
            node["Resources"],
            node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"] and required <= node["Labels"].items()
    }


def list_free_resources(labels: Mapping[str, str]) -> dict[str, Mapping[str, float]]:
    """Return the free resources of each node that has these labels and is not draining, by node name."""
    resources = free_resources()
    return {
        node.name: resources.get(key, {}) for key, node in list_nodes(labels).items() if not node.draining
    }


def wait_for_capacity(trial: TrialResources, seconds: float) -> None:
    """Wait until the free resources of the permitted nodes suffice for one trial, for up to `seconds`.

    Raises `InputError` with the requested and the free resources if the time is over.
    """
    until = time.monotonic() + seconds
    while True:
        nodes_free = list_free_resources(trial.labels)
        if count_fitting(trial, nodes_free.values()):
            return
        if time.monotonic() >= until:
            noun = "such node" if trial.labels else "node"
            state = f"no {noun} takes anything new"
            if nodes_free:
                state = f"free are {describe_free(trial, nodes_free)}"
            raise InputError(
                f"a trial asks for {trial}; {state}, and no capacity became free in {seconds:g} s. Stop what "
                f"runs there (ray status, ray job list), or ask for less."
            )
        time.sleep(POLL)


def _shorten_temporary_folder() -> None:
    """Set RAY_TMPDIR to a folder whose path is short enough for Ray's sockets, if it must be."""
    # Raises `InputError` if the user has set RAY_TMPDIR and it is too long.
    chosen = os.environ.get("RAY_TMPDIR")
    folder = chosen or os.environ.get("TMPDIR") or SHORT
    if len(os.fsencode(folder)) <= LONGEST:
        return
    if chosen:
        raise InputError(
            f"RAY_TMPDIR must have at most {LONGEST} bytes, as a path of a socket may have {SOCKET}; got "
            f"{folder} with {len(os.fsencode(folder))}. Set it to a shorter folder, such as {SHORT}"
        )
    if not os.access(SHORT, os.W_OK):
        raise InputError(
            f"TMPDIR={folder} is too long for Ray's sockets, and {SHORT} cannot be written; set RAY_TMPDIR "
            f"to a folder with at most {LONGEST} bytes"
        )
    os.environ["RAY_TMPDIR"] = SHORT
    note = f"TMPDIR is too long for Ray's sockets, which are in {SHORT}; RAY_TMPDIR changes that"
    print(note, file=sys.stderr)


def _start(dashboard: bool) -> None:
    """Start a Ray that uses 127.0.0.1 as its address and listens only there. Print that it takes long."""
    # Raises `InputError` if one of its processes ends.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # At Ray's default of 15, two busy processes at 0 leave the workers 1/30 of their cores.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # If a head on this machine does not answer within seconds, it will not in a minute either.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    # The workers of a trial exchange gradients by Gloo or NCCL, which take the name of the network interface.
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    if not ({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or os.path.exists(TOKEN_FILE)):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray would write one into the home folder
    cores = count_cores()
    try:
        with start_patiently():
            ray.init(
                address="local",
                num_cpus=cores if cores < (os.cpu_count() or 1) else None,
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                log_to_driver=False,
                logging_level=logging.ERROR,
                job_config=LocalJob(),
                runtime_env=HOOK if dashboard else None,
            )
    except Exception as error:  # Ray raises no more specific type.
        if "timed out during startup" not in str(error):
            raise
        raise InputError(
            "Ray did not start on this machine, as one of its processes ended; its logs are in "
            "/tmp/ray/session_latest/logs. Run the command again, or set RAY_ADDRESS to a running cluster"
        ) from error


def _join(address: str, environment: dict[str, Callable[[], None]] | None) -> None:
    try:
        _check_listening(address)
        _check_token(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
    except InputError:
        raise
    except (OSError, ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"RAY_ADDRESS={address} cannot be reached. Start a cluster with 'ray start --head' and give its "
            f"address as HOST:6379; or unset RAY_ADDRESS to run on this machine alone. ({reason})"
        ) from error


def _check_token(address: str) -> None:
    """Raise `InputError` if the cluster at `address` refuses the token, or `ConnectionError`."""
    if address.startswith("ray://"):  # a client, which has its own checks
        return
    try:
        ask_cluster_id(address, timeout=10)
    except AuthenticationError as error:
        raise InputError(f"RAY_AUTH_MODE is token, and there is no token. {TOKEN_ADVICE}") from error
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise InputError(
                f"the cluster at {address} asks for a token, and got none or another cluster's. "
                f"{TOKEN_ADVICE}"
            ) from error
        # Ray reports other errors when it connects.


def _check_listening(address: str, timeout: float = 10) -> None:
    """Raise `OSError` if nothing listens at `address`. Ray itself tries for two minutes and prints."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()


@contextmanager
def watch_head(lost: Callable[[str], None], period: float = PERIOD) -> Iterator[None]:
    """Call `lost` once with the head's address if nothing listens there any more inside the block.

    When the head ends, Ray exits this process, and nothing can be printed.
    """
    address = ray.get_runtime_context().gcs_address
    over = threading.Event()

    def watch() -> None:
        failed = 0.0
        while not over.wait(period):
            try:
                _check_listening(address, timeout=5)
                failed = 0.0
            except OSError as error:  # A busy machine may be silent for some time.
                failed += 0.25 if isinstance(error, TimeoutError) else 1
            if failed >= TIMES:
                lost(address)
                return

    thread = threading.Thread(target=watch, name="head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


FRESH = 1.0  # seconds for which the last answer of the cluster is reused
GRACE = 30.0  # seconds without capacity after which no node is expected to come back
REMIND = 60.0  # seconds between two printed reminders of a shortage

NODE_ID = "ray.io/node-id"  # Ray's own label of each node


class ClusterCapacity:
    """Number of trials that fit into the cluster, and the nodes they may run on. Cheap to call often.

    `shape` are the resources of one trial. `most` is the number of trials to request even above the current
    capacity, which triggers autoscaling. None requests as many as fit. Tests replace the other arguments.
    """

    def __init__(
        self,
        shape: TrialResources,
        most: int | None = None,
        *,
        list_nodes: Callable[[Mapping[str, str]], Mapping[str, Node]] = list_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape, self.most = shape, most
        self._list_nodes, self._clock = list_nodes, clock
        self._refreshed = self._reminded = float("-inf")
        self._nodes: Mapping[str, Node] = {}
        self._closed: dict[str, str] = {}  # Reason, by the id of each node that no trial can run on.
        self._fitting = 0
        self._since: float | None = None  # Time at which the capacity became zero.
        self._end_reason: str | None = None

    def slots(self) -> int:
        """Return how many trials may run at once."""
        self._refresh()
        return self._fitting if self.most is None else self.most

    def labels(self) -> dict[str, str]:
        """Return Ray's label selector for the nodes on which new trials may start."""
        avoided = {NODE_ID: f"!in({','.join(sorted(self._closed))})"} if self._closed else {}
        return {**self.shape.labels, **avoided}

    def close(self, node: str, why: str) -> None:
        """Start no more trials on this node, since none can run there."""
        if node not in self._closed:
            self._closed[node] = why
            print(f"no more trials on node {self._name(node)}: {why}", file=sys.stderr, flush=True)
            self._refresh(now=True)

    def leaving(self, node: str) -> bool:
        """Return whether trials should leave the node: none can run there, or it is being drained."""
        self._refresh()
        return node in self._closed or (node in self._nodes and self._nodes[node].draining)

    def lost(self, node: str) -> bool:
        """Return whether a process that died on the node died through the node's fault."""
        self._refresh(now=True)
        return node not in self._nodes or self.leaving(node)

    def node_of(self, actor: str) -> str:
        """Return the id of the node that an actor ran on."""
        return node_of_actor(actor)

    def ended(self) -> str | None:
        """Return why no more capacity is expected, or None.

        The reason is a period in which not a single trial fitted.
        """
        self._refresh()
        return self._end_reason

    def _refresh(self, now: bool = False) -> None:
        at = self._clock()
        if at - self._refreshed < FRESH and not now:
            return
        self._refreshed = at
        self._nodes = self._list_nodes(self.shape.labels)
        self._fitting = count_fitting(self.shape, self._open())
        if self._fitting:
            self._since = None
            return
        self._since = at if self._since is None else self._since
        # Requesting trials adds nodes. But new nodes would be as unsuitable as closed ones.
        if self.most is None or self._closed.keys() & self._nodes.keys():
            if at - self._since >= GRACE and self._end_reason is None:
                self._end_reason = f"{self._shortage()}, and no other node came in {GRACE:g} s"
        elif at - self._reminded >= REMIND:
            self._reminded = at
            print(f"waiting for a node: {self._shortage()}", file=sys.stderr, flush=True)

    def _open(self) -> list[Mapping[str, float]]:
        """Return the resources of each node on which a trial may start."""
        return [
            node.resources
            for key, node in self._nodes.items()
            if key not in self._closed and not node.draining
        ]

    def _shortage(self) -> str:
        without = [f"; node {self._name(key)} takes none: {why}" for key, why in self._closed.items()]
        return describe_shortage(self.shape, self._open()) + "".join(without)

    def _name(self, node: str) -> str:
        return self._nodes[node].name if node in self._nodes else node[:8]
