"""The type `Placement`: an attention spec for each site."""

from collections.abc import Mapping

from attention.spec import Spec
from automl.base.errors import InputError

Placement = Mapping[str, Spec]  # Keys are the names of sites.


def as_placement(value: object) -> dict[str, Spec]:
    """Convert a mapping to a placement. Values may be specs, names of types or JSON objects.

    Raises:
        InputError: `value` is no mapping of sites to attention types.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"a placement is a mapping such as {{'stage3.block2': 'ssa'}}; got {value!r}")
    return {site: spec if isinstance(spec, Spec) else Spec.from_json(spec) for site, spec in value.items()}
