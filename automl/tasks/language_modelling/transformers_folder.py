"""A trained decoder in the format of transformers, which loads it without code of this project.

The mixer of each layer is copied into the layer of transformers that computes the same: attention that is
full or in a sliding window, the short convolution of LFM2, or the gated delta rule of Qwen3.5. The gate
becomes a part of the output projection. A model of Hugging Face keeps its type, or gets one that has such
layers beside its own.

The files of a published tokenizer are copied, with its special tokens, chat templates and padding. One of
this project is written. Both are read back and compared.
"""

import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention import Gated
from attention.multihead import EPSILON
from attention.position import ROTARY_BASE
from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.base.terminal import tell
from automl.config.runtime import Runtime
from automl.costs.profile import measure_latencies
from automl.tasks.language_modelling import MIXER
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.deploy import LENGTHS, READ, TIMES, is_too_large
from automl.tasks.language_modelling.gpt import Decoder
from automl.tasks.language_modelling.hugging_face import (
    OWN_CODE,
    TOKENIZER,
    HuggingFaceDecoder,
    find_file,
    quiet,
)
from automl.tasks.language_modelling.transformers_layers import (
    FULL,
    STYLES,
    NoCounterpartError,
    add_gate,
    find_type,
    layer_values,
    read_mixer,
    write_layer,
)
from backbones.example import logits
from backbones.take_over import repeat_heads

transformers = optional("transformers", "hf")

# The checks.
WHOLE, CACHED, PADDED = "transformers", "transformers with a cache", "transformers with padding"
OF_FILES = ("model_type", "architectures", "transformers_version", "dtype", "auto_map", "_name_or_path")
# Names of the two norms of a layer, and of the projections of its perceptron: gate, value and output.
USUAL = ("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
OF_LFM2 = ("operator_norm", "ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


def save_transformers(
    folder: Path,
    model: nn.Module,
    windows: Tensor,
    tokenizer: TextTokenizer | None,
    original: str | None = None,
) -> dict[str, float]:
    """Write a model and its tokenizer, and compare what is read back with the model.

    `windows` are real ones, int64 `(N, context + 1)`. `original` is the folder or name of the published model
    that has this tokenizer, and whose files are copied. Returns the largest difference of logits, on whole
    windows, and where `generate` continues halves of them and a shorter text that is padded. Raises
    NoCounterpartError if transformers has no such model, and InputError if its tokenizer differs.
    """
    with quiet(), torch.no_grad():
        built = _convert(model, windows.shape[1] - 1)
        if tokenizer is not None and original is None:
            for config in (built.config, built.generation_config):
                config.bos_token_id = None
                config.eos_token_id = config.pad_token_id = tokenizer.end
        built.save_pretrained(folder)
        if tokenizer is not None and original is not None:
            copy_files(folder, tokenizer, windows, original)
        elif tokenizer is not None:
            write_tokenizer(folder, tokenizer, windows)
        return _compare(folder, model, windows)


def _compare(folder: Path, model: nn.Module, windows: Tensor) -> dict[str, float]:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **OWN_CODE)
    loaded.generation_config = transformers.GenerationConfig()  # Others may sample or penalise.
    tokens, half = windows[:, :-1], windows.shape[1] // 2
    whole = loaded(input_ids=tokens).logits - logits(model(tokens))
    mask = torch.ones_like(tokens[:, :half])
    skipped = half // 2  # tokens of a further text, which is padded
    generated = loaded.generate(
        torch.cat([tokens[:, :half], tokens[-1:, :half]]),
        attention_mask=torch.cat([mask, mask[-1:].index_fill(1, torch.arange(skipped), 0)]),
        do_sample=False,
        max_new_tokens=tokens.shape[1] - half,
        output_logits=True,
        return_dict_in_generate=True,
    )
    new = torch.stack(generated.logits, dim=1)
    cached = new[:-1] - logits(model(generated.sequences[:-1]))[:, half - 1 : -1]
    padded = new[-1:] - logits(model(generated.sequences[-1:, skipped:]))[:, half - skipped - 1 : -1]
    return {
        name: float(value.abs().max()) for name, value in ((WHOLE, whole), (CACHED, cached), (PADDED, padded))
    }


def cached_times(model: nn.Module, plain: nn.Module, runtime: Runtime) -> Iterator[tuple[int, float, float]]:
    """Yield `decoding_times` of models of Hugging Face, up to their context, with the library's cache."""
    with quiet(), torch.no_grad():
        decoders = [_convert(each, 0).to(runtime.device) for each in (model, plain)]
    most = getattr(decoders[1].config, "max_position_embeddings", None) or 2 * max(LENGTHS)
    for length in LENGTHS:
        if length + TIMES < most and not is_too_large(plain, runtime):
            tell(f"timing a token after {length:,} ...")
            with torch.inference_mode():
                steps = [_cached_step(decoder, length) for decoder in decoders]
            own, others = measure_latencies(steps, runtime, TIMES)
            yield length, own, others


def _cached_step(decoder: Any, length: int) -> Callable[[], object]:
    """Return a function that reads a token after `length`. The states of the first `READ` are repeated."""
    token = torch.zeros(1, 1, dtype=torch.int64, device=decoder.device)
    cache = transformers.DynamicCache(config=decoder.config)
    name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    decoder(input_ids=token.expand(1, min(length, READ)), use_cache=True, **{name: cache})
    for layer in cache.layers if length > READ else []:
        if isinstance(getattr(layer, "keys", None), Tensor):
            kept = getattr(layer, "sliding_window", length + 1) - 1
            repeated = (t.repeat(1, 1, length // READ, 1) for t in (layer.keys, layer.values))
            layer.keys, layer.values = (t[:, :, -kept:] for t in repeated)
        layer.cumulative_length = length
    return lambda: decoder(input_ids=token, use_cache=True, **{name: cache})[name]


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
        kept = [FULL] * len(model.layers)
        own = {i: layer.get_submodule("mixer") for i, layer in enumerate(model.layers)}
        modules = {i: modules.get(i, module) for i, module in own.items()}
    else:
        assert isinstance(model, HuggingFaceDecoder), "the decoders of this task"
        config: Any = model.model.config
        kind = config.model_type
        values = {key: value for key, value in config.to_dict().items() if key not in OF_FILES}
        state = {k: v for k, v in model.model.state_dict().items() if "site_mixer" not in k.split(".")}
        kept = list(getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers)
    forms = {i: read_mixer(i, module) for i, module in modules.items()}
    if forms:
        types = [forms[i].kind if i in forms else own for i, own in enumerate(kept)]
        former, kind = kind, find_type(kind, types)
        if isinstance(model, Decoder):
            values = _values_of(model, kind, context)
        values |= layer_values(kind, values, types, forms)
        if former != kind == "qwen3_5_text":
            values["rope_parameters"] = {**values["rope_parameters"], "partial_rotary_factor": 1.0}
            state = _state_of_qwen3_5(state, values["head_dim"])
    built = transformers.AutoModelForCausalLM.from_config(
        transformers.CONFIG_MAPPING[kind](**values), dtype=torch.float32, **OWN_CODE
    )
    _load(built, state)
    for i, form in forms.items():
        write_layer(i, built, form)
    return built.eval()


def _values_of(model: Decoder, kind: str, context: int) -> dict[str, Any]:
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
    known = transformers.CONFIG_MAPPING[kind]
    return {key: value for key, value in values.items() if hasattr(known, key)}


def _state_of(model: Decoder) -> dict[str, Tensor]:
    """Return the weights of the built-in decoder beside its mixers, by their names in transformers."""
    norm, names = ("embedding_norm", OF_LFM2) if STYLES[model.style] == "lfm2" else ("norm", USUAL)
    embedding = model.embedding.weight
    state = {"model.embed_tokens": embedding, "lm_head": embedding, f"model.{norm}": model.norm.weight}
    for i, layer in enumerate(model.layers):
        own = dict(layer.named_parameters())
        gate, value = own["mlp.in_proj.weight"].chunk(2)
        weights = own["norm1.weight"], own["norm2.weight"], gate, value, own["mlp.out_proj.weight"]
        state |= {f"model.layers.{i}.{name}": weight for name, weight in zip(names, weights, strict=True)}
    return {f"{name}.weight": weight for name, weight in state.items()}


def _state_of_qwen3_5(state: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Return the weights of a Qwen3 by their form in Qwen3.5, whose norms store weights without 1."""
    new = {key: value - 1 if key.endswith("norm.weight") else value for key, value in state.items()}
    for key, value in new.items():
        if ".q_proj." in key:
            new[key] = add_gate(value, width)
        elif key.endswith(".o_proj.weight"):
            new[key] = 2 * value
    return new


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


tokenizers = optional("tokenizers", "text")

END = "<|endoftext|>"  # of a document, if the tokenizer has no text for it
CONFIG, TEMPLATES = "tokenizer_config.json", "additional_chat_templates"
VOCABULARIES = (TOKENIZER, "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
SETTINGS = (CONFIG, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
FILES = (*VOCABULARIES, *SETTINGS, "generation_config.json")
COMPARED = ("special_tokens_map", "padding_side", "truncation_side", "model_max_length", "chat_template")


def copy_files(folder: Path, tokenizer: TextTokenizer, windows: Tensor, original: str) -> None:
    """Copy tokenizer and generation files of a published model, its folder or name, beside the exported one.

    Raises InputError if the tokenizer is not that of the training, or what is read back differs from it.
    """
    source = find_file(original, TOKENIZER)
    if source is None or source.read_text("utf-8") != tokenizer.content:
        raise InputError(f"{TOKENIZER} of {original} is not that of the training; restore the file")
    known = _load_tokenizer(original)
    templates = known.chat_template if isinstance(known.chat_template, dict) else {}
    named = [f"{TEMPLATES}/{name}.jinja" for name in templates if Path(name).name == name]
    for name in {*FILES, *known.vocab_files_names.values(), *named}:
        if (file := find_file(original, name)) is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name)
    config = folder / CONFIG
    values = json.loads(config.read_text("utf-8")) if config.exists() else {}
    values.pop("auto_map", None)  # names code, which is not copied
    for kind in ({}, {"tokenizer_class": type(known).__name__}):  # The type of a model can determine it.
        config.write_text(json.dumps(values | kind, indent=2), "utf-8")
        if type(copied := _load_tokenizer(folder)) is type(known):
            break
    texts = [tokenizer.decode(window) for window in windows.tolist()]
    expected, read = _behaviour(known, texts), _behaviour(copied, texts)
    if different := sorted(key for key in expected if expected[key] != read[key]):
        raise InputError(f"its tokenizer differs from that of {original} in: {', '.join(different)}")


def write_tokenizer(folder: Path, tokenizer: TextTokenizer, windows: Tensor) -> None:
    """Write a tokenizer of this project, or of bytes, whose end of a document also fills batches.

    Raises InputError if what is read back gives other tokens.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer.content) if tokenizer.content else _byte_tokenizer()
    if backend.id_to_token(tokenizer.end) is None and backend.token_to_id(END) is None:
        backend.add_special_tokens([END])
    end = backend.id_to_token(tokenizer.end)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=end,
        pad_token=end,
        padding_side="left",
        model_max_length=windows.shape[1] - 1,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    texts = [tokenizer.decode(window) for window in windows.tolist()]
    tokens = _load_tokenizer(folder)(texts, add_special_tokens=False, split_special_tokens=True).input_ids
    if tokens != [numbers.tolist() for numbers in tokenizer.encode([text.encode() for text in texts])]:
        raise InputError("its tokenizer gives other tokens than that of the training")


def _load_tokenizer(name: str | Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def _behaviour(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    """Return the properties of a tokenizer, and what it does with texts, batches and chats."""
    templates = tokenizer.chat_template
    names = list(templates) if isinstance(templates, dict) else [None] * (templates is not None)
    texts = [*texts, texts[0][:1], " ".join(tokenizer.all_special_tokens)]
    tokens = tokenizer(texts).input_ids
    return {name: getattr(tokenizer, name) for name in COMPARED} | {
        "vocabulary": tokenizer.get_vocab(),
        "chats": [_chat(tokenizer, name) for name in names],
        "tokens": tokens,
        "batches": tokenizer.pad_token and dict(tokenizer(texts, padding=True)),
        "texts": [tokenizer.batch_decode(tokens, skip_special_tokens=skip) for skip in (True, False)],
    }


def _chat(tokenizer: Any, template: str | None) -> str:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        return str(tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False))
    except Exception as error:  # A template may refuse a chat.
        return str(error)


def _byte_tokenizer() -> Any:
    """Return a byte-level tokenizer without pairs, whose characters stand for bytes as in GPT-2's code."""
    characters = optional("transformers.convert_slow_tokenizer", "hf").bytes_to_unicode()
    pairs = tokenizers.ByteLevelBPETokenizer({char: byte for byte, char in characters.items()}, [])
    return tokenizers.Tokenizer.from_str(pairs.to_str())
