"""Capacity of a cluster whose nodes come and go, with a simulated clock."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cluster.connect import FRESH, GRACE, REMIND, ClusterCapacity, Node
from cluster.resources import TrialResources

ASKED = "a trial asks for 1 CPUs and 0 GPUs on one node; the cluster has"
NODE = Node("10.0.0.1 (aaaa)", {"CPU": 2.0})
SMALL = Node("10.0.0.2 (bbbb)", {"CPU": 0.5})


class Cluster:
    """Nodes and a clock. Counts how often the nodes are listed."""

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.now, self.listed = 0.0, 0

    def list_nodes(self, labels: Mapping[str, str]) -> Mapping[str, Node]:
        self.listed += 1
        return self.nodes

    def capacity(self, most: int | None = None) -> ClusterCapacity:
        return ClusterCapacity(
            TrialResources(cpus=1), most, list_nodes=self.list_nodes, clock=lambda: self.now
        )


def test_slots_follow_the_nodes() -> None:
    cluster = Cluster(a=NODE)
    capacity = cluster.capacity()
    assert capacity.slots() == 2
    cluster.nodes = {"a": NODE, "b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 4
    cluster.nodes = {"b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 2


def test_nodes_are_listed_once_a_second() -> None:
    cluster = Cluster(a=NODE)
    capacity = cluster.capacity()
    for _ in range(100):
        capacity.slots()
        capacity.ended()
        cluster.now += FRESH / 50
    assert cluster.listed == 2


def test_end_is_reported_after_a_grace_period_without_capacity() -> None:
    cluster = Cluster(a=NODE)
    capacity = cluster.capacity()
    capacity.slots()
    cluster.nodes = {"a": SMALL}
    cluster.now += FRESH
    assert (capacity.slots(), capacity.ended()) == (0, None)
    cluster.now += GRACE - FRESH
    assert capacity.ended() is None
    cluster.now += FRESH
    assert capacity.ended() == f"{ASKED} 0.5 CPUs and 0 GPUs on 1 node(s), and no other node came in 30 s"


def test_a_new_node_restarts_the_grace_period() -> None:
    cluster = Cluster()
    capacity = cluster.capacity()
    for _ in range(5):
        cluster.nodes = {}
        cluster.now += FRESH
        assert capacity.slots() == 0
        cluster.now += GRACE - 2 * FRESH
        assert capacity.ended() is None
        cluster.nodes = {"b": NODE}
        cluster.now += FRESH
        assert capacity.slots() == 2


def test_with_a_fixed_number_it_waits_and_reminds_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    capacity = cluster.capacity(most=7)
    for _ in range(int(10 * GRACE / FRESH)):
        assert (capacity.slots(), capacity.ended()) == (7, None)
        cluster.now += FRESH
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10 * GRACE / REMIND
    assert set(lines) == {f"waiting for a node: {ASKED} 0 CPUs and 0 GPUs on 0 node(s)"}
    cluster.nodes = {"a": NODE}
    assert capacity.slots() == 7, "more than the current capacity is requested"
    cluster.now += 10 * REMIND
    capacity.slots()
    assert capsys.readouterr().err == ""


def test_trials_leave_a_draining_node() -> None:
    cluster = Cluster(a=NODE, b=NODE)
    capacity = cluster.capacity()
    assert not capacity.leaving("a")
    cluster.nodes = {"a": replace(NODE, draining=True), "b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 2
    assert (capacity.leaving("a"), capacity.leaving("b")) == (True, False)
    assert not capacity.leaving("c"), "a node that has just been added"
    assert capacity.labels() == {}, "Ray itself starts nothing on a draining node"


def test_death_on_a_lost_or_draining_node_is_the_nodes_fault() -> None:
    cluster = Cluster(a=NODE, b=NODE, c=NODE)
    capacity = cluster.capacity()
    capacity.slots()
    cluster.nodes = {"a": NODE, "b": replace(NODE, draining=True)}
    assert [capacity.lost(node) for node in "abc"] == [False, True, True]


@pytest.mark.parametrize("most", [None, 8])
def test_a_closed_node_is_named_and_takes_nothing_new(
    most: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(a=NODE, b=NODE)
    capacity = cluster.capacity(most)
    capacity.slots()
    for _ in range(2):
        capacity.close("b", "the disk is full")
    assert capsys.readouterr().err == "no more trials on node 10.0.0.1 (aaaa): the disk is full\n"
    assert capacity.slots() == (most or 2)
    assert capacity.leaving("b")
    assert capacity.lost("b")
    assert capacity.labels() == {"ray.io/node-id": "!in(b)"}
    capacity.close("a", "no room")
    assert capacity.labels() == {"ray.io/node-id": "!in(a,b)"}
    cluster.now += GRACE
    assert capacity.ended() == (
        f"{ASKED} 0 CPUs and 0 GPUs on 0 node(s); node 10.0.0.1 (aaaa) takes none: the disk is full; node "
        "10.0.0.1 (aaaa) takes none: no room, and no other node came in 30 s"
    )


def test_labels_select_the_nodes() -> None:
    asked = []

    def list_nodes(labels: Mapping[str, str]) -> Mapping[str, Node]:
        asked.append(labels)
        return {"a": NODE}

    capacity = ClusterCapacity(TrialResources(labels={"zone": "a"}), list_nodes=list_nodes)
    capacity.close("b", "full")
    assert capacity.labels() == {"zone": "a", "ray.io/node-id": "!in(b)"}
    assert asked == [{"zone": "a"}]
