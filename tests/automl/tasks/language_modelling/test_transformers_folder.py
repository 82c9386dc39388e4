"""Exported hybrids that transformers loads without this project, and what has no counterpart there."""

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from attention import Spec
from automl.base.errors import InputError
from automl.tasks.language_modelling import transformers_folder
from automl.tasks.language_modelling.data.tokens import TextTokenizer, read_tokenizer
from automl.tasks.language_modelling.model import DECODERS, find_decoder
from automl.tasks.language_modelling.space import mixer
from automl.tasks.language_modelling.transformers_folder import _behaviour, copy_files, save_transformers
from automl.tasks.language_modelling.transformers_layers import NoCounterpartError
from backbones import insert
from backbones.take_over import take_over
from tests.helpers.automl_cases import HERE
from tests.helpers.tiny_decoders import CONTEXT, save

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("cache")

WINDOWS = torch.randint(257, (2, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
TEXT, COUNT = "def main(x):\n  ünï  <a>", 24


class Case(NamedTuple):
    """A decoder, the kinds of its layers, and the type of the model in transformers."""

    backbone: str
    kinds: list[str | Spec | None]
    type: str


CASES = [
    Case("llama", [None, "sliding", "sliding", None], "smollm3"),
    Case("qwen3", ["sliding", None], "qwen3"),
    Case("lfm2", ["shortconv", None, "shortconv"], "lfm2"),
    Case("qwen3", ["gated-delta", None, "gated-delta"], "qwen3_5_text"),
    Case("hf:qwen3", ["gated-delta", None], "qwen3_5_text"),
    Case("hf:qwen3-biased", ["gated-delta", None], "qwen3_5_text"),
    Case("hf:qwen2", [None, "sliding"], "qwen2"),
    Case("hf:llama-scaled", [None, "sliding"], "smollm3"),
    Case("hf:qwen3-yarn", [None, "sliding"], "qwen3"),
    Case("hf:olmo2", [None, "sliding"], "olmo3"),
    Case("hf:gemma3", [None, "sliding"], "gemma3_text"),
    Case("hf:gpt2", [None, None], "gpt2"),
]


def build(case: Case, folder: Path) -> nn.Module:
    """Return a decoder with random weights, whose mixers have taken over those of its layers."""
    torch.manual_seed(0)
    if case.backbone.startswith("hf:"):
        record, options = find_decoder(f"hf:{save(transformers, case.backbone[3:], folder)}"), {}
    else:
        options = {"depth": len(case.kinds), "width": 32, "heads": 4, "style": case.backbone}
        record = DECODERS["gpt"]
    original = record.build(vocabulary=257, length=CONTEXT, **options)
    assert record.shape is not None
    shape = record.shape(**options)
    own: dict[str, Any] = {"encoding": shape.encoding, "base": shape.base, "norm": shape.norm}
    placement = {
        f"block{i}.mixer": mixer(kind, heads=4, window=5, **own) if isinstance(kind, str) else kind
        for i, kind in enumerate(case.kinds, 1)
        if kind is not None
    }
    for parameter in original.parameters():
        nn.init.normal_(parameter, std=0.2)
    model = insert(copy.deepcopy(original), placement, WINDOWS[:, :-1])
    take_over(model, original)
    with torch.no_grad():  # Biases and gates are constant when new.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


ELSEWHERE = """
import json, sys, torch

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"automl", "attention", "backbones", "search", "cluster"}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Absent())
from transformers import AutoModelForCausalLM, AutoTokenizer

answers = []
for folder in sys.argv[2:]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(sys.argv[1], return_tensors="pt")["input_ids"]
    new = model.generate(tokens, do_sample=False, min_new_tokens=24, max_new_tokens=24, use_cache=True)
    logits = model(new).logits[0, :, :4].tolist()
    answers.append([model.config.model_type, tokens[0].tolist(), new[0].tolist(), logits])
print(json.dumps(answers))
"""


@pytest.mark.slow("starts another interpreter")
def test_hybrids_load_in_a_fresh_interpreter_without_this_project(tmp_path: Path) -> None:
    """Logits are within 1e-3, and `generate` with a cache continues as full passes do."""
    models = []
    for i, case in enumerate(CASES):
        models.append(model := build(case, tmp_path / f"original{i}"))
        differences = save_transformers(tmp_path / str(i), model, WINDOWS, TextTokenizer())
        assert len(differences) == 3
        assert max(differences.values()) < 1e-3
    folders = [str(tmp_path / str(i)) for i in range(len(CASES))]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE, TEXT[:6], *folders],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for case, model, (kind, read, tokens, logits) in zip(CASES, models, json.loads(done.stdout), strict=True):
        assert (kind, read) == (case.type, list(TEXT[:6].encode()))
        with torch.no_grad():
            own = list(read)
            for _ in range(COUNT):
                predicted = model(torch.tensor([own]))
                predicted = getattr(predicted, "logits", predicted)[0, -1]
                predicted[256] = -torch.inf  # The end is not drawn.
                own.append(int(predicted.argmax()))
            expected = model(torch.tensor([own]))
        assert own == tokens
        torch.testing.assert_close(torch.tensor(logits), expected[0, :, :4], atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("backbone", "kinds", "reason"),
    [
        ("llama", ["linear", None], "layer 1 .* transformers has no layer like LinearAttention"),
        ("qwen3", [None, "shortconv"], "layer 2 .* the type qwen3 do not have; .* style=lfm2 do"),
        ("qwen3", [Spec("sliding", {"causal": True, "norm": "head"}), None], "it has no rotary positions"),
        ("hf:gpt2", [None, "sliding"], "layer 2 .* models of the type gpt2 do not have"),
    ],
)
def test_one_line_says_which_layer_has_no_counterpart(
    backbone: str, kinds: list[str | Spec | None], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NoCounterpartError, match=reason) as refused:
        save_transformers(tmp_path / "new", build(Case(backbone, kinds, ""), tmp_path), WINDOWS, None)
    assert "\n" not in str(refused.value)


SPECIAL = ["<|begin|>", "<|endoftext|>", "<|end|>", "<|pad|>", "<|user|>", "<unk>"]
NAMED = {"bos_token": "<|begin|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
CHAT = "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
WORDS = ["the cat", "a", "the <|user|> sat<|end|>", " 3  \n"]
SETTINGS: dict[str, Any] = {
    **NAMED, "padding_side": "left", "truncation_side": "left", "model_max_length": 64, "chat_template": CHAT,
    "tokenizer_class": "PreTrainedTokenizerFast", "image_token": "<|end|>", "auto_map": {"AutoConfig": "a.B"},
}  # fmt: skip
OLDER: dict[str, Any] = {
    **NAMED, "additional_special_tokens": ["<|end|>"], "tokenizer_class": "GPT2Tokenizer",
    "added_tokens_decoder": {
        str(i): {"content": token, "special": token != "<|user|>", "rstrip": token == "<|end|>"}
        for i, token in (*enumerate(SPECIAL), (290, "<new>"))
    },
    "chat_template": [{"name": "default", "template": CHAT}, {"name": "rag", "template": "R"}],
}  # fmt: skip


def trained() -> Any:
    """Return a tokenizer of sub-words with special tokens."""
    pairs = tokenizers.ByteLevelBPETokenizer()
    pairs.train_from_iterator(["the cat sat"] * 9, 270, special_tokens=SPECIAL, show_progress=False)
    pairs.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return pairs


def of_files(folder: Path, files: Mapping[str, object]) -> None:
    """Write `tokenizer.json`, and other files beside it."""
    trained().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def of_class(folder: Path) -> None:
    """Write the files of a class that is made of a vocabulary and merges alone."""
    trained().save_model(str(folder))
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    transformers.Qwen2Tokenizer(*files, **NAMED).save_pretrained(folder)


def of_sentences(folder: Path) -> None:
    """Write the files of a Llama, whose tokenizer came from sentencepiece."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "t", "h", "▁t", "▁th"]
    merges = [("▁", "t"), ("▁t", "h")]
    transformers.LlamaTokenizer({w: i for i, w in enumerate(words)}, merges).save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(b"sentences")


@pytest.mark.parametrize("case", [CASES[i] for i in (4, 7, 11)], ids=lambda case: case.backbone)
def test_tokens_are_timed_with_a_cache(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.inference_mode()
    def lengths(steps: Any, *_: object) -> list[int]:
        return [step().get_seq_length() for step in steps]

    for name, value in {"LENGTHS": (4, 20, 30), "READ": 5, "TIMES": 2, "measure_latencies": lengths}.items():
        monkeypatch.setattr(transformers_folder, name, value)
    plain = build(case._replace(kinds=[None, None]), tmp_path)
    times = list(transformers_folder.cached_times(build(case, tmp_path), plain, HERE))
    assert times == [(4, 5, 5), (20, 21, 21)], "there are 32 positions"


LAYOUTS: Mapping[str, Callable[[Path], None]] = {
    "tokenizer.json alone": lambda folder: of_files(folder, {}),
    "settings": lambda folder: of_files(folder, {"tokenizer_config.json": SETTINGS}),
    "older settings": lambda folder: of_files(folder, {"tokenizer_config.json": OLDER}),
    "vocabulary and merges": of_class,
    "sentencepiece": of_sentences,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_tokenizer_of_an_export_is_that_of_the_original(layout: str, tmp_path: Path) -> None:
    """In special tokens, chats, batches and texts, for each type of models and each layout of files."""
    for i, case in enumerate(case for case in CASES if case.backbone.startswith("hf:")):
        original = save(transformers, case.backbone[3:], tmp_path / f"original{i}")
        LAYOUTS[layout](original)
        (exported := tmp_path / f"exported{i}").mkdir()
        (exported / "config.json").write_text(json.dumps({"model_type": case.type}))
        copy_files(exported, read_tokenizer(original / "tokenizer.json"), WINDOWS % 250, str(original))
        first, second = (transformers.AutoTokenizer.from_pretrained(f) for f in (original, exported))
        assert _behaviour(second, WORDS) == _behaviour(first, WORDS)
        files = {file.relative_to(original) for file in original.rglob("*") if file.is_file()}
        assert files <= {file.relative_to(exported) for file in exported.rglob("*")}
        assert "auto_map" not in json.loads((exported / "tokenizer_config.json").read_text())


def test_generation_has_the_defaults_of_the_original(tmp_path: Path) -> None:
    case, folder = CASES[7], tmp_path / "original"
    model = build(case, folder)
    of_files(folder, {"tokenizer_config.json": SETTINGS})
    defaults: dict[str, Any] = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 2]}
    defaults |= {"num_beams": 2, "bos_token_id": 0, "pad_token_id": 3, "repetition_penalty": 1.2}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    differences = save_transformers(tmp_path / "new", model, WINDOWS % 250, tokenizer, str(folder))
    assert max(differences.values()) < 1e-3
    new = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new").generation_config
    assert new.to_diff_dict().items() >= defaults.items()


def test_a_tokenizer_that_is_not_that_of_the_training_is_refused(tmp_path: Path) -> None:
    original = save(transformers, "qwen2", tmp_path / "original")
    of_files(original, {"tokenizer_config.json": SETTINGS})
    tokenizer = read_tokenizer(original / "tokenizer.json")
    shutil.copytree(original, tmp_path / "new")
    settings = {"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    (original / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"its tokenizer differs from that of .* in: .*special_tokens_map"):
        copy_files(tmp_path / "new", tokenizer, WINDOWS % 250, str(original))
    (original / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json of .* is not that of the training; restore"):
        copy_files(tmp_path / "new", tokenizer, WINDOWS % 250, str(original))


def test_a_tokenizer_of_bytes_has_the_tokens_of_the_model(tmp_path: Path) -> None:
    save_transformers(tmp_path, build(CASES[1], tmp_path), WINDOWS, TextTokenizer())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(TEXT)["input_ids"] == list(TEXT.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == TextTokenizer().end
    assert tokenizer(["ab", "c"], padding=True)["input_ids"] == [[97, 98], [256, 99]]
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, 256, 256)
