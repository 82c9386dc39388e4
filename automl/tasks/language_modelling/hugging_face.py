"""Causal language models of Hugging Face, from a local folder or by name: `hf:FOLDER`, `hf:NAME`.

A folder has `config.json` and may have `model.safetensors`, or its parts with their index, and
`tokenizer.json`. A name is downloaded by `huggingface_hub` unless it is in its cache. No code of a repository
runs, also no kernel that a configuration names, and weights that would be unpickled are not read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention.multihead import Norm
from attention.position import ROTARY_BASE
from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.tasks.language_modelling.gpt import DecoderShape
from backbones.influence import is_causal
from backbones.site import sites

transformers = optional("transformers", "hf")

PREFIX = "hf:"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PART = re.compile(r"[\w-][\w.-]*\.safetensors")  # a plain name in the index
PICKLED = "pytorch_model*.bin*"
TOKENIZER = "tokenizer.json"
DEVIATION = 0.02  # of new weights, if the configuration has none
TRIED = 8  # tokens of the test for causality
# Without a choice, transformers takes code of its own. Another implementation may be a kernel of the hub.
OWN_CODE = {"trust_remote_code": False, "attn_implementation": None, "experts_implementation": None}
# Keys of a configuration that name another file of weights, or whose weights cannot be trained.
REFUSED = ("transformers_weights", "quantization_config")
REQUIRED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
NORMS: Mapping[str, Norm] = {  # of queries and keys, by the type of a model
    **dict.fromkeys(("qwen3", "qwen3_moe", "gemma3_text", "lfm2"), "head"),
    **dict.fromkeys(("olmo2", "olmo3"), "all"),
}
SIZES = (*REQUIRED, "num_key_value_heads", "head_dim")


class HuggingFaceDecoder(nn.Module):
    """Causal language model of Hugging Face, with a site `blockK.mixer` in each layer.

    Args:
        model: A model of `AutoModelForCausalLM`.
        layers: Path of the list of its layers.
        depth: Number of layers.
        deviation: Standard deviation of the matrices of new mixers.

    Shape:
        Tokens, int64 `(B, N)`, to logits `(B, N, V)`.
    """

    def __init__(self, model: nn.Module, layers: str, depth: int, deviation: float) -> None:
        super().__init__()
        self.model, self.deviation = model, deviation
        self.site_names = {f"model.{layers}.{i}": f"block{i + 1}" for i in range(depth)}

    def initialise_mixer(self, module: nn.Module) -> None:
        """Draw the matrices of a mixer."""
        for parameter in module.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=self.deviation)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits `(B, N, V)` of `tokens`, int64 `(B, N)`."""
        y: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return y


def build(name: str, /, *, vocabulary: int, length: int) -> HuggingFaceDecoder:
    """Build the model with new weights.

    Args:
        name: Folder or name, without `hf:`.
        vocabulary: Number of different tokens of the data.
        length: Number of tokens of the longest input.

    Raises:
        InputError: The model cannot be built, is not causal, or has fewer tokens or positions.
    """
    config = read_config(name)
    if vocabulary > config.vocab_size:
        raise InputError(
            f"the tokenizer does not fit the model {PREFIX}{name}: it has {vocabulary:,} tokens, and the "
            f"model {config.vocab_size:,}. Put the model's {TOKENIZER} into its folder, or lower --vocabulary"
        )
    most = shape_of(name).context or length
    if length > most:
        raise InputError(
            f"{PREFIX}{name} has positions for {most:,} tokens; got a context of {length:,}. Take --size "
            f"{most} or less"
        )
    _check_causal(name)
    return _new(name)


def published(name: str, /, **_: object) -> Mapping[str, Tensor]:
    """Load the weights of a folder or of a name, for the model of `build`."""
    _check_format(name)
    _check_index(name)
    automatic = transformers.AutoModelForCausalLM
    with _translated(name), quiet():
        model, report = automatic.from_pretrained(
            name,
            config=read_config(name),
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **OWN_CODE,
        )
    wrong = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in report[kind])
    if wrong:
        raise InputError(
            f"the weights of {PREFIX}{name} do not fit its config.json; {len(wrong)} parameters lack theirs, "
            f"such as {wrong[0]}. Restore the folder"
        )
    return _wrapped(name, model).state_dict()


def has_weights(name: str) -> bool:
    """Return whether there are weights to start from: of each name, and of a folder with a file of them.

    Raises:
        InputError: The folder has weights of another format alone.
    """
    if not (folder := Path(name)).is_dir():
        return True
    _check_format(name)
    return any((folder / file).is_file() for file in WEIGHTS)


def check_local(name: str) -> None:
    """Raise `InputError` for a model of the hub that is not in the cache of this machine. Contacts nobody."""
    if _is_folder(name):
        return
    with _translated(
        name
    ):  # It checks the name. `cached_file` contacts the hub even with `local_files_only`.
        file = optional("huggingface_hub", "hf").try_to_load_from_cache(name, "config.json")
    if not isinstance(file, str):
        raise InputError(
            f"{PREFIX}{name} is neither a folder nor in the cache of this machine, and nothing is downloaded "
            f"here. Restore the folder, or download the model by automl cost {PREFIX}{name}"
        )


def shape_of(name: str) -> DecoderShape:
    """Return the sizes of the layers, from the configuration."""
    config = read_config(name)
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    rotary = _rotary(config)
    base = rotary.get("rope_theta", ROTARY_BASE)
    return DecoderShape(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        heads=heads,
        cache=2 * head * (getattr(config, "num_key_value_heads", None) or heads),
        encoding="rotary" if rotary else "none",
        base=None if base == ROTARY_BASE else float(base),
        norm=NORMS.get(config.model_type, "none"),
        context=getattr(config, "max_position_embeddings", None),
        vocabulary=config.vocab_size,
    )


def _is_folder(name: str) -> bool:
    """Return whether `name` is a folder, not a model of the hub. Raise `InputError` if it is neither."""
    is_folder = Path(name).is_dir()
    if not is_folder and (name.endswith("/") or name.startswith(("/", ".", "~"))):
        raise InputError(f"the folder {name} does not exist. Take hf:FOLDER or hf:NAME")
    return is_folder


def find_file(name: str, file: str) -> Path | None:
    """Return a file of a folder or of a name, or None if it has none."""
    if (folder := Path(name)).is_dir():
        return path if (path := folder / file).is_file() else None
    with _translated(name):
        cached = optional("transformers.utils", "hf").cached_file(
            name, file, _raise_exceptions_for_missing_entries=False
        )
    return None if cached is None else Path(cached)


@lru_cache(maxsize=8)
def read_config(name: str) -> Any:
    """Return the configuration of the language model of a folder or of a name.

    Raises:
        InputError: There is none, a value is invalid, or its model is not causal or needs code of its own.
    """
    if not name:
        raise InputError(f"{PREFIX} names no model. Take hf:FOLDER or hf:NAME")
    _is_folder(name)
    with _translated(name), quiet():
        config = transformers.AutoConfig.from_pretrained(name, **OWN_CODE)
    if config.is_encoder_decoder or type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _not_causal(name, config)
    text = config.get_text_config()
    with _translated(name):  # Some models have a value for each layer.
        _check_values(name, config, text)
    return text


def _check_values(name: str, config: Any, text: Any) -> None:
    """Check what the library does not."""
    for key in REFUSED:
        if (value := getattr(config, key, None) or getattr(text, key, None)) is not None:
            raise _invalid(name, key, value, "be left out, with weights in model.safetensors")
    for key in SIZES:
        value = getattr(text, key, None)
        if (value is None and key in REQUIRED) or (
            value is not None and (type(value) is not int or value < 1)
        ):
            raise _invalid(name, text.attribute_map.get(key, key), value, "be 1 or more")
    base = _rotary(text).get("rope_theta", ROTARY_BASE)
    if not isinstance(base, int | float) or not base > 0:
        raise _invalid(name, "rope_theta", base, "be a positive number")


def _rotary(config: Any) -> Mapping[str, Any]:
    """Return the parameters of rotary positions, or nothing if the model has none."""
    rotary = getattr(config, "rope_parameters", None) or {}
    full: Mapping[str, Any] = rotary.get("full_attention", rotary)  # Others are for sliding windows.
    return full


def _new(name: str) -> HuggingFaceDecoder:
    with _translated(name), quiet():
        model = transformers.AutoModelForCausalLM.from_config(
            read_config(name), dtype=torch.float32, **OWN_CODE
        )
    return _wrapped(name, model)


def _wrapped(name: str, model: nn.Module) -> HuggingFaceDecoder:
    config = read_config(name)
    depth = config.num_hidden_layers
    lists = [path for path, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if not lists:
        raise InputError(
            f"{PREFIX}{name} has no list of {depth} layers, so none can be replaced; take another"
        )
    return HuggingFaceDecoder(model, lists[0], depth, getattr(config, "initializer_range", DEVIATION))


@lru_cache(maxsize=8)
def _check_causal(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = _new(name)
        tokens = torch.zeros(2, TRIED, dtype=torch.int64)
        with _translated(name), torch.no_grad():
            model(tokens)
        if not is_causal(model, tokens):
            raise _not_causal(name, read_config(name))
        own = {site.name for site in sites(model, tokens)}
    if lacking := [block for block in model.site_names.values() if f"{block}.mixer" not in own]:
        raise InputError(
            f"{PREFIX}{name}, of type {read_config(name).model_type!r}, has layers whose attention cannot be "
            f"replaced, such as {lacking[0]}: attention, then a perceptron, must each be added. Take another "
            f"decoder, such as one of the types llama, qwen3 or gpt2"
        )


def _not_causal(name: str, config: Any) -> InputError:
    return InputError(
        f"{PREFIX}{name} is not a causal language model, but {config.model_type!r}: it does not predict the "
        f"next token from earlier ones alone. Take a decoder, such as one of the types llama, qwen3 or gpt2"
    )


def _invalid(name: str, key: str, value: object, rule: str) -> InputError:
    return InputError(f"{key} in the config.json of {PREFIX}{name} must {rule}; got {value!r}")


def _check_index(name: str) -> None:
    """Check that the parts of the weights lie beside their index and are not pickled."""
    if (index := find_file(name, WEIGHTS[1])) is None:
        return
    with _translated(name):
        files = json.loads(index.read_text("utf-8"))["weight_map"].values()
    for file in files:
        if not isinstance(file, str) or not PART.fullmatch(file):
            raise InputError(
                f"{WEIGHTS[1]} of {PREFIX}{name} must name files beside it that end in .safetensors; got "
                f"{file!r}. Restore the folder"
            )


def _check_format(name: str) -> None:
    folder = Path(name)
    if any((folder / file).is_file() for file in WEIGHTS):
        return
    if pickled := sorted(folder.glob(PICKLED)):
        raise InputError(
            f"{pickled[0]} is not read, since unpickling it may run code: convert it to {WEIGHTS[0]}, with "
            f"save_pretrained of transformers, or remove it to start from new weights"
        )


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn errors of the library, the hub and the disk into one message."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # It raises errors of many types for what it cannot read.
        lines = str(error).split("\n")[:2] if str(error).strip() else [type(error).__name__]
        reason = " ".join(line.strip() for line in lines if line.strip()).rstrip(".")
        raise InputError(
            f"{PREFIX}{name} cannot be loaded: {reason}. Name a folder with a config.json of transformers, "
            f"or a model of the hub whose code is part of transformers"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress and the notes of the library."""
    logging = optional("transformers.utils.logging", "hf")
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
