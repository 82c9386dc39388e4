"""In a causal model, insertion refuses modules that see later positions, and accepts causal ones."""

import copy
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import ATTENTIONS, Gated, Spec
from automl.base.errors import InputError
from backbones import Example, call, insert, sites
from backbones.influence import is_causal, sees_later
from backbones.insertion import build_module
from backbones.site import Site, features
from tests.helpers import others_slow

N, WIDTH, WORDS = 24, 16, 20
TOKENS = torch.zeros(2, N, dtype=torch.long)
CAUSAL = [
    Spec("conv1x1"),
    *(Spec(n, {"causal": True}) for n, a in ATTENTIONS.items() if "causal" in a.options),
]


class Mix(nn.Module):
    """Multi-head self-attention, as a GPT or a BERT has it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.qkv, self.out = causal, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Mix(causal)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU())
        self.down, self.dropout = nn.Linear(32, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(self.mlp(self.norm2(x))))


class Transformer(nn.Module):
    """A small GPT with tied embeddings, or a small BERT."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(N, WIDTH))
        self.segments = nn.Embedding(1, WIDTH)  # It takes no tokens.
        self.blocks = nn.ModuleList(Block(causal) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions + self.segments.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Prefixed(Transformer):
    """A learned token stands before the others, and its output is left out."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.positions[:1].expand(len(tokens), 1, -1), self.words(tokens)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 1:])


class Pooled(Transformer):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).mean(1)


class Recurrent(nn.Module):
    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 8, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes))


def qwen3() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=WORDS, **layers, **sizes))


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 32}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=WORDS, **layers, **sizes))


def padded(end: str) -> Example:
    """Return tokens of which all but four, at one end, are padding."""
    mask = torch.ones_like(TOKENS)
    mask[:, slice(4, None) if end == "right" else slice(-4)] = 0
    return {"input_ids": TOKENS, "attention_mask": mask}


LANGUAGE_MODELS: dict[str, Callable[[], nn.Module]] = {"GPT": Transformer, "GPT-2": gpt2, "Qwen3": qwen3}
every_language_model = pytest.mark.parametrize("build", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
models_and_modules = pytest.mark.parametrize(
    ("model", "spec"),
    others_slow(
        product(LANGUAGE_MODELS, CAUSAL),
        *product(["GPT"], CAUSAL),
        *product(LANGUAGE_MODELS, CAUSAL[:2]),
        rows=True,
    ),
    ids=str,
)
MODELS: dict[str, tuple[Callable[[], nn.Module], Example, bool]] = {
    **{name: (build, TOKENS, True) for name, build in LANGUAGE_MODELS.items()},
    "keywords": (
        gpt2,
        {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS},
        True,
    ),
    **{f"GPT-2, padded {end}": (gpt2, padded(end), True) for end in ("left", "right")},
    **{f"BERT, padded {end}": (bert, padded(end), False) for end in ("left", "right")},
    "BERT": (bert, TOKENS, False),
    "GPT with a class token": (lambda: Prefixed(causal=True), TOKENS, True),
    "bidirectional": (lambda: Transformer(causal=False), TOKENS, False),
    "pooled": (Pooled, TOKENS, False),
    "LSTM": (Recurrent, torch.empty(2, N, 3), True),
    "bidirectional LSTM": (lambda: Recurrent(both=True), torch.empty(2, N, 3), False),
    "convolution": (lambda: nn.Conv1d(3, 3, 3, padding=1), torch.empty(2, 3, N), False),
    "causal convolution": (
        lambda: nn.Sequential(nn.ConstantPad1d((2, 0), 0), nn.Conv1d(3, 3, 3)),
        torch.empty(2, 3, N),
        True,
    ),
    "each token alone": (lambda: nn.Conv1d(3, 3, 1), torch.empty(2, 3, N), False),
    "image": (lambda: nn.Conv2d(3, 3, 3, padding=1), torch.empty(2, 3, 8, 8), False),
    "one token": (Recurrent, torch.empty(2, 1, 3), False),
    "without values": (lambda: Recurrent().to("meta"), torch.empty(2, N, 3), False),
}


@pytest.mark.parametrize(("build", "example", "expected"), MODELS.values(), ids=MODELS)
def test_models_that_are_causal(build: Callable[[], nn.Module], example: Example, expected: bool) -> None:
    assert is_causal(build(), example) == expected


@pytest.mark.parametrize("causal", [True, False])
def test_parameters_that_start_at_zero_hide_nothing(causal: bool) -> None:
    """With zeros, a head would return zeros, and blocks would process each token alone."""
    model = Transformer(causal)
    model.head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH))
    for block in model.blocks:
        nn.init.zeros_(block.attention.out.weight)
    assert is_causal(model, TOKENS) == causal


@every_language_model
def test_the_test_changes_nothing(build: Callable[[], nn.Module]) -> None:
    model = build().train()
    insert(model, {"stage1.block1.attention.branch": CAUSAL[-1]}, TOKENS)
    list(model.modules())[-1].eval()
    state, modes = (
        {k: v.clone() for k, v in model.state_dict().items()},
        [m.training for m in model.modules()],
    )
    before = torch.random.get_rng_state()
    assert is_causal(model, TOKENS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [m.training for m in model.modules()] == modes
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def _branches(model: nn.Module) -> list[str]:
    return [site.name for site in sites(model, TOKENS) if not site.replaces]


def _outputs(model: nn.Module, tokens: Tensor) -> Tensor:
    output = call(model, tokens)
    return output if isinstance(output, Tensor) else output.logits


@models_and_modules
@torch.no_grad()
def test_causal_modules_pass_exactly(model: str, spec: Spec) -> None:
    """Modules at all sites with open gates: outputs before each changed token are equal bit by bit."""
    model = LANGUAGE_MODELS[model]()
    insert(model, dict.fromkeys(_branches(model), spec), TOKENS).eval()
    for module in model.modules():
        if isinstance(module, Gated):
            module.gamma.fill_(1)
    tokens = torch.arange(2 * N).view(2, N) % WORDS
    changed = torch.stack([tokens] * N)  # (N, 2, N)
    for i in range(N):
        changed[i, :, i] = (changed[i, :, i] + 7) % WORDS
    same = torch.stack([tokens] * N).flatten(0, 1)  # of the same shape, so that sums have the same order
    y, z = (_outputs(model, each).unflatten(0, (N, 2)) for each in (same, changed.flatten(0, 1)))
    for i in range(N):
        assert torch.equal(z[i, :, :i], y[i, :, :i])
        assert not torch.equal(z[i, :, i:], y[i, :, i:])


OTHERS = [Spec(name) for name in ATTENTIONS if name != "conv1x1"]


@pytest.mark.parametrize(
    ("build", "spec"),
    others_slow(
        [*((Transformer, spec) for spec in OTHERS), (gpt2, Spec("ssa")), (qwen3, Spec("multihead"))],
        *((Transformer, spec) for spec in OTHERS[:3]),
        (gpt2, Spec("ssa")),
        rows=True,
    ),
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_other_modules_are_refused(build: Callable[[], nn.Module], spec: Spec) -> None:
    model = build()
    site = _branches(model)[-1]
    message = rf"model is causal.* by {spec.type} at site '{site}'\. Choose conv1x1, or"
    with pytest.raises(InputError, match=message):
        insert(model, {site: spec, _branches(model)[0]: CAUSAL[0]}, TOKENS)
    assert not any(isinstance(module, Gated) for module in model.modules())
    if build is Transformer:
        insert(Transformer(causal=False), {"stage1.block2": spec}, TOKENS)


def test_class_tokens_are_no_positions() -> None:
    site = next(site for site in sites(Prefixed(), TOKENS) if site.name == "stage1.block1")
    assert (site.class_tokens, site.resolution) == (1, (N + 1,))
    insert(Prefixed(), {site.name: CAUSAL[1]}, TOKENS)
    with pytest.raises(InputError, match="model is causal"):
        insert(Prefixed(), {site.name: "sagan"}, TOKENS)


class Reverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(2)


def test_a_site_where_positions_are_not_in_order_is_refused() -> None:
    """There even a causal module lets tokens see later ones."""

    def build() -> nn.Module:
        first = [Reverse(), nn.Conv1d(4, 4, 1), Reverse()]
        return nn.Sequential(*first, nn.ConstantPad1d((2, 0), 0), nn.Conv1d(4, 4, 3))

    example = torch.empty(2, 4, N)
    insert(build(), {"2": CAUSAL[1], "1": CAUSAL[0]}, example)
    message = r"causal, but not with modules at '1', although.*Choose other sites"
    with pytest.raises(InputError, match=message):
        insert(build(), {"1": CAUSAL[1]}, example)


@models_and_modules
def test_a_mixer_may_be_replaced_by_a_causal_module(model: str, spec: Spec) -> None:
    build = LANGUAGE_MODELS[model]
    assert is_causal(insert(build(), {"stage1.block1.mixer": spec}, TOKENS), TOKENS)
    if spec is CAUSAL[0]:
        with pytest.raises(InputError, match="model is causal"):
            insert(build(), {"stage1.block1.mixer": "multihead"}, TOKENS)


def test_the_control_may_replace_every_mixer() -> None:
    """Nothing mixes tokens any more, so nothing leaks."""
    mixers = {site.name: "conv1x1" for site in sites(Transformer(), TOKENS) if site.replaces}
    model = insert(Transformer(), mixers, TOKENS)
    assert not is_causal(model, TOKENS)
    assert is_causal(model, TOKENS, mixes=False)


USERS = """
import torch
from torch import nn

class Mean(nn.Module):
    causal = False

    def __init__(self, channels):
        super().__init__()
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: torch.Tensor):  # (B, C, N)
        count = torch.arange(1, x.shape[2] + 1, device=x.device)
        mean = x.cumsum(2) / count if self.causal else x.mean(2, keepdim=True).expand_as(x)
        return self.out(mean.mT).mT

class CausalMean(Mean):
    causal = True
"""


def test_modules_of_others_are_tested_too(tmp_path: Path) -> None:
    """Also if their last layer starts at zero, with which they return nothing."""
    (tmp_path / "mine.py").write_text(USERS)
    insert(Transformer(), {"stage1.block1": Spec(f"{tmp_path}/mine.py:CausalMean")}, TOKENS)
    for name in (f"{tmp_path}/mine.py:Mean", "timm:se"):
        with pytest.raises(InputError, match="model is causal"):
            insert(Transformer(), {"stage1.block1": Spec(name)}, TOKENS)
        insert(Transformer(causal=False), {"stage1.block1": Spec(name)}, TOKENS)


CHOOSING = """
import torch
from torch import nn
from torch.nn import functional as F

class TopK(nn.Module):
    layout, multiplies = "B*C", False

    def __init__(self, channels):
        super().__init__()
        self.score, self.out = nn.Linear(channels, 1), nn.Linear(channels, channels)

    def forward(self, x):
        score = self.score(x)
        chosen = torch.zeros_like(score).scatter(1, score.topk(max(1, x.shape[1] // 8), 1).indices, 1)
        return self.out(x) * chosen * score.sigmoid()

class TopKInTraining(TopK):
    def forward(self, x):
        return super().forward(x) if self.training else self.out(x) * (self.score(x) > 0)

class BatchNorm(nn.Module):
    multiplies = False

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return self.norm(x)

class CausalDropout(TopK):
    def forward(self, x):
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return F.dropout(self.out(mean), 0.5, self.training)

class CausalExponential(TopK):
    def forward(self, x):
        weights = (x.exp() @ x.exp().mT).tril()
        return weights @ self.out(x) / weights.sum(2, keepdim=True)

class CausalTransform(TopK):
    def forward(self, x):  # A convolution: of twice the length, it is not circular.
        kernel, length = self.out.weight[None], 2 * x.shape[1]
        y = torch.fft.rfft(x, n=length, dim=1) * torch.fft.rfft(kernel, n=length, dim=1)
        return torch.fft.irfft(y, n=length, dim=1)[:, : x.shape[1]]
"""


@pytest.mark.parametrize("seed", others_slow(range(3), 0))
@pytest.mark.parametrize("name", re.findall(r"^class (\w+)", CHOOSING, re.M))
def test_modules_are_refused_for_what_they_compute_not_by_chance(
    name: str, seed: int, tmp_path: Path
) -> None:
    """Changes of later positions make their scores win or lose, in evaluation and in training mode."""
    (tmp_path / "mine.py").write_text(CHOOSING)
    torch.manual_seed(seed)
    site = Site(name="block", path="block", channels=WIDTH, stride=1, resolution=(64,), layout="B*C")
    module = build_module(Spec(f"{tmp_path}/mine.py:{name}"), site)
    state = copy.deepcopy(module.state_dict())
    assert sees_later(module, features(site, 1).shape) == (not name.startswith("Causal"))
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("spec", CAUSAL, ids=str)
@pytest.mark.parametrize("length", others_slow([2, 24, 130], 24))
def test_causal_types_of_the_table_see_nothing_later(spec: Spec, length: int) -> None:
    site = Site(name="block", path="block", channels=WIDTH, stride=1, resolution=(length,), layout="B*C")
    assert not sees_later(build_module(spec, site), features(site, 1).shape)
