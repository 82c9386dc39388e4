"""Which attention goes where."""

from collections.abc import Mapping

from attention.spec import Spec

Placement = Mapping[str, Spec]  # by the name of a site
