"""Where a search runs."""

from cluster.connect import connect, joins, nodes, wait_for_room
from cluster.resources import TrialResources, slots

__all__ = ["TrialResources", "connect", "joins", "nodes", "slots", "wait_for_room"]
