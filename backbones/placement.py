"""Which attention goes where."""

from collections.abc import Mapping

from attention.errors import InputError
from attention.spec import Spec

Placement = Mapping[str, Spec]  # by the name of a site


def as_placement(value: object) -> dict[str, Spec]:
    """A placement whose attentions may also be given by the name of their type, or as in JSON.

    Raises InputError for what is no mapping of sites to attentions.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"a placement is a mapping such as {{'stage3.block2': 'ssa'}}; got {value!r}")
    return {site: spec if isinstance(spec, Spec) else Spec.from_json(spec) for site, spec in value.items()}
