"""The capacity for trials in a cluster whose nodes come and go."""

import sys
import time
from collections.abc import Callable, Mapping

from cluster.connect import Node, nodes
from cluster.ray_internals import node_of_actor
from cluster.resources import TrialResources, fitting, shortage

FRESH = 1.0  # seconds for which what was seen of the cluster is taken for true
GRACE = 30.0  # seconds without any capacity after which no node is expected to come back
REMIND = 60.0  # seconds between two lines about what is waited for

NODE_ID = "ray.io/node-id"  # Ray's own label of each node


class ClusterCapacity:
    """How many trials fit, and on which nodes; cheap to ask often.

    shape: of a trial. most: concurrent trials that are requested even beyond the current capacity, which
    triggers autoscaling; None for as many as the capacity allows.
    """

    def __init__(
        self,
        shape: TrialResources,
        most: int | None = None,
        *,
        look: Callable[[Mapping[str, str]], Mapping[str, Node]] = nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape, self.most = shape, most
        self._look, self._clock = look, clock
        self._looked = self._told = float("-inf")
        self._nodes: Mapping[str, Node] = {}
        self._closed: dict[str, str] = {}  # nodes that no trial can run on, and why
        self._fitting = 0
        self._since: float | None = None  # when there began to be none
        self._ended: str | None = None

    def slots(self) -> int:
        """How many trials may run at once."""
        self._refresh()
        return self._fitting if self.most is None else self.most

    def labels(self) -> dict[str, str]:
        """Which nodes take what begins now, as Ray selects them by their labels."""
        avoided = {NODE_ID: f"!in({','.join(sorted(self._closed))})"} if self._closed else {}
        return {**self.shape.labels, **avoided}

    def close(self, node: str, why: str) -> None:
        """No trial can run on this node, and none will begin there any more."""
        if node not in self._closed:
            self._closed[node] = why
            print(f"no more trials on node {self._name(node)}: {why}", file=sys.stderr, flush=True)
            self._refresh(now=True)

    def leaving(self, node: str) -> bool:
        """Trials should move to other nodes: none can run here, or the node is being drained."""
        self._refresh()
        return node in self._closed or (node in self._nodes and self._nodes[node].draining)

    def lost(self, node: str) -> bool:
        """It is the node's fault when a process there has died."""
        self._refresh(now=True)
        return node not in self._nodes or self.leaving(node)

    def node_of(self, actor: str) -> str:
        """The id of the node that an actor ran on."""
        return node_of_actor(actor)

    def ended(self) -> str | None:
        """Why no more capacity is to be expected: for a while there has been none for a single trial."""
        self._refresh()
        return self._ended

    def _refresh(self, now: bool = False) -> None:
        at = self._clock()
        if at - self._looked < FRESH and not now:
            return
        self._looked = at
        self._nodes = self._look(self.shape.labels)
        self._fitting = fitting(self.shape, self._open())
        if self._fitting:
            self._since = None
            return
        self._since = at if self._since is None else self._since
        # Nodes come when they are asked for; but the next ones would be as full as these.
        if self.most is None or self._closed.keys() & self._nodes.keys():
            if at - self._since >= GRACE and self._ended is None:
                self._ended = f"{self._shortage()}, and no other node came in {GRACE:g} s"
        elif at - self._told >= REMIND:
            self._told = at
            print(f"waiting for a node: {self._shortage()}", file=sys.stderr, flush=True)

    def _open(self) -> list[Mapping[str, float]]:
        """The resources of each node that a trial may begin on."""
        return [
            node.resources
            for key, node in self._nodes.items()
            if key not in self._closed and not node.draining
        ]

    def _shortage(self) -> str:
        without = [f"; node {self._name(key)} takes none: {why}" for key, why in self._closed.items()]
        return shortage(self.shape, self._open()) + "".join(without)

    def _name(self, node: str) -> str:
        return self._nodes[node].name if node in self._nodes else node[:8]
