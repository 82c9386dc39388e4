"""Where a search runs."""

from cluster.connect import connect, nodes, wait_for_room
from cluster.resources import TrialResources, slots
from cluster.room import Room

__all__ = ["Room", "TrialResources", "connect", "nodes", "slots", "wait_for_room"]
