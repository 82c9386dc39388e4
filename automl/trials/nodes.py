"""Compute on the nodes of a cluster before the trials start."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayTaskError

from automl.base.errors import InputError
from automl.base.terminal import tell
from cluster.connect import connect, list_nodes

AT_LEAST = 16  # tasks that wait or run at once, so that a cluster without nodes grows
PATIENCE = 600.0  # maximum time without a node for the tasks [s]


@contextmanager
def open_nodes() -> Iterator[Callable[..., Iterator[Any]] | None]:
    """Connect to Ray, and yield `map_on_nodes`. Yield None if this machine has the only cores."""
    with connect():
        here = ray.get_runtime_context().get_node_id()
        cores = {key: node.resources.get("CPU", 0) for key, node in list_nodes().items()}
        yield None if cores.get(here) == sum(cores.values()) > 0 else map_on_nodes


def map_on_nodes(compute: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the results of `compute(*each)` for `arguments` in order, from tasks of one core on all nodes.

    Twice as many tasks as cores are submitted. Raises InputError if a task does, or no node has cores.
    """
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(compute)
    pending: deque[ray.ObjectRef] = deque()
    for each in arguments:
        pending.append(task.remote(*each))
        if len(pending) >= max(AT_LEAST, 2 * _count_cores()):
            yield _get(pending.popleft())
    while pending:
        yield _get(pending.popleft())


def _count_cores() -> float:
    return sum(node.resources.get("CPU", 0) for node in list_nodes().values())


def _get(result: ray.ObjectRef) -> Any:
    """Return the result of a task. Raises its InputError."""
    try:
        while not ray.wait([result], timeout=PATIENCE)[0]:
            if not _count_cores():
                raise InputError(f"no node with cores came in {PATIENCE:g} s to decode the data; start one")
            tell(f"no core came free in {PATIENCE:g} s to decode the data; waiting")
        return ray.get(result)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, InputError) else error from None
