"""Where a search runs."""

from cluster.connect import connect, joins, nodes, wait_for_room
from cluster.resources import TrialResources, slots
from cluster.room import Room

__all__ = ["Room", "TrialResources", "connect", "joins", "nodes", "slots", "wait_for_room"]
