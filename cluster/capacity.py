"""Capacity for trials in a cluster whose nodes come and go."""

import sys
import time
from collections.abc import Callable, Mapping

from cluster.connect import Node, list_nodes
from cluster.ray_internals import node_of_actor
from cluster.resources import TrialResources, count_fitting, describe_shortage

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
