"""Trained weights for a new model: the backbone's, and projections of attention that modules replace.

Source: Y. Gu et al., Jet-Nemotron (2025), arXiv 2508.15884, for decoders; K. Chandrasegaran et al. (2025),
arXiv 2506.05340, for other transformers. Departures: keys and values of grouped queries are repeated for all
heads. A module with fewer channels of queries, keys or values gets equally spaced ones, so that rotary
frequencies stay those of their channels. Each layer runs on random tokens. If attention with its projections,
norms of queries and keys, and rotary positions computes something else, nothing is taken over. A module with
positions takes over nothing either if it lacks such norms, or has them and the layer has none.

Inserted attention in the weights of a backbone is ignored, so that it can start with any placement.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.decoding import Mixer
from attention.multihead import EPSILON, Heads
from attention.position import ROTARY_BASE, rates, rotate
from automl.base.errors import InputError
from backbones.example import feature_map
from backbones.influence import count_entries

ATTENTION = ("site_attention", "site_mixer")  # Names of inserted modules in any model.
_SHOWN = 4  # Maximum number of keys in a message.
_WRAPPERS = ("module.", "classifier.", "model.", "_orig_mod.")  # Prefixes that wrappers add to every key.


def load(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    classes: int,
    source: str,
    without: Collection[str] = (),
) -> list[str]:
    """Load `weights` into the backbone of `model`. Its attention does not change.

    Args:
        model: The model.
        weights: Weights by key.
        classes: Number of labels of the model. Weights of a head for another number are not loaded.
        source: Description of the weights for messages.
        without: Keys that the weights may have and the model lacks.

    Returns:
        The keys that were not loaded.

    Raises:
        InputError: The weights do not fit. The message names the keys.
    """
    own = {key: value for key, value in model.state_dict().items() if not is_inserted(key)}
    replaced = [f"{path}." for path, module in model.named_modules() if isinstance(module, Mixer)]
    loaded = _unwrapped(weights, own)
    hosts = tuple({key.partition("site_mixer")[0] for key in loaded if "site_mixer" in key.split(".")})
    loaded = {k: value for k, value in loaded.items() if not is_inserted(k) and k not in without}
    missing = [key for key in own if key not in loaded and not key.endswith("num_batches_tracked")]
    unknown = [key for key in loaded if key not in own and not key.startswith(tuple(replaced))]
    if hosts and missing and not unknown and all(key.startswith(hosts) for key in missing):
        raise InputError(
            f"the weights {source} lack {len(hosts)} layers of {type(model).__name__}, which another mixer "
            f"replaces there, such as {min(hosts)[:-1]}. Name a trial or an export whose layers are all full"
        )
    if missing or unknown:
        reasons = [f"they lack {_some(missing)}"] * bool(missing)
        reasons += [f"the model lacks {_some(unknown)}"] * bool(unknown)
        raise _unfit(source, model, "; ".join(reasons))
    loaded = {key: value for key, value in loaded.items() if key in own}
    other = [key for key, value in loaded.items() if value.shape != own[key].shape]
    head = [
        key
        for key in other
        if own[key].shape[:1] == (classes,) and loaded[key].shape[1:] == own[key].shape[1:]
    ]
    if wrong := [key for key in other if key not in head]:
        shapes = [f"{key} is {(*loaded[key].shape,)} there and {(*own[key].shape,)} here" for key in wrong]
        raise _unfit(source, model, _some(shapes))
    state = model.state_dict()  # This includes the metadata on the version of the keys.
    state.update({key: value for key, value in loaded.items() if key not in head})
    model.load_state_dict(state)
    return head


def is_inserted(key: str) -> bool:
    """Return True if a key of weights, or the path of a module, is of an inserted module."""
    return any(part in ATTENTION for part in key.split("."))


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove the prefixes of wrappers from every key, unless the model has such keys itself."""
    for prefix in _WRAPPERS:
        if (
            weights
            and all(key.startswith(prefix) for key in weights)
            and not any(key in own for key in weights)
        ):
            return _unwrapped({key.removeprefix(prefix): value for key, value in weights.items()}, own)
    return weights


def _unfit(source: str, model: nn.Module, why: str) -> InputError:
    return InputError(
        f"the weights {source} do not fit {type(model).__name__}: {why}. Take weights of the same "
        f"backbone with the same options, or another --backbone"
    )


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


# Names of the projections in torch's and transformers' modules.
SEPARATE = ("q_proj", "k_proj", "v_proj")
JOINT = ("in_proj", "c_attn", "qkv_proj")
OUTPUT = ("out_proj", "o_proj", "c_proj", "dense")
NORMS = ("q_norm", "k_norm"), ("q_layernorm", "k_layernorm")  # of queries and keys
TRIED = 128  # Most tokens on which a layer is compared with its projections
SAME = 3e-5  # Relative difference that rounding may cause


class Projection(NamedTuple):
    """Weight `(outputs, inputs)` and bias `(outputs,)` of a linear layer."""

    weight: Tensor
    bias: Tensor

    def rows(self, start: int, count: int) -> "Projection":
        return Projection(self.weight[start : start + count], self.bias[start : start + count])


class Attention(NamedTuple):
    """Attention of a decoder's own layer. Each head has a key and a value.

    Attributes:
        norms: Weights of the RMS norms of queries and keys, `(d,)` for each head or `(heads d,)` for all.
        rates: Angles of rotary positions at position 1, `(d / 2,)`. None for no positions.
    """

    q: Projection
    k: Projection
    v: Projection
    o: Projection
    norms: tuple[Tensor, Tensor] | None = None
    rates: Tensor | None = None

    def scale(self, factor: float) -> "Attention":
        """Return the same attention with other logits: multiplied by `factor`."""
        if self.norms is not None:
            return self._replace(norms=(self.norms[0] * factor, self.norms[1]))
        return self._replace(q=Projection(*(t * factor for t in self.q)))

    def norm(self, heads: int) -> str:
        """Return what the norms are of, as an option of `attention.multihead.Heads`."""
        if self.norms is None:
            return "none"
        return "head" if len(self.norms[0]) * heads == len(self.q.bias) else "all"


class Ran(NamedTuple):
    """Input and output `(B, N, C)` of a layer, and the cosines and sines that it was given, `(..., N, d)`."""

    x: Tensor
    y: Tensor
    turns: tuple[Tensor, Tensor] | None


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
    for path, attention in find_exact(original, hosts).items():
        if _fill(hosts[path], attention):
            sites.append(hosts[path].site)
    return sites


def find_exact(model: nn.Module, modules: Mapping[str, object]) -> dict[str, Attention]:
    """Return the attention that computes what a layer does, by path.

    For the path of each layer of a decoder, `modules` has what its attention must have the heads, the
    positions and the norms of. A module without positions takes over attention with any.
    """
    exact = {}
    for path, ran in _run_layers(model, modules).items():
        layer, module = model.get_submodule(path), modules[path]
        plain = find_projections(layer)
        if plain is None:
            continue
        for heads in _heads(layer, plain, module):
            if _has_positions(module) and getattr(module, "norm", "none") != plain.norm(heads):
                continue
            candidates = _with_positions(plain, ran, len(plain.q.bias) // heads, layer, module)
            same = (each for each in candidates if _are_close(_attend(each, ran.x, heads), ran.y))
            if (attention := next(same, None)) is not None:
                exact[path] = attention
    return exact


def _run_layers(model: nn.Module, paths: Iterable[str]) -> dict[str, Ran]:
    """Run layers on random tokens. Nothing if the model takes no tokens."""
    runs: dict[str, Ran] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            x = next(iter((*args, *kwargs.values())))
            runs[path] = Ran(x, feature_map(output), kwargs.get("position_embeddings"))  # type: ignore[arg-type]

        return hook

    like, entries = next(model.parameters()), count_entries(model)
    # Of embedded positions, some are in front of the first token.
    length = max(2, min(TRIED, entries // 2))
    tokens = torch.randint(entries, (1, length), generator=torch.Generator().manual_seed(0))
    with ExitStack() as stack, torch.no_grad():
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        stack.callback(model.train, model.training)
        for path in paths:
            hook = model.get_submodule(path).register_forward_hook(keep(path), with_kwargs=True)
            stack.enter_context(hook)
        torch.set_float32_matmul_precision("highest")
        try:
            model.eval()(tokens.to(like.device))
        except Exception:  # Another model than one of tokens.
            runs.clear()
    return runs


def _heads(layer: nn.Module, attention: Attention, module: object) -> set[int]:
    channels = len(attention.q.bias)
    counts = [getattr(layer, name, 0) for name in ("num_heads", "n_heads", "heads")]
    counts += [getattr(module, "heads", 0), channels // getattr(layer, "head_dim", channels)]
    return {count for count in counts if count and channels % count == 0}


def _has_positions(module: object) -> bool:
    return "encoding" in inspect.signature(type(module)).parameters


def _with_positions(
    plain: Attention, ran: Ran, width: int, layer: nn.Module, module: Any
) -> Iterator[Attention]:
    """Yield the attention with each kind of positions that the layer may have and the module can have."""
    yield plain  # Factors of 0 turn rotary positions off.
    if (_has_positions(module) and module.encoding != "rotary") or width % 2:
        return
    for base in _bases(layer, module):
        yield plain._replace(rates=rates(width, base, ran.x))
    if isinstance(ran.turns, tuple) and ran.turns[0].shape[-1] == width:
        cosine, sine = (t.reshape(-1, *t.shape[-2:])[0, 1, : width // 2].float() for t in ran.turns)
        factor = float((cosine.square() + sine.square()).mean())  # not 1 if positions scale the logits
        yield plain.scale(factor)._replace(rates=torch.atan2(sine, cosine))  # Angles there are at most 1.


def _bases(layer: nn.Module, module: Any) -> set[float]:
    """Return the bases of rotary positions that a layer may have, if it computes them itself."""
    rotary = getattr(getattr(layer, "config", None), "rope_parameters", None) or {}
    kinds = [rotary, *(value for value in rotary.values() if isinstance(value, Mapping))]
    named = {float(kind["rope_theta"]) for kind in kinds if "rope_theta" in kind}
    return {ROTARY_BASE, getattr(module, "base", None) or ROTARY_BASE, *named}


def _attend(attention: Attention, x: Tensor, heads: int) -> Tensor:
    """Return what causal attention computes of `x`, `(B, N, C)`."""
    q, k, v = (F.linear(x, *projection) for projection in (attention.q, attention.k, attention.v))
    if attention.norms is not None:
        q, k = (_normalise(t, weight) for t, weight in zip((q, k), attention.norms, strict=True))
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    if attention.rates is not None:
        positions = torch.arange(x.shape[1], device=x.device)
        q, k = (rotate(t, positions, 1.0, attention.rates) for t in (q, k))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).flatten(2), *attention.o)


def _normalise(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise each `len(weight)` channels of queries or keys `(B, N, C)`."""
    return F.rms_norm(x.unflatten(2, (-1, len(weight))), weight.shape, weight, EPSILON).flatten(2)


def _are_close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= SAME * second.abs().max())


def find_projections(attention: nn.Module) -> Attention | None:
    """Return projections and norms of a decoder's self-attention, or None if it has no such layers."""
    layers = dict(attention.named_children())
    output = next((layers[name] for name in OUTPUT if name in layers), None)
    if output is None:
        return None
    o = _read(output)
    if joint := next((layers[name] for name in JOINT if name in layers), None):
        qkv, queries = _read(joint), o.weight.shape[1]
        others = (len(qkv.bias) - queries) // 2
        q, k, v = qkv.rows(0, queries), qkv.rows(queries, others), qkv.rows(queries + others, others)
    elif all(name in layers for name in SEPARATE):
        q, k, v = (_read(layers[name]) for name in SEPARATE)
    else:
        return None
    if len(k.bias) != len(v.bias) or not len(k.bias) or len(q.bias) != o.weight.shape[1]:
        return None
    width, scale = getattr(attention, "head_dim", len(k.bias)), getattr(attention, "scaling", None)
    if len(q.bias) % len(k.bias) or len(k.bias) % width:
        return None
    repeats = len(q.bias) // len(k.bias)
    norms: tuple[Tensor, Tensor] | None = None
    for names in NORMS:
        own = [
            layers[name] for name in names if isinstance(getattr(layers.get(name), "weight", None), Tensor)
        ]
        if len(own) == len(names):
            first, second = map(norm_weight, own)
            norms = first, repeat_heads(second, width, len(first) // len(second))
    k, v = (Projection(*(repeat_heads(t, width, repeats) for t in projection)) for projection in (k, v))
    attended = Attention(q, k, v, o, norms)
    # The modules here divide by the root of a head's width.
    return attended if scale is None else attended.scale(scale * width**0.5)


def norm_weight(norm: nn.Module) -> Tensor:
    """Return the factors of a norm, which Gemma stores without 1."""
    with torch.no_grad():
        factors: Tensor = norm(torch.ones_like(norm.weight))  # type: ignore[arg-type]
    return factors


def _read(layer: Any) -> Projection:
    weight = layer.weight.detach()
    weight = weight.mT if hasattr(layer, "nf") else weight  # GPT-2's layers are transposed.
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return Projection(weight, bias)


def repeat_heads(rows: Tensor, width: int, count: int) -> Tensor:
    """Repeat the `width` rows of each head."""
    repeated: Tensor = rows.unflatten(0, (-1, width)).repeat_interleave(count, dim=0).flatten(0, 1)
    return repeated


def _fill(module: nn.Module, attention: Attention) -> bool:
    """Copy projections, norms and positions into a module. Return False if it has none, or wider ones."""
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
    q, k, v, o = attention[:4]
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
        output.weight.copy_(o.weight[:, _spaced(o.weight.shape[1], output.weight.shape[1])])
        if output.bias is not None:
            output.bias.copy_(o.bias)
        if isinstance(module, Heads):
            _fill_heads(module, attention)
        if "conv1d" in layers:  # The convolution of queries, keys and values starts as the identity.
            nn.init.zeros_(layers["conv1d"].weight)[..., -1] = 1
    return True


def _fill_heads(module: Heads, attention: Attention) -> None:
    """Copy norms, and rates as factors of those of the base."""
    if module.norms is not None and attention.norms is not None:
        for norm, weight in zip((module.norms.query, module.norms.key), attention.norms, strict=True):
            norm.weight.copy_(weight[_spaced(len(weight), len(norm.weight))])
    if module.encoding == "rotary":
        own = rates(2 * len(module.rate_factors), module.base, module.rate_factors)
        taken = torch.zeros_like(own) if attention.rates is None else attention.rates.to(own)
        factors = taken[_spaced(len(taken), len(own))] / own
        module.rate_factors.copy_(torch.where((factors - 1).abs() < SAME, 1.0, factors))


def _spaced(count: int, chosen: int) -> Tensor:
    """Return `chosen` equally spaced indices below `count`."""
    return torch.arange(chosen) * count // chosen
