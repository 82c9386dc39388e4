"""The error for a site that a model lacks."""

from collections.abc import Sequence

from torch import nn

from automl.base.errors import InputError, unknown
from backbones.site import Site


def unknown_site(model: nn.Module, name: str, known: Sequence[Site]) -> InputError:
    """Return the error for an unknown site.

    If `name` is the path of a module, it names the nearest sites. Otherwise it lists the sites of the model.
    """
    kind = f"site of {type(model).__name__}"
    if names := [site.name for site in known if site.path == name]:
        return InputError(
            f"unknown {kind} {name!r}: that is a module, whose site is called "
            f"{' and '.join(map(repr, names))}"
        )
    paths = [path for path, _ in model.named_modules()]
    if name and name in paths:
        inside = [site.name for site in known if site.path.startswith(f"{name}.")]
        around = [site for site in known if name.startswith(f"{site.path}.")]
        beside = [
            path for path in paths[paths.index(name) :] if path.rpartition(".")[0] == name.rpartition(".")[0]
        ]
        after = [site.name for path in beside for site in known if site.path == path]
        nearest = max(around, key=lambda site: len(site.path)).name if around else None
        hints = [f"around it is {nearest!r}"] if nearest else []
        hints += [f"after it is {after[0]!r}"] if after else []
        hints += [f"in it are {', '.join(inside)}"] if inside else []
        return InputError(
            f"unknown {kind} {name!r}: that is a module without a site of its own"
            f"{'; ' * bool(hints)}{', and '.join(hints)}"
        )
    return unknown(kind, name, [site.name for site in known])
