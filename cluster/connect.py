"""Reaching Ray: the running cluster when there is one, otherwise a Ray of our own on this machine."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from attention import InputError


@contextmanager
def connect() -> Iterator[None]:
    """Be connected to Ray inside the block.

    A cluster named by RAY_ADDRESS (which `ray job submit` sets) is used and left running; a process
    that is connected already stays so. Otherwise a local Ray is started, with all cores of this
    machine, and ended with the block. Raises InputError when the cluster cannot be reached.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _join(address)
    else:
        # Nothing about a local run is anybody's business.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """The resources of each living node of the connected cluster, in Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _join(address: str) -> None:
    try:
        _answers(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"RAY_ADDRESS={address} cannot be reached. Start a cluster with 'ray start --head' and give its "
            f"address as HOST:6379; where it asks for a token, 'export RAY_AUTH_MODE=token'; or unset "
            f"RAY_ADDRESS to run on this machine alone. ({reason})"
        ) from error


def _answers(address: str) -> None:
    """Raises OSError when nothing listens there. Ray itself tries for two minutes and prints meanwhile."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
