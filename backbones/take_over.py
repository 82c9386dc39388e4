"""Take over the projections of a decoder's own attention into the modules that replace it.

Source: Y. Gu et al., Jet-Nemotron (2025), arXiv 2508.15884, for decoders; K. Chandrasegaran et al. (2025),
arXiv 2506.05340, for other transformers. Departures: keys and values of grouped queries are repeated for all
heads. A module with fewer channels of queries, keys or values gets equally spaced ones, so that rotary
frequencies stay those of their channels. Projections of an attention that computes more than the modules
here, such as norms of queries and keys, are not taken over.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from backbones.mixer import Mixer
from backbones.weights import load

# Names of the projections in torch's and transformers' modules.
SEPARATE = ("q_proj", "k_proj", "v_proj")
JOINT = ("in_proj", "c_attn", "qkv_proj")
OUTPUT = ("out_proj", "o_proj", "c_proj", "dense")
# Types of transformers whose attention differs in a way that neither its layers nor its configuration show.
DIFFERENT = {
    **dict.fromkeys(("codegen", "gptj"), "rotates a part of each head, in pairs of neighbours"),
    **dict.fromkeys(
        ("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "helium", "llama4"), "rotates pairs of neighbours"
    ),
    **dict.fromkeys(("gemma2", "vaultgemma"), "bounds the products of queries and keys"),
    "gpt_neo": "does not scale products by the width of a head",
    "gpt_oss": "has a learned sink beside the keys",
    "ministral3": "scales queries by their positions",
}


class Projection(NamedTuple):
    """Weight `(outputs, inputs)` and bias `(outputs,)` of a linear layer."""

    weight: Tensor
    bias: Tensor

    def rows(self, start: int, count: int) -> "Projection":
        return Projection(self.weight[start : start + count], self.bias[start : start + count])


def load_with_projections(model: nn.Module, original: nn.Module, *, source: str) -> None:
    """Load the weights of `original` into a model with other mixers, which take over its projections.

    Args:
        model: A model, some of whose layers may have another mixer.
        original: The same model with its own attention in these layers.
        source: Description of the weights for messages.

    Raises:
        InputError: The weights do not fit.
    """
    load(model, original.state_dict(), classes=0, source=source)
    take_over(model, original)


def take_over(model: nn.Module, original: nn.Module) -> list[str]:
    """Copy the projections of `original` into the modules of `model` that replace its attention.

    Args:
        model: A model, some of whose layers have another mixer.
        original: The same model with its own attention in these layers.

    Returns:
        The sites whose modules have taken over projections. Other modules keep their weights.
    """
    sites = []
    for path, host in model.named_modules():
        if isinstance(host, Mixer):
            projections = find_projections(original.get_submodule(path))
            if projections and _fill(host.site_mixer, projections):
                sites.append(host.site_mixer.site)
    return sites


def find_projections(attention: nn.Module) -> Mapping[str, Projection]:
    """Return the projections of queries, keys, values and output, with a key and a value for each head.

    Args:
        attention: Self-attention of a decoder.

    Returns:
        The projections `q`, `k`, `v` and `o`. Nothing if the module has no such layers, or computes more than
        rotary attention with them.
    """
    layers = dict(attention.named_children())
    if _is_different(attention):
        return {}
    output = next((layers[name] for name in OUTPUT if name in layers), None)
    if output is None:
        return {}
    o = _read(output)
    if joint := next((layers[name] for name in JOINT if name in layers), None):
        qkv, queries = _read(joint), o.weight.shape[1]
        others = (len(qkv.bias) - queries) // 2
        q, k, v = qkv.rows(0, queries), qkv.rows(queries, others), qkv.rows(queries + others, others)
    elif all(name in layers for name in SEPARATE):
        q, k, v = (_read(layers[name]) for name in SEPARATE)
    else:
        return {}
    if len(k.bias) != len(v.bias) or len(q.bias) % len(k.bias) or len(q.bias) != o.weight.shape[1]:
        return {}
    width, scale = getattr(attention, "head_dim", len(k.bias)), getattr(attention, "scaling", None)
    repeats = len(q.bias) // len(k.bias)
    k, v = (Projection(*(_repeat(t, width, repeats) for t in projection)) for projection in (k, v))
    if scale is not None:  # The modules here divide by the root of a head's width.
        q = Projection(*(t * scale * width**0.5 for t in q))
    return {"q": q, "k": k, "v": v, "o": o}


def _is_different(attention: nn.Module) -> bool:
    """Return whether the attention has norms, rotates a part of each head, or is one of `DIFFERENT`."""
    config = getattr(attention, "config", None)
    rotary = getattr(config, "rope_parameters", None) or {}
    fraction = rotary.get("full_attention", rotary).get("partial_rotary_factor")
    fraction = getattr(config, "partial_rotary_factor", None) if fraction is None else fraction
    kind = type(attention).__module__.rpartition(".modeling_")[2]
    has_norms = any("norm" in name for name, _ in attention.named_children())
    by_heads = not getattr(attention, "multi_query", True)  # of GPT-BigCode, which joins projections by heads
    return has_norms or by_heads or kind in DIFFERENT or (fraction is not None and fraction < 1)


def _read(layer: Any) -> Projection:
    weight = layer.weight.detach()
    weight = weight.mT if hasattr(layer, "nf") else weight  # GPT-2's layers are transposed.
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return Projection(weight, bias)


def _repeat(rows: Tensor, width: int, count: int) -> Tensor:
    """Repeat the `width` rows of each head."""
    repeated: Tensor = rows.unflatten(0, (-1, width)).repeat_interleave(count, dim=0).flatten(0, 1)
    return repeated


def _fill(module: nn.Module, projections: Mapping[str, Projection]) -> bool:
    """Copy projections into the layers of a module. Return False if it has none, or wider ones."""
    layers: dict[str, Any] = dict(module.named_children())
    if {"query", "key", "value", "reprojection"} <= layers.keys():
        inputs, output = [layers["query"], layers["key"], layers["value"]], layers["reprojection"]
        targets = [(layer.weight, layer.bias) for layer in inputs]
    elif {"in_proj", "out_proj"} <= layers.keys():
        joint, output = layers["in_proj"], layers["out_proj"]
        biases = [None] * 3 if joint.bias is None else joint.bias.chunk(3)
        targets = list(zip(joint.weight.chunk(3), biases, strict=True))
    else:
        return False
    q, k, v = (projections[name] for name in "qkv")
    # A short convolution gates with its second projection, as a query does, and multiplies the other two.
    sources = (k, q, v) if "conv" in layers else (q, k, v)
    pairs = list(zip(targets, sources, strict=True))
    if any(len(weight) > len(source.weight) for (weight, _), source in pairs):
        return False
    with torch.no_grad():
        for (weight, bias), source in pairs:
            rows = _spaced(len(source.weight), len(weight))
            weight.copy_(source.weight[rows])
            if bias is not None:
                bias.copy_(source.bias[rows])
        o = projections["o"]
        output.weight.copy_(o.weight[:, _spaced(o.weight.shape[1], output.weight.shape[1])])
        if output.bias is not None:
            output.bias.copy_(o.bias)
    return True


def _spaced(count: int, chosen: int) -> Tensor:
    """Return `chosen` equally spaced indices below `count`."""
    return torch.arange(chosen) * count // chosen
