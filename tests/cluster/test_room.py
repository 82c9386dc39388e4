"""The room in a cluster whose nodes come and go, on a clock of the test's own."""

from collections.abc import Mapping

import pytest

from cluster.resources import TrialResources
from cluster.room import FRESH, GRACE, REMIND, Room

ASKED = "a trial asks for 1 CPUs and 0 GPUs on one node; the cluster has"
NODE = {"CPU": 2.0}
SMALL = {"CPU": 0.5}


class Cluster:
    """Some nodes, and the time; counts how often it is looked at."""

    def __init__(self, **nodes: Mapping[str, float]) -> None:
        self.nodes: dict[str, Mapping[str, float]] = nodes
        self.now, self.looks = 0.0, 0

    def look(self) -> Mapping[str, Mapping[str, float]]:
        self.looks += 1
        return self.nodes

    def room(self, most: int | None = None) -> Room:
        return Room(TrialResources(cpus=1), most, look=self.look, clock=lambda: self.now)


def test_slots_follow_the_nodes() -> None:
    cluster = Cluster(a=NODE)
    room = cluster.room()
    assert room.slots() == 2
    cluster.nodes = {"a": NODE, "b": NODE}
    cluster.now += FRESH
    assert room.slots() == 4
    cluster.nodes = {"b": NODE}
    cluster.now += FRESH
    assert room.slots() == 2


def test_the_cluster_is_looked_at_once_a_second() -> None:
    cluster = Cluster(a=NODE)
    room = cluster.room()
    for _ in range(100):
        room.slots()
        room.ended()
        cluster.now += FRESH / 50
    assert cluster.looks == 2


def test_without_room_it_ends_after_a_grace() -> None:
    cluster = Cluster(a=NODE)
    room = cluster.room()
    room.slots()
    cluster.nodes = {"a": SMALL}
    cluster.now += FRESH
    assert (room.slots(), room.ended()) == (0, None)
    cluster.now += GRACE - FRESH
    assert room.ended() is None
    cluster.now += FRESH
    assert room.ended() == f"{ASKED} 0.5 CPUs and 0 GPUs on 1 node(s), and no other node came in 30 s"


def test_a_node_that_comes_in_time_starts_the_grace_anew() -> None:
    cluster = Cluster()
    room = cluster.room()
    for _ in range(5):
        cluster.nodes = {}
        cluster.now += FRESH
        assert room.slots() == 0
        cluster.now += GRACE - 2 * FRESH
        assert room.ended() is None
        cluster.nodes = {"b": NODE}
        cluster.now += FRESH
        assert room.slots() == 2


def test_with_a_number_it_waits_and_says_so_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    room = cluster.room(most=7)
    for _ in range(int(10 * GRACE / FRESH)):
        assert (room.slots(), room.ended()) == (7, None)
        cluster.now += FRESH
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 10 * GRACE / REMIND
    assert set(said) == {f"waiting for a node: {ASKED} 0 CPUs and 0 GPUs on 0 node(s)"}
    cluster.nodes = {"a": NODE}
    assert room.slots() == 7, "more than there is room for now: so it is asked for"
    cluster.now += 10 * REMIND
    room.slots()
    assert capsys.readouterr().err == ""
