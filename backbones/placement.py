"""The type `Placement`: an attention spec for each site."""

from collections.abc import Mapping

from attention.spec import Spec
from automl.base.errors import InputError

MAX_LISTED = 3  # modules in the short name of a placement
Placement = Mapping[str, Spec]  # Keys are the names of sites.


def as_placement(value: object) -> dict[str, Spec]:
    """Convert a mapping of specs, types' names or JSON objects to a placement, or raise InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"a placement is a mapping such as {{'stage3.block2': 'ssa'}}; got {value!r}")
    return {site: spec if isinstance(spec, Spec) else Spec.from_json(spec) for site, spec in value.items()}


def name_modules(placement: Placement, *, options: bool = True) -> str:
    """Return the short name of a placement, with `options` as in `decomposed(heads=8) @ stage1.block2`."""
    modules = list(placement.items())
    listed = modules if len(modules) <= MAX_LISTED else modules[: MAX_LISTED - 1]
    sites: dict[str, list[str]] = {}
    for site, spec in listed:
        sites.setdefault(str(spec) if options else spec.name, []).append(site)
    names = [f"{module} @ {', '.join(group)}" for module, group in sites.items()]
    if len(listed) < len(modules):
        names.append(f"{len(modules) - len(listed)} more")
    return " + ".join(names) or "plain"
