"""Exported hybrids that transformers loads without this project, and what has no counterpart there."""

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_decoders import CONTEXT, save
from torch import nn

from attention import Spec
from automl.base.errors import InputError
from automl.export.destination import check_hub, push
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.hugging_face import read_chat_template
from automl.tasks.language_modelling.model import DECODERS, find_decoder
from automl.tasks.language_modelling.space import mixer
from automl.tasks.language_modelling.transformers_folder import save_transformers
from automl.tasks.language_modelling.transformers_layers import NoCounterpartError
from backbones import insert
from backbones.take_over import take_over

transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")
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


def test_hybrids_load_in_a_fresh_interpreter_without_this_project(tmp_path: Path) -> None:
    """Logits are within 1e-3, and `generate` with a cache continues as full passes do."""
    models = []
    for i, case in enumerate(CASES):
        models.append(model := build(case, tmp_path / f"original{i}"))
        differences = save_transformers(tmp_path / str(i), model, WINDOWS, TextTokenizer())
        assert len(differences) == 2
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
        ("lfm2", ["sliding", None], "layer 1 .* sliding_attention.* style=llama or style=qwen3 do"),
        ("lfm2", ["shortconv", "shortconv"], "layer 1 .* needs a full layer"),
        ("qwen3", ["gated-delta", "gated-delta"], "layer 1 .* needs a full layer"),
        ("qwen3", ["kda", None], "layer 1 .* no layer like KimiDeltaAttention"),
        ("llama", ["gated-delta", None], "layer 1 .* linear_attention, .* type smollm3 .* style=qwen3 do"),
        (
            "qwen3",
            ["gated-delta", None, "sliding"],
            "layer 1 .* linear_attention, and no model has these beside sliding",
        ),
        (
            "qwen3",
            [Spec("gated-delta", {"causal": True, "heads": 2}), None, "gated-delta"],
            "layer 3 .* 4 heads of 8 channels, and another layer of its type 2 of 16",
        ),
        ("qwen3", [Spec("sliding", {"causal": True, "norm": "head"}), None], "it has no rotary positions"),
        ("llama", [Spec("sliding", {"causal": True, "heads": 2}), None], "2 heads of 16 channels, and the"),
        ("llama", [Spec("sliding", {"causal": True}), "sliding"], "sizes of 5 and 33, and a model one"),
        ("hf:gpt2", [None, "sliding"], "layer 2 .* models of the type gpt2 do not have"),
    ],
)
def test_one_line_says_which_layer_has_no_counterpart(
    backbone: str, kinds: list[str | Spec | None], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NoCounterpartError, match=reason) as refused:
        save_transformers(tmp_path / "new", build(Case(backbone, kinds, ""), tmp_path), WINDOWS, None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "content", "template"),
    [
        ("chat_template.jinja", "{{ messages[0].content }}", "{{ messages[0].content }}"),
        (
            "tokenizer_config.json",
            '{"chat_template": "{{ messages[0].content }}"}',
            "{{ messages[0].content }}",
        ),
        ("tokenizer_config.json", "[1", None),
        ("tokenizer_config.json", "[]", None),
        ("config.json", "{}", None),
    ],
)
def test_a_chat_template_is_read_and_written(
    file: str, content: str, template: str | None, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    assert read_chat_template(str(tmp_path)) == template
    if template is not None:
        model = build(CASES[0], tmp_path)
        save_transformers(tmp_path / "new", model, WINDOWS, TextTokenizer(), template)
        read = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
        assert read.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"


def test_a_tokenizer_of_bytes_has_the_tokens_of_the_model(tmp_path: Path) -> None:
    save_transformers(tmp_path, build(CASES[1], tmp_path), WINDOWS, TextTokenizer())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(TEXT)["input_ids"] == list(TEXT.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    assert tokenizer.eos_token_id == TextTokenizer().end


class Hub(BaseHTTPRequestHandler):
    """Enough of the hub to create a repository and to commit small files."""

    commits: list[str]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        answer: dict[str, Any] = {"url": f"http://{self.headers['Host']}/me/decoder", "id": "me/decoder"}
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]}
        elif "/commit/" in self.path:
            self.commits.append(body)
            answer = {"commitUrl": f"{answer['url']}/commit/0", "commitOid": "0", "success": True}
        content = json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("Handler", (Hub,), {"commits": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield handler
    server.shutdown()
    server.server_close()


def test_a_folder_is_pushed_to_the_hub(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "smollm3"}')
    check_hub("me/decoder")
    assert push(tmp_path, "me/decoder", "").endswith("/me/decoder")
    (commit,) = hub.commits
    assert '"path": "config.json"' in commit or '"path":"config.json"' in commit


def test_a_hub_that_refuses_is_reported(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hub.status = 403
    with pytest.raises(
        InputError, match=r"--push-to-hub me/decoder failed: .*403.* Check that the token may"
    ):
        push(tmp_path, "me/decoder", "")
    with pytest.raises(InputError, match="needs the folder absent, which is left out: layer 2"):
        push(tmp_path / "absent", "me/decoder", "layer 2")


@pytest.mark.parametrize("name", ["decoder", "a/b/c", "me/", "me/a b", "me/-a", "me/a..b"])
def test_names_of_no_repository_are_refused(name: str, cli: Any) -> None:
    code, _, error = cli("export", "--best", "--push-to-hub", name)
    assert code == 2
    assert (
        f"--push-to-hub takes OWNER/NAME of a repository of Hugging Face, such as me/decoder; got {name}"
        in error
    )


def test_a_token_is_needed(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    code, _, error = cli("export", "--best", "--push-to-hub", "me/decoder")
    assert code == 2
    assert "--push-to-hub me/decoder needs a token of Hugging Face; log in with `hf auth login`" in error
