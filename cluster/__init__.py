"""Where a search runs."""

from cluster.connect import connect, nodes
from cluster.resources import TrialResources, slots

__all__ = ["TrialResources", "connect", "nodes", "slots"]
