"""The error for a site that a model lacks."""

from collections.abc import Sequence

from torch import nn

from attention import InputError, unknown
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
    if name and any(path == name for path, _ in model.named_modules()):
        inside = [site.name for site in known if site.path.startswith(f"{name}.")]
        around = [site for site in known if name.startswith(f"{site.path}.")]
        nearest = max(around, key=lambda site: len(site.path)).name if around else None
        hints = [*([f"around it is {nearest!r}"] if nearest else [])]
        hints += [f"in it are {', '.join(inside)}"] if inside else []
        return InputError(
            f"unknown {kind} {name!r}: that is a module at which nothing can be inserted"
            f"{'; ' * bool(hints)}{', and '.join(hints)}"
        )
    return unknown(kind, name, [site.name for site in known])
