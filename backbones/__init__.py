"""Models, their named sites, and the one function that inserts a placement."""

from backbones.example import Example, call
from backbones.insert import Placement, gates, insert
from backbones.sites import Site, sites
from backbones.table import BACKBONES, Backbone, build, check_options

__all__ = [
    "BACKBONES",
    "Backbone",
    "Example",
    "Placement",
    "Site",
    "build",
    "call",
    "check_options",
    "gates",
    "insert",
    "sites",
]
