from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automl.base.errors import InputError
from cluster.connect import FRESH, GRACE, REMIND, ClusterCapacity, Node
from cluster.resources import TrialResources, count_fitting, count_slots

CPUS = {"CPU": 8.0, "memory": 1e10}
GPUS = {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "expected"),
    [
        (1, 0, [CPUS], 8),
        (3, 0, [CPUS], 2),
        (0.1, 0, [{"CPU": 1.0}], 10),
        (1, 0, [CPUS, GPUS], 16),
        (5, 0, [CPUS, GPUS], 2),  # A trial runs on one node, so 6 idle cores on two nodes do not suffice.
        (1, 1, [GPUS], 4),
        (1, 3, [GPUS], 1),
        (4, 1, [GPUS], 2),  # The cores run out first.
        (0.1, 0.3, [GPUS], 12),  # Three on each GPU. The remainders of two GPUs cannot be combined.
        (0.01, 0.1, [{"CPU": 8.0, "GPU": 1.0}], 10),
        (1, 0.6, [GPUS], 4),
        (1, 1, [CPUS, GPUS], 4),
        (1, 0.5, [{"CPU": 8.0, "GPU": 1.5}], 3),  # Half a GPU of the node is in use.
        (1, 1, [{"CPU": 8.0, "GPU": 1.5}], 1),
    ],
)
def test_slots(cpus: float, gpus: float, nodes: list[dict[str, float]], expected: int) -> None:
    assert count_slots(TrialResources(cpus=cpus, gpus=gpus), nodes) == expected


@pytest.mark.parametrize(
    ("custom", "expected"),
    [({"disk": 1}, 2), ({"disk": 0.5}, 4), ({"H200": 0.01, "disk": 2}, 1), ({"H200": 0.01, "none": 1}, 0)],
)
def test_custom_resources_limit_the_number_of_trials(custom: dict[str, float], expected: int) -> None:
    node = {"CPU": 8.0, "disk": 2.0, "H200": 1.0}
    assert count_fitting(TrialResources(custom=custom), [node, CPUS]) == expected


@pytest.mark.parametrize(
    ("custom", "fragment"),
    [
        ({"GPU": 1}, "--resource is for custom Ray resources; GPU is a built-in one"),
        ({"disk": 0}, "--resource disk must be a fraction below 1 or a whole number above 0; got 0"),
        ({"disk": float("nan")}, "got nan"),
    ],
)
def test_invalid_custom_resources_are_rejected(custom: dict[str, float], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        TrialResources(custom=custom)


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "fragments"),
    [
        (1, 64, [GPUS], ["64 GPUs", "4 GPUs", "1 node(s)", "--gpus-per-trial"]),
        (9, 0, [CPUS, CPUS], ["9 CPUs", "16 CPUs", "2 node(s)", "on one node"]),
        (1, 0, [], ["0 CPUs", "0 node(s)"]),
    ],
)
def test_error_names_requested_and_existing_resources(
    cpus: float, gpus: float, nodes: list[dict[str, float]], fragments: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        count_slots(TrialResources(cpus=cpus, gpus=gpus), nodes)
    for fragment in fragments:
        assert fragment in str(error.value)


@pytest.mark.parametrize(
    ("cpus", "gpus", "fragment"),
    [
        (0, 0, "--cpus-per-trial must be above 0; got 0"),
        (1, -0.5, "--gpus-per-trial must be 0 or more; got -0.5"),
        (1, 1.5, "got 1.5"),
    ],
)
def test_invalid_resources_are_rejected(cpus: float, gpus: float, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        TrialResources(cpus=cpus, gpus=gpus)


hundredths = st.integers(1, 100).map(lambda n: n / 100)
wholes = st.integers(1, 16).map(float)


@given(
    cpus=hundredths | wholes,
    gpus=st.just(0.0) | hundredths | wholes,
    cores=st.integers(0, 256),
    cards=st.integers(0, 16),
)
def test_a_node_is_filled_but_not_overfilled(cpus: float, gpus: float, cores: int, cards: int) -> None:
    shape = TrialResources(cpus=cpus, gpus=gpus)
    try:
        count = count_slots(shape, [{"CPU": float(cores), "GPU": float(cards)}])
    except InputError:
        count = 0
    assert count * cpus <= cores + 1e-6
    assert count * gpus <= cards + 1e-6
    # Another trial does not fit: too few cores, or too little left on every GPU.
    per_card = int(1 / gpus + 1e-6) if 0 < gpus < 1 else 1
    capacity_of_cards = cards * per_card if gpus < 1 else cards // gpus
    assert (count + 1) * cpus > cores - 1e-6 or (gpus > 0 and count + 1 > capacity_of_cards)


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


def test_slots_follow_the_nodes_which_are_listed_once_a_second() -> None:
    cluster = Cluster(a=NODE)
    capacity = cluster.capacity()
    assert capacity.slots() == 2
    cluster.nodes = {"a": NODE, "b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 4
    cluster.nodes = {"b": NODE}
    cluster.now += FRESH
    assert capacity.slots() == 2
    listed = cluster.listed
    for _ in range(100):
        capacity.slots()
        capacity.ended()
        cluster.now += FRESH / 50
    assert cluster.listed == listed + 1


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
