"""Sites of Hugging Face's transformers, whose attention takes a keyword and returns a tuple."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attention import Spec
from backbones import call, insert, sites

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "max_position_embeddings": 32}
WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def _qwen3() -> nn.Module:
    config = transformers.Qwen3Config(**SMALL, **WIDTH, num_key_value_heads=2, head_dim=8)
    return transformers.Qwen3ForCausalLM(config)


def _gpt2() -> nn.Module:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SMALL, **ends, n_embd=32, n_layer=2, n_head=4)
    )


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL, **WIDTH))


# The paths of the stem, and in each block those of its mixer, attention branch and MLP branch.
MODELS: dict[str, tuple[Callable[[], nn.Module], str, str, tuple[str, str, str]]] = {
    "Qwen3": (_qwen3, "model.embed_tokens", "model.layers", ("self_attn", "self_attn", "mlp")),
    "GPT2": (_gpt2, "transformer.drop", "transformer.h", ("attn", "attn", "mlp")),
    "BERT": (
        _bert,
        "embeddings",
        "encoder.layer",
        ("attention.self", "attention.output.dropout", "output.dropout"),
    ),
}
IDS = torch.arange(14).view(2, 7)
CAUSAL = Spec("multihead", {"causal": True})  # Two of the models are causal.
EXAMPLE = {"input_ids": IDS}  # Causal modules do not read a mask, see backbones/influence.py.


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def _new(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind][0]().eval()


def _output(model: nn.Module) -> Tensor:
    return call(model, EXAMPLE)[0]


def test_sites_of_each_block(kind: str) -> None:
    """Logits of the vocabulary are no site."""
    _, stem, blocks, inside = MODELS[kind]
    labels = ("mixer", "attention.branch", "mlp.branch")
    expected = [("stem", stem, False)]
    for i in (0, 1):
        name = f"stage1.block{i + 1}"
        parts = zip(labels, inside, strict=True)
        expected += [(f"{name}.{label}", f"{blocks}.{i}.{path}", label == "mixer") for label, path in parts]
        expected += [(name, f"{blocks}.{i}", False)]
    known = sites(_new(kind), EXAMPLE)
    assert [(site.name, site.path, site.replaces) for site in known] == expected
    assert {(site.channels, site.resolution, site.layout) for site in known} == {(32, (7,), "B*C")}
    assert {site.tuple_length for site in known if site.replaces} == {2}


def test_new_modules_change_no_output(kind: str) -> None:
    model = _new(kind)
    before, known = _output(model), sites(model, EXAMPLE)
    insert(model, {site.name: CAUSAL for site in known if not site.replaces}, EXAMPLE)
    assert torch.equal(_output(model), before)
    assert sites(model, EXAMPLE) == known


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_mixers_are_replaced(kind: str, implementation: str) -> None:
    """With `eager`, the replaced attention returned its weights, which the model did not use."""
    model = _new(kind)
    model.set_attn_implementation(implementation)
    before, known = _output(model), sites(model, EXAMPLE)
    mixers = [site for site in known if site.replaces]
    insert(model, {site.name: CAUSAL for site in mixers}, EXAMPLE)
    assert len(mixers) == 2
    assert sites(model, EXAMPLE) == known
    assert not torch.equal(_output(model), before)
    _output(model).square().sum().backward()
    for site in mixers:
        attention = model.get_submodule(site.path).site_mixer
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attention.parameters())
