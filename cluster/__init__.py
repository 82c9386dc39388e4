"""Where a search runs."""

from cluster.capacity import ClusterCapacity
from cluster.connect import connect, joins, nodes, wait_for_capacity
from cluster.resources import TrialResources, slots

__all__ = ["ClusterCapacity", "TrialResources", "connect", "joins", "nodes", "slots", "wait_for_capacity"]
