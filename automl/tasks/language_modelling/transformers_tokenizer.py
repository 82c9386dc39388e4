"""Tokenizer of a decoder in the format of transformers.

The files of a published model are copied, with its special tokens, chat templates and padding. A tokenizer of
this project is written. Both are read back and compared.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.hugging_face import TOKENIZER, find_file

transformers = optional("transformers", "hf")
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
    known = _load(original)
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
        if type(copied := _load(folder)) is type(known):
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
    tokens = _load(folder)(texts, add_special_tokens=False, split_special_tokens=True).input_ids
    if tokens != [numbers.tolist() for numbers in tokenizer.encode([text.encode() for text in texts])]:
        raise InputError("its tokenizer gives other tokens than that of the training")


def _load(name: str | Path) -> Any:
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
