"""Take over the projections of a decoder's own attention into the modules that replace it.

Source: Y. Gu et al., Jet-Nemotron (2025), arXiv 2508.15884, for decoders; K. Chandrasegaran et al. (2025),
arXiv 2506.05340, for other transformers. Departures: keys and values of grouped queries are repeated for all
heads. A module with fewer channels of queries, keys or values gets equally spaced ones, so that rotary
frequencies stay those of their channels. Each layer runs on random tokens. If plain or rotary attention with
its projections computes something else, they are not taken over: norms of queries and keys, scaled or missing
rotary positions, or others.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.position import ROTARY_BASE, rotate
from backbones.influence import count_entries
from backbones.mixer import Mixer
from backbones.output import feature_map
from backbones.weights import load

# Names of the projections in torch's and transformers' modules.
SEPARATE = ("q_proj", "k_proj", "v_proj")
JOINT = ("in_proj", "c_attn", "qkv_proj")
OUTPUT = ("out_proj", "o_proj", "c_proj", "dense")
TRIED = 128  # Most tokens on which a layer is compared with its projections
SAME = 3e-5  # Relative difference that rounding may cause


class Projection(NamedTuple):
    """Weight `(outputs, inputs)` and bias `(outputs,)` of a linear layer."""

    weight: Tensor
    bias: Tensor

    def rows(self, start: int, count: int) -> "Projection":
        return Projection(self.weight[start : start + count], self.bias[start : start + count])


def load_with_projections(model: nn.Module, original: nn.Module, *, source: str) -> None:
    """Load the weights of `original` into a model with other mixers, which take over its projections.

    `original` is the same model with its own attention in these layers. `source` describes the weights for
    messages. Raises InputError if they do not fit.
    """
    load(model, original.state_dict(), classes=0, source=source)
    take_over(model, original)


def take_over(model: nn.Module, original: nn.Module) -> list[str]:
    """Copy the projections of `original` into the modules of `model` that replace its attention.

    `original` is the same model with its own attention in these layers. Returns the sites whose modules have
    taken over projections. Other modules keep their weights.
    """
    hosts = {path: host.site_mixer for path, host in model.named_modules() if isinstance(host, Mixer)}
    sites = []
    for path, projections in find_exact(original, hosts).items():
        if _fill(hosts[path], projections):
            sites.append(hosts[path].site)
    return sites


def find_exact(model: nn.Module, modules: Mapping[str, object]) -> dict[str, Mapping[str, "Projection"]]:
    """Return the projections of layers with which attention computes what the layer does, by path.

    For the path of each layer of a decoder, `modules` has what its attention must have the heads and the
    positions of. A module without positions takes over projections of attention with any.
    """
    exact = {}
    for path, (x, y) in _run_layers(model, modules).items():
        layer = model.get_submodule(path)
        if (projections := find_projections(layer)) and any(
            _are_close(_attend(projections, x, heads, base), y)
            for heads in _heads(layer, projections, modules[path])
            for base in _bases(layer, modules[path])
        ):
            exact[path] = projections
    return exact


def _run_layers(model: nn.Module, paths: Iterable[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return input and output of layers for random tokens. Nothing if the model takes no tokens."""
    runs: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            runs[path] = next(iter((*args, *kwargs.values()))), feature_map(output)  # type: ignore[assignment]

        return hook

    handles = [
        model.get_submodule(path).register_forward_hook(keep(path), with_kwargs=True) for path in paths
    ]
    like, precision = next(model.parameters()), torch.get_float32_matmul_precision()
    entries, training = count_entries(model), model.training
    # Of embedded positions, some are in front of the first token.
    length = max(2, min(TRIED, entries // 2))
    tokens = torch.randint(entries, (1, length), generator=torch.Generator().manual_seed(0))
    try:
        torch.set_float32_matmul_precision("highest")
        with torch.no_grad():
            model.eval()(tokens.to(like.device))
    except Exception:  # Another model than one of tokens.
        runs.clear()
    finally:
        torch.set_float32_matmul_precision(precision)
        model.train(training)
        for handle in handles:
            handle.remove()
    return runs


def _heads(layer: nn.Module, projections: Mapping[str, "Projection"], module: object) -> set[int]:
    channels = len(projections["q"].bias)
    counts = [getattr(layer, name, 0) for name in ("num_heads", "n_heads", "heads")]
    counts += [getattr(module, "heads", 0), channels // getattr(layer, "head_dim", channels)]
    return {count for count in counts if count and channels % count == 0}


def _bases(layer: nn.Module, module: Any) -> set[float | None]:
    """Return the bases of rotary positions to compare with. None stands for no positions."""
    if "encoding" in inspect.signature(type(module)).parameters:
        return {(module.base or ROTARY_BASE) if module.encoding == "rotary" else None}
    rotary = getattr(getattr(layer, "config", None), "rope_parameters", None) or {}
    kinds = [rotary, *(value for value in rotary.values() if isinstance(value, Mapping))]
    return {None, ROTARY_BASE, *(float(kind["rope_theta"]) for kind in kinds if "rope_theta" in kind)}


def _attend(projections: Mapping[str, "Projection"], x: Tensor, heads: int, base: float | None) -> Tensor:
    """Return what causal attention with these projections computes of `x`, `(B, N, C)`."""
    q, k, v = (F.linear(x, *projections[name]).unflatten(2, (heads, -1)).transpose(1, 2) for name in "qkv")
    if base is not None and q.shape[-1] % 2 == 0:
        positions = torch.arange(x.shape[1], device=x.device)
        q, k = rotate(q, positions, base), rotate(k, positions, base)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).flatten(2), *projections["o"])


def _are_close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= SAME * second.abs().max())


def find_projections(attention: nn.Module) -> Mapping[str, Projection]:
    """Return the projections `q`, `k`, `v` and `o` of a decoder's self-attention.

    Each head has a key and a value. Returns nothing if the module has no such layers.
    """
    layers = dict(attention.named_children())
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
    if len(k.bias) != len(v.bias) or not len(k.bias) or len(q.bias) != o.weight.shape[1]:
        return {}
    width, scale = getattr(attention, "head_dim", len(k.bias)), getattr(attention, "scaling", None)
    if len(q.bias) % len(k.bias) or len(k.bias) % width:
        return {}
    repeats = len(q.bias) // len(k.bias)
    k, v = (Projection(*(_repeat(t, width, repeats) for t in projection)) for projection in (k, v))
    if scale is not None:  # The modules here divide by the root of a head's width.
        q = Projection(*(t * scale * width**0.5 for t in q))
    return {"q": q, "k": k, "v": v, "o": o}


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
    elif "out_proj" in layers and (joint := layers.get("in_proj", layers.get("in_proj_qkv"))) is not None:
        output = layers["out_proj"]
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
        if "conv1d" in layers:  # The convolution of queries, keys and values starts as the identity.
            nn.init.zeros_(layers["conv1d"].weight)[..., -1] = 1
    return True


def _spaced(count: int, chosen: int) -> Tensor:
    """Return `chosen` equally spaced indices below `count`."""
    return torch.arange(chosen) * count // chosen
