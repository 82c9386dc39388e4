"""The cost of an attention module at a site: by the formula of its type, or counted on fake tensors."""

import copy
import json
from functools import lru_cache

import torch
from torch import Tensor

from attention import Cost, Gated, Spec, find_attention
from automl.base.errors import InputError, describe_error
from backbones.insertion import build_module
from backbones.macs import count_macs
from backbones.site import Site, features
from backbones.torch_internals import FakeCopyMode, FakeTensorMode


def attention_cost(spec: Spec, site: Site) -> Cost:
    """Return the cost of a module at a site.

    Args:
        spec: The attention.
        site: The site.

    Returns:
        Its parameters, and its MACs and memory for one example.

    Raises:
        InputError: The module does not suit the site.
    """
    formula = find_attention(spec.type).cost
    if formula is None:
        return count_cost(spec, site)
    return formula(site.channels, site.spatial, **spec.options)


def count_cost(spec: Spec, site: Site) -> Cost:
    """Count what `attention_cost` returns, without a formula.

    The module runs on fake tensors, which have no values. Memory is the difference between batches of three
    examples and of two, without values that do not depend on the batch, such as normalised weights.
    """
    return _count(json.dumps(spec.to_json()), site)


@lru_cache(maxsize=256)
def _count(text: str, site: Site) -> Cost:
    spec = Spec.from_json(json.loads(text))
    with torch.random.fork_rng(devices=[]):
        module = build_module(spec, site)
    try:
        return count_module_cost(module, site)
    except Exception as error:  # Somebody else wrote the module.
        raise InputError(f"{spec} at site {site.name!r} fails: {describe_error(error)}") from error


def count_module_cost(module: Gated, site: Site) -> Cost:
    """Count what `attention_cost` returns, of a module that was built for a site. It does not change."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        twin = copy.deepcopy(module)
    with fake:
        kept = [_count_kept(twin.train(), features(site, batch)) for batch in (2, 3)]
        macs = count_macs(twin.eval(), features(site, 1))
    parameters = sum(p.numel() for p in module.parameters())
    return Cost(parameters=parameters, macs=macs, memory=kept[1] - kept[0])


def _count_kept(module: Gated, x: Tensor) -> int:
    """Count the values that are kept for the backward pass, except the input and the module's own."""
    storages = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x.requires_grad_())
    own = {tensor.untyped_storage() for tensor in (x, *module.parameters(), *module.buffers())}
    return sum(count for storage, count in storages.items() if storage not in own)
