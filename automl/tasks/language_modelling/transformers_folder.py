"""A trained decoder in the format of transformers, which loads it without code of this project.

The mixer of each layer is copied into the layer of transformers that computes the same: attention that is
full or in a sliding window, or the short convolution of LFM2. The gate becomes a part of the output
projection. A model of Hugging Face keeps its type, or gets one that has such layers beside its own.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention import Gated
from attention.multihead import EPSILON, MultiHeadAttention, Norm
from attention.position import ROTARY_BASE, rates
from attention.shortconv import ShortConvolution
from attention.sliding import SlidingAttention
from automl.base.lazy import optional
from automl.tasks.language_modelling.config import MIXER
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.gpt import CausalSelfAttention, Decoder
from automl.tasks.language_modelling.hugging_face import OWN_CODE, HuggingFaceDecoder, quiet
from backbones.output import logits
from backbones.take_over import NORMS, Attention, find_projections, norm_weight, repeat_heads

transformers = optional("transformers", "hf")
tokenizers = optional("tokenizers", "text")

FULL, SLIDING, CONVOLUTION = "full_attention", "sliding_attention", "conv"
WHOLE, CACHED = "transformers", "transformers with a cache"  # the checks
END = "<|endoftext|>"  # of a document, if the tokenizer has no text for it
OF_FILES = ("model_type", "architectures", "transformers_version", "dtype", "auto_map", "_name_or_path")
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
    "gemma3_text": Architecture((FULL, SLIDING), "head"),
    "olmo3": Architecture((FULL, SLIDING), "all"),
    "lfm2": Architecture((FULL, CONVOLUTION), "head"),
}
STYLES = {"llama": "smollm3", "qwen3": "qwen3", "lfm2": "lfm2"}  # types for the styles of `gpt`
SUCCESSORS = {"llama": "smollm3", "olmo2": "olmo3"}  # types with the same layers, and with windows
# Names of the two norms of a layer, and of the projections of its perceptron: gate, value and output.
USUAL = ("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
OF_LFM2 = ("operator_norm", "ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


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
        convolution: Weights of a short convolution: input, taps, output.
    """

    kind: str
    size: int = 0
    attention: Attention | None = None
    heads: int = 0
    convolution: tuple[Tensor, ...] = ()


def save_transformers(
    folder: Path,
    model: nn.Module,
    windows: Tensor,
    tokenizer: TextTokenizer | None,
    chat_template: str | None = None,
) -> dict[str, float]:
    """Write a model and its tokenizer, and compare what is read back with the model.

    Args:
        folder: The folder to create.
        model: The trained model, on the CPU.
        windows: Real windows, int64 `(N, context + 1)`.
        tokenizer: The tokenizer of its texts.
        chat_template: The template of its conversations, which is written with the tokenizer.

    Returns:
        The largest difference of logits, on whole windows and where `generate` continues halves of them.

    Raises:
        NoCounterpartError: Transformers has no model with these layers.
        InputError: The package is missing.
    """
    with quiet(), torch.no_grad():
        built = _convert(model, windows.shape[1] - 1)
        if tokenizer is not None and isinstance(model, Decoder):
            built.config.eos_token_id = built.generation_config.eos_token_id = tokenizer.end
        built.save_pretrained(folder)
        if tokenizer is not None:
            _save_tokenizer(folder, tokenizer, chat_template)
        return _compare(folder, model, windows)


def _compare(folder: Path, model: nn.Module, windows: Tensor) -> dict[str, float]:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **OWN_CODE)
    tokens, half = windows[:, :-1], windows.shape[1] // 2
    count = tokens.shape[1] - half
    whole = loaded(input_ids=tokens).logits - logits(model(tokens))
    generated = loaded.generate(
        tokens[:, :half],
        attention_mask=torch.ones_like(tokens[:, :half]),
        do_sample=False,
        min_new_tokens=count,
        max_new_tokens=count,
        output_logits=True,
        return_dict_in_generate=True,
    )
    own = logits(model(generated.sequences))[:, half - 1 : -1]
    cached = torch.stack(generated.logits, dim=1) - own
    return {name: float(value.abs().max()) for name, value in ((WHOLE, whole), (CACHED, cached))}


def _convert(model: nn.Module, context: int) -> Any:
    """Build the model of transformers that computes what `model` does."""
    modules: dict[int, nn.Module] = {}
    for module in (module for module in model.modules() if isinstance(module, Gated)):
        layer = int((re.findall(r"\d+", module.site) or [1])[0]) - 1
        if not MIXER.fullmatch(module.site):
            raise NoCounterpartError(layer, f"it has a module at {module.site}")
        modules[layer] = module
    if isinstance(model, Decoder):
        kind, state = STYLES[model.style], _state_of(model)
        values, kept = _values_of(model, context), [FULL] * len(model.layers)
        own = {i: layer.get_submodule("mixer") for i, layer in enumerate(model.layers)}
        modules = {i: modules.get(i, module) for i, module in own.items()}
    else:
        assert isinstance(model, HuggingFaceDecoder), "the decoders of this task"
        config: Any = model.model.config
        kind = SUCCESSORS.get(config.model_type, config.model_type) if modules else config.model_type
        values = {key: value for key, value in config.to_dict().items() if key not in OF_FILES}
        state = {k: v for k, v in model.model.state_dict().items() if "site_mixer" not in k.split(".")}
        kept = list(getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers)
    forms = {i: _read(i, module) for i, module in modules.items()}
    if forms:
        values |= _layer_values(kind, values, kept, forms)
    built = transformers.AutoModelForCausalLM.from_config(
        transformers.CONFIG_MAPPING[kind](**values), dtype=torch.float32, **OWN_CODE
    )
    _load(built, state)
    for i, form in forms.items():
        _write(i, built, form)
    return built.eval()


def _values_of(model: Decoder, context: int) -> dict[str, Any]:
    """Return the values of a configuration of the built-in decoder."""
    vocabulary, width = model.embedding.weight.shape
    rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    values = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": width // model.heads,
        "max_position_embeddings": context,
        "rms_norm_eps": EPSILON,
        "norm_eps": EPSILON,
        "rope_parameters": rotary,
        "tie_word_embeddings": True,
        "block_auto_adjust_ff_dim": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    known = transformers.CONFIG_MAPPING[STYLES[model.style]]
    return {key: value for key, value in values.items() if hasattr(known, key)}


def _state_of(model: Decoder) -> dict[str, Tensor]:
    """Return the weights of the built-in decoder beside its mixers, by their names in transformers."""
    is_lfm2 = STYLES[model.style] == "lfm2"
    norm, names = ("embedding_norm", OF_LFM2) if is_lfm2 else ("norm", USUAL)
    embedding = model.embedding.weight
    state = {"model.embed_tokens": embedding, "lm_head": embedding, f"model.{norm}": model.norm.weight}
    for i, layer in enumerate(model.layers):
        own = dict(layer.named_parameters())
        gate, value = own["mlp.in_proj.weight"].chunk(2)
        weights = own["norm1.weight"], own["norm2.weight"], gate, value, own["mlp.out_proj.weight"]
        state |= {f"model.layers.{i}.{name}": weight for name, weight in zip(names, weights, strict=True)}
    return {f"{name}.weight": weight for name, weight in state.items()}


def _read(layer: int, module: Any) -> Form:
    """Return what a mixer computes, with its gate in the output."""
    gate = module.gamma if isinstance(module, Gated) else 1.0
    is_causal = isinstance(module, CausalSelfAttention) or getattr(module, "causal", False)
    if isinstance(module, ShortConvolution) and is_causal:
        weights = (module.in_proj.weight, module.conv.weight, gate * module.out_proj.weight)
        return Form(CONVOLUTION, size=module.kernel, convolution=weights)
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


def _layer_values(
    kind: str, values: Mapping[str, Any], kept: Sequence[str], forms: Mapping[int, Form]
) -> dict[str, Any]:
    """Return the values of a configuration about the types of layers. `kept` are those of the original."""
    for i, form in forms.items():
        _check_kind(i, kind, form)
    heads = values["num_attention_heads"]
    width = values.get("head_dim") or values["hidden_size"] // heads
    for i, form in forms.items():
        _check_attention(i, kind, form, heads, width)
    types = [forms[i].kind if i in forms else own for i, own in enumerate(kept)]
    if set(types) == {CONVOLUTION}:
        raise NoCounterpartError(0, f"a model of the type {kind} needs a full layer; replace fewer layers")
    new: dict[str, Any] = {"layer_types": types}
    for type_, key in ((SLIDING, "sliding_window"), (CONVOLUTION, "conv_L_cache")):
        sizes = {form.size: i for i, form in forms.items() if form.kind == type_}
        if any(own == type_ and i not in forms for i, own in enumerate(kept)):
            sizes.setdefault(values[key], kept.index(type_))
        if len(sizes) > 1:
            listed = " and ".join(map(str, sorted(sizes)))
            raise NoCounterpartError(max(sizes.values()), f"layers have sizes of {listed}, and a model one")
        if sizes:
            new |= {key: next(iter(sizes)), **({"use_sliding_window": True} if type_ == SLIDING else {})}
    placed = {i: form.attention for i, form in forms.items() if form.attention is not None}
    if placed:
        new["num_key_value_heads"] = heads
    known = transformers.CONFIG_MAPPING[kind]
    if hasattr(known, "attention_bias") and any(p.bias.any() for a in placed.values() for p in a[:4]):
        new["attention_bias"] = True
    if ARCHITECTURES[kind].skips_positions:
        own_rope = values.get("no_rope_layers") or [1] * len(kept)
        new["no_rope_layers"] = [
            int(placed[i].rates is not None) if i in placed else rope for i, rope in enumerate(own_rope)
        ]
    if kind == "olmo3" and FULL not in values["rope_parameters"]:  # those of OLMo 2
        new["rope_parameters"] = dict.fromkeys((FULL, SLIDING), values["rope_parameters"])
    return new


def _check_kind(layer: int, kind: str, form: Form) -> None:
    """Raise NoCounterpartError if models of this type have no such layers."""
    if kind not in ARCHITECTURES or form.kind not in ARCHITECTURES[kind].kinds:
        styles = [style for style, other in STYLES.items() if form.kind in ARCHITECTURES[other].kinds]
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


def _load(built: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy weights by name. Missing biases are zero, and shared keys and values are repeated."""
    for key, value in built.state_dict().items():
        source = state.get(key)
        if source is None:
            if key.endswith(".bias"):
                value.zero_()
        else:
            host: Any = built.get_submodule(key.rsplit(".", 2)[0])
            repeats = len(value) // len(source)
            value.copy_(source if repeats == 1 else repeat_heads(source, host.head_dim, repeats))


def _write(layer: int, built: nn.Module, form: Form) -> None:
    """Copy what a mixer computes into the layer of transformers."""
    if form.attention is None:
        module = built.get_submodule(f"model.layers.{layer}.conv")
        for name, weight in zip(("in_proj", "conv", "out_proj"), form.convolution, strict=True):
            module.get_parameter(f"{name}.weight").copy_(weight)
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


def _save_tokenizer(folder: Path, tokenizer: TextTokenizer, chat_template: str | None) -> None:
    """Write the tokenizer in the format of transformers. Of bytes, it has a token for each byte."""
    library = tokenizers.Tokenizer
    backend = library.from_str(tokenizer.content) if tokenizer.content else _byte_tokenizer()
    if backend.id_to_token(tokenizer.end) is None and backend.token_to_id(END) is None:
        backend.add_special_tokens([END])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=backend.id_to_token(tokenizer.end),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    fast.save_pretrained(folder)


def _byte_tokenizer() -> Any:
    """Return a byte-level tokenizer without pairs, whose characters stand for bytes as in GPT-2's code."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 256 + i for i, byte in enumerate(others)}
    pairs = tokenizers.models.BPE(vocab={chr(code): byte for byte, code in codes.items()}, merges=[])
    backend = tokenizers.Tokenizer(pairs)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return backend
