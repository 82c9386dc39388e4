"""Layers of transformers that compute what mixers of decoders compute, and how their weights are copied."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention import Gated
from attention.gated_delta import GatedDeltaNet
from attention.multihead import MultiHeadAttention, Norm
from attention.position import ROTARY_BASE, rates
from attention.shortconv import ShortConvolution
from attention.sliding import SlidingAttention
from automl.base.lazy import optional
from automl.tasks.language_modelling.gpt import CausalSelfAttention
from backbones.take_over import NORMS, Attention, find_projections, norm_weight

transformers = optional("transformers", "hf")

FULL, SLIDING, CONVOLUTION, DELTA = "full_attention", "sliding_attention", "conv", "linear_attention"
SIZES = {SLIDING: "sliding_window", CONVOLUTION: "conv_L_cache", DELTA: "linear_conv_kernel_dim"}
DELTA_SHAPE = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
)
HOSTS = {CONVOLUTION: "conv", DELTA: "linear_attn"}  # names of layers that are no attention
SAME = 1e-4  # relative difference of rotary positions that rounding may cause


class Architecture(NamedTuple):
    """Layers of a type of models in transformers.

    Attributes:
        kinds: The types of its layers.
        norm: Its norms of queries and keys.
        skips_positions: A layer may have no rotary positions.
    """

    kinds: tuple[str, ...]
    norm: Norm = "none"
    skips_positions: bool = False


ARCHITECTURES = {
    "smollm3": Architecture((FULL, SLIDING), skips_positions=True),
    "qwen2": Architecture((FULL, SLIDING)),
    "qwen3": Architecture((FULL, SLIDING), "head"),
    "qwen3_5_text": Architecture((FULL, DELTA), "head"),
    "gemma3_text": Architecture((FULL, SLIDING), "head"),
    "olmo3": Architecture((FULL, SLIDING), "all"),
    "lfm2": Architecture((FULL, CONVOLUTION), "head"),
}
STYLES = {"llama": "smollm3", "qwen3": "qwen3", "lfm2": "lfm2"}  # types for the styles of `gpt`
# Types with the layers of a type and further ones. The first that has all layers is taken.
SUCCESSORS = {"llama": ("smollm3",), "olmo2": ("olmo3",), "qwen3": ("qwen3", "qwen3_5_text")}


class NoCounterpartError(Exception):
    """Transformers has no model with these layers. The message says which layer, and why."""

    def __init__(self, layer: int, reason: str) -> None:
        super().__init__(f"layer {layer + 1} has no counterpart: {reason}")


class Form(NamedTuple):
    """Computation of a layer.

    Attributes:
        kind: The type of layers in transformers.
        size: Positions of a window, or taps of a convolution.
        attention: Projections, norms and positions.
        heads: Number of heads.
        weights: Weights of a layer that is no attention, by their names in transformers.
    """

    kind: str
    size: int = 0
    attention: Attention | None = None
    heads: int = 0
    weights: Mapping[str, Tensor] = {}


def find_type(kind: str, types: Sequence[str]) -> str:
    """Return the type of models that has layers of these types beside those of `kind`."""
    choices = SUCCESSORS.get(kind, (kind,))
    known = (c for c in choices if c in ARCHITECTURES and {*types} <= {*ARCHITECTURES[c].kinds})
    return next(known, choices[0])


def add_gate(weight: Tensor, width: int) -> Tensor:
    """Return projections of queries, and of a gate of each head that is 1/2 for all inputs.

    `weight` has the projections of the queries, `(heads * width, C)`, or their biases. The result has rows of
    queries and of the gate for each head in turn, twice as many.
    """
    heads = weight.unflatten(0, (-1, width))
    return torch.stack([heads, torch.zeros_like(heads)], dim=1).flatten(0, 2)


def read_mixer(layer: int, module: Any) -> Form:
    """Return what the mixer of a layer computes, with its gate in the output.

    Raises NoCounterpartError, which names the layer, if Transformers has none like it.
    """
    gate = module.gamma if isinstance(module, Gated) else 1.0
    is_causal = isinstance(module, CausalSelfAttention) or getattr(module, "causal", False)
    if isinstance(module, ShortConvolution) and is_causal:
        names = ("in_proj.weight", "conv.weight", "out_proj.weight")
        weights = {name: module.get_parameter(name) for name in names}
        return Form(CONVOLUTION, module.kernel, weights=weights | {names[2]: gate * weights[names[2]]})
    if type(module) is GatedDeltaNet and is_causal:
        own = {name: gate * p if name == "out_proj.weight" else p for name, p in module.named_parameters()}
        del own["gamma"]
        return Form(DELTA, module.kernel, heads=module.heads, weights=own)
    known = isinstance(module, CausalSelfAttention | SlidingAttention | MultiHeadAttention)
    if not (known and is_causal and (plain := find_projections(module))):
        raise NoCounterpartError(layer, f"transformers has no layer like {type(module).__name__}")
    norms = module.norms
    attention = plain._replace(
        o=type(plain.o)(*(gate * t for t in plain.o)),
        norms=None if norms is None else (norms.query.weight, norms.key.weight),
        rates=_rates(layer, module, len(plain.q.bias) // module.heads),
    )
    if isinstance(module, SlidingAttention):
        return Form(SLIDING, size=module.window, attention=attention, heads=module.heads)
    return Form(FULL, attention=attention, heads=module.heads)


def _rates(layer: int, module: Any, width: int) -> Tensor | None:
    encoding = getattr(module, "encoding", "rotary")
    if encoding not in ("none", "rotary"):
        raise NoCounterpartError(layer, f"its positions are {encoding}, and those of transformers rotary")
    if encoding == "none" or not (factors := getattr(module, "rate_factors", torch.ones(1))).any():
        return None
    return rates(width, getattr(module, "base", ROTARY_BASE), factors) * factors


def layer_values(
    kind: str, values: Mapping[str, Any], types: Sequence[str], forms: Mapping[int, Form]
) -> dict[str, Any]:
    """Return the values of a configuration about the layers, from those of the original of the type `kind`.

    `types` has the type of each layer, new ones included, and `forms` what the new ones compute, by their
    indices. Raises NoCounterpartError if models of this type have no such layers.
    """
    own = {type_: i for i, type_ in enumerate(types) if i not in forms}
    for i, form in forms.items():
        _check_kind(i, kind, types, form)
    heads = values["num_attention_heads"]
    width = values.get("head_dim") or values["hidden_size"] // heads
    for i, form in forms.items():
        _check_attention(i, kind, form, heads, width)
    if len({*types}) == 1 and types[0] in HOSTS:
        raise NoCounterpartError(0, f"a model of the type {kind} needs a full layer; replace fewer layers")
    new: dict[str, Any] = {"layer_types": types}
    for type_, key in SIZES.items():
        sizes = {form.size: i for i, form in forms.items() if form.kind == type_}
        if type_ in own:
            sizes.setdefault(values[key], own[type_])
        if len(sizes) > 1:
            listed = " and ".join(map(str, sorted(sizes)))
            raise NoCounterpartError(max(sizes.values()), f"layers have sizes of {listed}, and a model one")
        if sizes:
            new |= {key: next(iter(sizes)), **({"use_sliding_window": True} if type_ == SLIDING else {})}
    for i, form in forms.items():
        if form.kind == DELTA:
            size = values["hidden_size"] // form.heads
            shape = dict(zip(DELTA_SHAPE, (form.heads, form.heads, size, size), strict=True))
            others = {key: values[key] if DELTA in own else new.get(key, shape[key]) for key in shape}
            if others != shape:
                listed = f"{others[DELTA_SHAPE[0]]} of {others[DELTA_SHAPE[2]]} channels"
                raise NoCounterpartError(
                    i, f"it has {form.heads} heads of {size} channels, and another layer of its type {listed}"
                )
            new |= shape
    placed = {i: form.attention for i, form in forms.items() if form.attention is not None}
    if placed:
        new["num_key_value_heads"] = heads
    known = transformers.CONFIG_MAPPING[kind]
    if hasattr(known, "attention_bias") and any(p.bias.any() for a in placed.values() for p in a[:4]):
        new["attention_bias"] = True
    if ARCHITECTURES[kind].skips_positions:
        own_rope = values.get("no_rope_layers") or [1] * len(types)
        new["no_rope_layers"] = [
            int(placed[i].rates is not None) if i in placed else rope for i, rope in enumerate(own_rope)
        ]
    if kind == "olmo3" and FULL not in values["rope_parameters"]:  # those of OLMo 2
        new["rope_parameters"] = dict.fromkeys((FULL, SLIDING), values["rope_parameters"])
    return new


def _check_kind(layer: int, kind: str, types: Sequence[str], form: Form) -> None:
    """Raise NoCounterpartError if models of this type have no such layers."""
    if kind in ARCHITECTURES and form.kind in ARCHITECTURES[kind].kinds:
        return
    if any(form.kind in ARCHITECTURES[choice].kinds for choice in SUCCESSORS.get(kind, ())):
        others = " and ".join(sorted({*types} - {form.kind, FULL}))
        raise NoCounterpartError(
            layer, f"it is of the type {form.kind}, and no model has these beside {others}"
        )
    choices = {style: SUCCESSORS.get(other, (other,)) for style, other in STYLES.items()}
    styles = [s for s, names in choices.items() if any(form.kind in ARCHITECTURES[n].kinds for n in names)]
    raise NoCounterpartError(
        layer,
        f"it is of the type {form.kind}, which models of the type {kind} do not have; of a decoder gpt, "
        f"those of style={' or style='.join(styles)} do",
    )


def _check_attention(layer: int, kind: str, form: Form, heads: int, width: int) -> None:
    """Raise NoCounterpartError if the attention of a layer differs from that of a type of models."""
    architecture = ARCHITECTURES[kind]
    if (attention := form.attention) is None:
        return
    own = (form.heads, len(attention.q.bias) // form.heads)
    if own != (heads, width):
        raise NoCounterpartError(
            layer, f"it has {own[0]} heads of {own[1]} channels, and the model {heads} heads of {width}"
        )
    if (norm := attention.norm(heads)) != architecture.norm:
        raise NoCounterpartError(
            layer, f"its norms of queries and keys are {norm!r}, and those of {kind} {architecture.norm!r}"
        )
    if attention.rates is None and not architecture.skips_positions:
        raise NoCounterpartError(
            layer, f"it has no rotary positions, and models of the type {kind} have them"
        )


def write_layer(layer: int, built: nn.Module, form: Form) -> None:
    """Copy what a mixer computes into the layer of transformers.

    Raises:
        NoCounterpartError: The model has other rotary positions, or lacks biases.
    """
    if form.attention is None:
        module = built.get_submodule(f"model.layers.{layer}.{HOSTS[form.kind]}")
        for name, weight in form.weights.items():
            module.get_parameter(name).copy_(weight)
        return
    host: Any = built.get_submodule(f"model.layers.{layer}.self_attn")
    rotary: Any = built.get_submodule("model.rotary_emb")
    kind = f"{form.kind}_" if hasattr(rotary, f"{form.kind}_inv_freq") else ""
    factor = host.head_dim**-0.5 / host.scaling
    if form.attention.rates is not None:
        if not torch.allclose(getattr(rotary, f"{kind}inv_freq"), form.attention.rates, SAME):
            raise NoCounterpartError(layer, "its rotary positions are not those of the model")
        factor /= getattr(rotary, f"{kind}attention_scaling") ** 2
    layers = dict(host.named_children())
    attention = form.attention.scale(factor)
    output = layers.get("o_proj") or layers["out_proj"]
    q, k, v, o = attention[:4]
    if output.bias is None and o.bias.any() and layers["v_proj"].bias is not None:
        # The weights of a query sum to 1, so a constant in all values is one in the output.
        constant = torch.linalg.lstsq(o.weight.double(), o.bias.double()[:, None]).solution[:, 0]
        v, o = v._replace(bias=v.bias + constant.to(v.bias)), o._replace(bias=torch.zeros_like(o.bias))
    targets = [layers[name] for name in ("q_proj", "k_proj", "v_proj")] + [output]
    if len(targets[0].weight) == 2 * len(q.weight):
        q, o = type(q)(*(add_gate(t, host.head_dim) for t in q)), o._replace(weight=2 * o.weight)
    for target, projection in zip(targets, (q, k, v, o), strict=True):
        target.weight.copy_(projection.weight)
        if target.bias is not None:
            target.bias.copy_(projection.bias)
        elif projection.bias.any():
            raise NoCounterpartError(layer, "its projections have biases, and those of the model none")
    for names in NORMS:
        for name, weight in zip(names, attention.norms or (), strict=False):
            if name in layers:  # Gemma stores weights without 1.
                norm = layers[name]
                norm.weight.add_(weight - norm_weight(norm))
