"""With inserted modules, no output depends on other examples of a batch, or on padding."""

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from attention.padding import padding
from automl.base.errors import InputError
from automl.tasks.code_retrieval.model import ENCODERS
from backbones import Example, insert, sites
from backbones.influence import SECOND

N, WORDS, WIDTH, SITE = 6, 20, 16, "stage1.block1"
TOKENS = torch.zeros(2, N, dtype=torch.long)
PADDED = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x))


class Model(nn.Module):
    """A tagger. It may be recurrent, over the second dimension or over the first."""

    def __init__(self, *, first: bool | None = None, moves: bool = False, masks: bool = False) -> None:
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(WORDS, WIDTH), Block(), nn.Linear(WIDTH, WORDS)
        self.lstm = None if first is None else nn.LSTM(WIDTH, WIDTH, batch_first=first)
        self.moves, self.masks = moves, masks

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(input_ids)
        if self.lstm is not None:
            x = self.lstm(x)[0]
        x = x.transpose(0, 1) if self.moves else x
        mask = attention_mask.bool() if self.masks and attention_mask is not None else None
        with padding(mask):
            x = self.block(x)
        return self.head(x.transpose(0, 1) if self.moves else x)


MIXERS = [Spec(name) for name, attention in ATTENTIONS.items() if attention.has_map or attention.loops]


@pytest.mark.parametrize("spec", MIXERS, ids=str)
def test_a_mask_that_modules_lack_is_refused(spec: Spec) -> None:
    with pytest.raises(InputError, match=rf"'{SITE}'.*padding.*attention\.padding\.padding\(mask\)"):
        insert(Model(), {SITE: spec}, PADDED)
    insert(Model(masks=True), {SITE: spec}, PADDED)
    insert(Model(), {SITE: "conv1x1"}, PADDED)
    insert(Model(), {SITE: spec}, {"input_ids": TOKENS})


def test_models_whose_batch_is_second_are_refused() -> None:
    batch_first, batch_second = Model(first=True), Model(first=False)
    tokens = torch.zeros(N, 2, dtype=torch.long)
    insert(batch_first, {SITE: Spec("multihead", {"causal": True})}, TOKENS)
    with pytest.raises(InputError, match=r"Model takes \(time, batch\).*batch_first=True"):
        insert(batch_second, {SITE: "multihead"}, tokens, known=sites(batch_first, tokens))


def test_sites_whose_first_dimension_is_no_batch_are_refused() -> None:
    """There are as many examples as tokens, so that the shape does not show it."""
    square = torch.zeros(N, N, dtype=torch.long)
    with pytest.raises(InputError, match=f"'{SITE}', {SECOND} would change the output.*other sites"):
        insert(Model(moves=True), {SITE: "multihead"}, square)
    insert(Model(moves=True), {SITE: "conv1x1"}, square)


@pytest.mark.parametrize("name", ENCODERS)
def test_text_encoders_pass_their_mask(name: str) -> None:
    example: Example = (torch.zeros(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.bool))
    model = ENCODERS[name].build(vocabulary=WORDS, length=16)
    listed = [site.name for site in sites(model, example) if not site.replaces]
    insert(model, dict.fromkeys(listed, Spec("multihead", {"heads": 1})), example)


@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_transformers_with_an_attention_mask(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": WORDS}
    config = getattr(transformers, f"{kind}Config")(**sizes, bos_token_id=0, eos_token_id=0)
    head = "ForMaskedLM" if kind == "Bert" else "LMHeadModel"
    model = getattr(transformers, kind + head)(config)
    spec = Spec("multihead", {"causal": kind == "GPT2"})
    site = next(site.name for site in sites(model, PADDED) if not site.replaces)
    with pytest.raises(InputError, match="padding"):  # GPT-2 sees that on the left.
        insert(model, {site: spec}, PADDED)
    if kind == "GPT2":
        shown = {"input_ids": TOKENS, "attention_mask": torch.tensor([[1] * N, [1] * (N - 2) + [0] * 2])}
        insert(getattr(transformers, kind + head)(config), {site: spec}, shown)
