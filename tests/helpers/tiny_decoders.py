"""Folders of tiny causal language models in the format of transformers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

VOCABULARY, CONTEXT, WIDTH, DEPTH, HEADS = 300, 32, 16, 2, 4
SIZES = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
BASE = 500.0  # of rotary positions
LLAMA = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 2}  # with grouped queries


def _llama(library: Any) -> Any:
    return library.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "default", "rope_theta": BASE})


def _qwen3(library: Any) -> Any:
    return library.Qwen3Config(**LLAMA, head_dim=4)


def _gpt2(library: Any) -> Any:
    return library.GPT2Config(**SIZES, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)


def _bert(library: Any) -> Any:
    return library.BertConfig(**{**SIZES, "intermediate_size": 24, "pad_token_id": 0})


def _t5(library: Any) -> Any:
    return library.T5Config(vocab_size=VOCABULARY, d_model=WIDTH, num_layers=1, num_heads=2, d_kv=8, d_ff=16)


def _sized(kind: str, **options: Any) -> Callable[[Any], Any]:
    return lambda library: library.CONFIG_MAPPING[kind](**{**LLAMA, "pad_token_id": 0, **options})


# Models whose projections other modules cannot take over.
DIFFERENT: Mapping[str, Callable[[Any], Any]] = {
    "glm": _sized("glm", head_dim=4),
    "phi": _sized("phi"),
    "stablelm": _sized("stablelm"),
    "ernie4_5": _sized("ernie4_5", head_dim=4),
    "codegen": lambda library: library.CodeGenConfig(**SIZES, rotary_dim=2),
    "gpt_neo": lambda library: library.GPTNeoConfig(**SIZES, attention_types=[[["global"], DEPTH]]),
    "gpt_bigcode": lambda library: library.GPTBigCodeConfig(**SIZES, multi_query=False),
}

# Models whose queries and keys have norms: of each head, of all together, and with weights around 0.
GEMMA3 = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}}
NORMS: Mapping[str, Callable[[Any], Any]] = {
    "qwen3": _qwen3,
    "olmo2": _sized("olmo2"),
    "olmo3": _sized("olmo3", layer_types=["full_attention", "sliding_attention"], sliding_window=512),
    "gemma3": _sized(
        "gemma3_text",
        head_dim=4,
        query_pre_attn_scalar=7,
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=512,
        rope_parameters={**GEMMA3, "sliding_attention": {"rope_type": "default", "rope_theta": BASE}},
    ),
}

# Models whose positions are scaled, or missing in a layer.
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": BASE, "original_max_position_embeddings": 8}
POSITIONS: Mapping[str, Callable[[Any], Any]] = {
    "smollm3": _sized("smollm3", no_rope_layers=[1, 0]),
    "llama-scaled": _sized(
        "llama", rope_parameters={**SCALED, "rope_theta": BASE, "original_max_position_embeddings": 16}
    ),
    "llama-yarn": _sized("llama", rope_parameters=YARN),
    "qwen3-yarn": _sized("qwen3", head_dim=4, rope_parameters=YARN),
}

CONFIGS: Mapping[str, Callable[[Any], Any]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "t5": _t5,
    "qwen2": _sized("qwen2"),
    "qwen3-biased": _sized("qwen3", head_dim=4, attention_bias=True),
    **DIFFERENT,
    **NORMS,
    **POSITIONS,
}
DECODERS = ("llama", "qwen3", "gpt2")


def save(library: Any, kind: str, folder: Path, *, with_weights: bool = False) -> Path:
    """Save the configuration of a model, and its weights if asked for."""
    config = CONFIGS[kind](library)
    config.save_pretrained(folder)
    if with_weights:
        torch.manual_seed(1)
        model = library.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():  # Large enough for attention to matter.
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder)
    return folder
