"""The capacity of a cluster whose nodes come and go, on a clock of the test's own."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cluster.capacity import FRESH, GRACE, REMIND, ClusterCapacity
from cluster.connect import Node
from cluster.resources import TrialResources

ASKED = "a trial asks for 1 CPUs and 0 GPUs on one node; the cluster has"
NODE = Node("10.0.0.1 (aaaa)", {"CPU": 2.0})
SMALL = Node("10.0.0.2 (bbbb)", {"CPU": 0.5})


class Cluster:
    """Some nodes, and the time; counts how often it is looked at."""

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.now, self.looks = 0.0, 0

    def look(self, labels: Mapping[str, str]) -> Mapping[str, Node]:
        self.looks += 1
        return self.nodes

    def capacity(self, most: int | None = None) -> ClusterCapacity:
        return ClusterCapacity(TrialResources(cpus=1), most, look=self.look, clock=lambda: self.now)


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


def test_the_cluster_is_looked_at_once_a_second() -> None:
    cluster = Cluster(a=NODE)
    capacity = cluster.capacity()
    for _ in range(100):
        capacity.slots()
        capacity.ended()
        cluster.now += FRESH / 50
    assert cluster.looks == 2


def test_without_room_it_ends_after_a_grace() -> None:
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


def test_a_node_that_comes_in_time_starts_the_grace_anew() -> None:
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


def test_with_a_number_it_waits_and_says_so_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    capacity = cluster.capacity(most=7)
    for _ in range(int(10 * GRACE / FRESH)):
        assert (capacity.slots(), capacity.ended()) == (7, None)
        cluster.now += FRESH
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 10 * GRACE / REMIND
    assert set(said) == {f"waiting for a node: {ASKED} 0 CPUs and 0 GPUs on 0 node(s)"}
    cluster.nodes = {"a": NODE}
    assert capacity.slots() == 7, "more than the capacity now: so it is asked for"
    cluster.now += 10 * REMIND
    capacity.slots()
    assert capsys.readouterr().err == ""


def test_a_draining_node_is_left_and_takes_nothing_new() -> None:
    cluster = Cluster(a=NODE, b=NODE)
    capacity = cluster.capacity()
    assert not capacity.leaving("a")
    cluster.nodes = {"a": replace(NODE, draining=True), "b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 2
    assert (capacity.leaving("a"), capacity.leaving("b")) == (True, False)
    assert not capacity.leaving("c"), "a node that has just come"
    assert capacity.labels() == {}, "Ray itself begins nothing there"


def test_whose_fault_a_death_is() -> None:
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

    def look(labels: Mapping[str, str]) -> Mapping[str, Node]:
        asked.append(labels)
        return {"a": NODE}

    capacity = ClusterCapacity(TrialResources(labels={"zone": "a"}), look=look)
    capacity.close("b", "full")
    assert capacity.labels() == {"zone": "a", "ray.io/node-id": "!in(b)"}
    assert asked == [{"zone": "a"}]
