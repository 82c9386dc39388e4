"""Models, their named sites, and the one function that inserts a placement."""

from backbones.insert import Placement, insert
from backbones.sites import Site, sites
from backbones.table import BACKBONES, Backbone, build

__all__ = ["BACKBONES", "Backbone", "Placement", "Site", "build", "insert", "sites"]
