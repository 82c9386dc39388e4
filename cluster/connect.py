"""Reaching Ray: the running cluster when there is one, otherwise a Ray of our own on this machine."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from attention import InputError


@contextmanager
def connect(*, cpus: int | None = None) -> Iterator[None]:
    """Be connected to Ray inside the block.

    A cluster named by RAY_ADDRESS (which `ray job submit` sets) is used and left running; a process
    that is connected already stays so. Otherwise a local Ray is started, with `cpus` cores or all of
    them, and ended with the block. Raises InputError when the cluster cannot be reached.
    """
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"RAY_ADDRESS={address} cannot be reached; start it with 'ray start --head' or unset "
                f"RAY_ADDRESS to run on this machine alone. ({reason})"
            ) from error
    else:
        # Nothing about a local run is anybody's business.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """The resources of each living node of the connected cluster, in Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
