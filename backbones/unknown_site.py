"""The error for a site that a model lacks."""

from collections.abc import Sequence

from torch import nn

from attention import InputError, unknown
from backbones.site import Site


def unknown_site(model: nn.Module, name: str, known: Sequence[Site]) -> InputError:
    """Name the site where `name` is the path of a module, or else the sites that there are."""
    kind = f"site of {type(model).__name__}"
    if at := [site.name for site in known if site.path == name]:
        return InputError(
            f"unknown {kind} {name!r}: that is a module, whose site is called {' and '.join(map(repr, at))}"
        )
    if name and any(path == name for path, _ in model.named_modules()):
        inside = [site.name for site in known if site.path.startswith(f"{name}.")]
        around = [site for site in known if name.startswith(f"{site.path}.")]
        nearest = max(around, key=lambda site: len(site.path)).name if around else None
        places = [*([f"around it is {nearest!r}"] if nearest else [])]
        places += [f"in it are {', '.join(inside)}"] if inside else []
        return InputError(
            f"unknown {kind} {name!r}: that is a module at which nothing can be inserted"
            f"{'; ' * bool(places)}{', and '.join(places)}"
        )
    return unknown(kind, name, [site.name for site in known])
