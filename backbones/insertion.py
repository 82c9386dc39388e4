"""The function that inserts attention into a model, for every backbone and every task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention import Gated, Spec
from attention.decoding import Mixer
from attention.spec import Placement, as_placement
from automl.base.errors import InputError
from backbones import influence
from backbones.example import Example, feature_map, materialise, with_feature_map
from backbones.site import Site, features, sites, unknown_site
from backbones.trace import trace

# Name of an inserted module in the submodule at its site. The backbone's own names do not change, so that its
# checkpoints load with `strict=False`.
NAME = "site_attention"


def insert(
    model: nn.Module,
    placement: Placement | Mapping[str, str],
    example: Example | None = None,
    *,
    known: Sequence[Site] | None = None,
) -> nn.Module:
    """Insert one module at each site of `placement`, in place.

    New modules are the identity, and their weights come from a separate random generator. So neither the
    output of the model nor the state of torch's generator changes. The sites are valid for every input size.

    If a site `replaces` a submodule, the module replaces it with an open gate. This changes the output of the
    model, and checkpoints of the backbone have no weights for the module. A model with a method
    `initialise_mixer` draws the weights of such a module as those of its own.

    A `nn.TransformerEncoderLayer` with an inserted module runs without torch's fused evaluation path.

    If the model is causal (`backbones.influence`), as a language model is, modules must be causal too. At
    sites with one spatial dimension, this is tested by changing tokens: of each module, then of the model.
    Neither other examples of a batch nor padding may change an output there (`backbones.separation`).

    Args:
        model: The model.
        placement: The `Spec` of each site, or the name of a type, such as `"ssa"`.
        example: An input of the model, as for `sites`. By default it is inferred from the first convolution.
        known: The sites of the model, if they have been determined before.

    Returns:
        The model.

    Raises:
        InputError: The model lacks a site, a site is occupied, or options do not fit the channels of the
            site. Or the model is causal, and with a module a position would see later ones. Or an output
            would depend on other examples or on padding.

    Example:
        >>> import automl
        >>> from torchvision.models import resnet18
        >>> model = automl.insert(resnet18(), {"stage4.block2": automl.Spec("ssa")})
        >>> sum("site_attention" in name for name, _ in model.named_modules()) > 0
        True
    """
    placement = as_placement(placement)
    if not placement:
        return model
    if known is None:
        example = _default(model) if example is None else example
        known = sites(model, example)
    elif example is not None:
        materialise(model, example)
    chosen = {name: _find_free_site(model, name, known) for name in placement}
    modules = _build_modules(model, placement, chosen)
    with _keep_separate(model, example, placement, modules, chosen):
        for name, module in sorted(modules.items(), key=lambda item: not chosen[item[0]].replaces):
            (_replace if chosen[name].replaces else _attach)(model, chosen[name], module)
        if example is not None:
            _check_replaced(model, example, chosen)
    for encoder in (m for m in model.modules() if isinstance(m, nn.TransformerEncoder)):
        if any(isinstance(module, Gated) for module in encoder.layers.modules()):
            encoder.use_nested_tensor = False  # Only the fused layers use nested tensors.
    return model


def _find_free_site(model: nn.Module, name: str, known: Sequence[Site]) -> Site:
    """Return the site called `name`. Raise InputError if there is none, or it has an attention already."""
    site = next((site for site in known if site.name == name), None)
    if site is None:
        raise unknown_site(model, name, known)
    host = model.get_submodule(site.path)
    if isinstance(host, Mixer) if site.replaces else hasattr(host, NAME):
        raise InputError(f"site {name!r} has an attention already; build the model anew to change it")
    return site


def _build_modules(model: nn.Module, placement: Placement, chosen: Mapping[str, Site]) -> dict[str, Gated]:
    """Return a new module for each site, on the device and in the mode of the model."""
    like = next(model.parameters())
    initialise: Callable[[nn.Module], None] | None = getattr(model, "initialise_mixer", None)
    modules = {}
    with torch.random.fork_rng(devices=[]):
        for name, spec in placement.items():
            module = build_module(spec, chosen[name])
            if chosen[name].replaces and initialise is not None:
                initialise(module)
            modules[name] = module.to(like.device, like.dtype).train(model.training)
    return modules


@contextmanager
def _keep_separate(
    model: nn.Module,
    example: Example | None,
    placement: Placement,
    modules: Mapping[str, Gated],
    chosen: Mapping[str, Site],
) -> Iterator[None]:
    """Raise InputError if modules of the block let outputs depend on later tokens, examples or padding."""
    along = [name for name in modules if len(chosen[name].resolution) == 1]
    if not along or example is None:
        yield
        return
    influences, causal = influence.find_influences(model, example), influence.is_causal(model, example)
    if influence.SECOND in influences:
        raise InputError(
            f"{type(model).__name__} takes (time, batch): an output depends on others of the first "
            f"dimension, but on none of the second. A module would mix the examples. Build its layers with "
            f"batch_first=True, and give an example (batch, time)"
        )
    if causal and (leaking := _find_leaking(modules, placement, [chosen[name] for name in along])):
        raise influence.refuse_leaks(placement, leaking)
    yield
    if causal and not influence.is_causal(model, example, mixes=False):
        raise influence.refuse_leaks(placement, [])
    if others := influence.find_influences(model, example) - influences:
        raise influence.refuse_influences(along, others)


def _check_replaced(model: nn.Module, example: Example, chosen: Mapping[str, Site]) -> None:
    """Raise InputError if the model uses more than the output of a module that was replaced."""
    replaced = [name for name, site in chosen.items() if site.replaces]
    try:
        if replaced:
            trace(model, example)
    except InputError as error:
        raise InputError(
            f"no module can take the place of the one at {', '.join(map(repr, replaced))}, of which the "
            f"model uses more than its output: {error}"
        ) from error


def gates(model: nn.Module) -> dict[str, Tensor]:
    """Return the learned gate, the weight of its output, of each inserted module by its site."""
    return {m.site: m.gamma.detach() for m in model.modules() if isinstance(m, Gated) and m.site}


def build_module(spec: Spec, site: Site) -> Gated:
    """Build a new module for a site, outside of a model. Raises InputError if an option does not fit it."""
    try:
        module = spec.build(site.channels, site.spatial)
        module.check_extents(site.spatial)
    except InputError as error:
        raise InputError(f"{spec} at site {site.name!r}: {error}") from None
    module.site, module.layout, module.class_tokens = site.name, site.layout, site.class_tokens
    return module


def _find_leaking(
    modules: Mapping[str, Gated], placement: Placement, listed: Sequence[Site]
) -> Sequence[str]:
    """Return the names of sites whose modules are not causal. Equal modules at equal sites are run once."""
    kinds = {site.name: (str(placement[site.name]), features(site, 1).shape, site.layout) for site in listed}
    first = {kind: name for name, kind in reversed(kinds.items())}
    leaking = {kind for kind, name in first.items() if influence.sees_later(modules[name], kind[1])}
    return [name for name, kind in kinds.items() if kind in leaking]


def _replace(model: nn.Module, site: Site, module: Gated) -> None:
    above, _, leaf = site.path.rpartition(".")
    module.replaces = True
    nn.init.ones_(module.gamma)
    setattr(model.get_submodule(above), leaf, Mixer(module, tuple_length=site.tuple_length))


def _attach(model: nn.Module, site: Site, module: Gated) -> None:
    host = model.get_submodule(site.path)
    host.add_module(NAME, module)
    if not isinstance(host, nn.Sequential):  # A Sequential runs its new last child itself.
        host.register_forward_hook(_apply, prepend=True)  # Other hooks receive the output of the attention.


def _apply(host: nn.Module, args: Any, output: Any) -> Any:
    features = feature_map(output)
    assert features is not None, "a site returns a feature map"
    return with_feature_map(output, getattr(host, NAME)(features))


def _default(model: nn.Module) -> Tensor:
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return torch.empty(1, module.in_channels, *[128] * len(module.kernel_size))
    raise InputError(
        f"{type(model).__name__} has no convolution from which the input's shape could be inferred; "
        f"pass `example`"
    )
