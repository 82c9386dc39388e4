"""The decoder of causal language models: parity with Llama's code, causality, sites, checks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attention import ATTENTIONS, Spec
from automl.tasks.language_modelling import gpt
from automl.tasks.language_modelling.gpt import Decoder
from automl.tasks.language_modelling.model import DECODERS
from backbones import insert

V, N, WIDTH, HEADS, DEPTH, HIDDEN = 20, 12, 16, 2, 2, 48
TOKENS = torch.randint(V, (2, N), generator=torch.Generator().manual_seed(0))


def build(**options: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"depth": DEPTH, "width": WIDTH, "heads": HEADS, **options}
    model = DECODERS["gpt"].build(vocabulary=V, length=N, **sizes)
    assert isinstance(model, Decoder)
    return model.eval()


def llama_weights(model: Decoder) -> dict[str, Tensor]:
    """Return the weights by the names of `transformers.LlamaForCausalLM`."""
    weights = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    names = {
        "norm1": ("input_layernorm",),
        "norm2": ("post_attention_layernorm",),
        "mixer.in_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mixer.out_proj": ("self_attn.o_proj",),
        "mlp.in_proj": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.out_proj": ("mlp.down_proj",),
    }
    for i, layer in enumerate(model.layers):
        for ours, theirs in names.items():
            parts = layer.get_parameter(f"{ours}.weight").chunk(len(theirs))
            weights |= {
                f"model.layers.{i}.{name}.weight": part for name, part in zip(theirs, parts, strict=True)
            }
    return weights


def test_logits_are_those_of_llama() -> None:
    transformers = pytest.importorskip("transformers")
    model = build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        tie_word_embeddings=True,
    )
    reference = transformers.LlamaForCausalLM(config).eval()
    left = reference.load_state_dict(llama_weights(model), strict=False)
    assert left.missing_keys == ["lm_head.weight"]
    assert not left.unexpected_keys
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), reference(TOKENS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [None, *(name for name, a in ATTENTIONS.items() if a.state)])
def test_decoding_equals_the_whole_forward_pass(name: str | None) -> None:
    model, counts = build(), [gpt.state(WIDTH, N)] * DEPTH
    if name is not None:
        model = insert(model, {"block2.mixer": Spec(name, {"causal": True})}, TOKENS)
        count = ATTENTIONS[name].state
        assert count is not None
        counts[1] = count(WIDTH, N, causal=True)
    assert isinstance(model, Decoder)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        expected = model(TOKENS)
        logits, states = model.prefill(TOKENS[:, :5])
        torch.testing.assert_close(logits, expected[:, :5], atol=1e-5, rtol=1e-5)
        for i in range(5, N):
            logits, states = model.step(TOKENS[:, i : i + 1], states, torch.tensor(i))
            torch.testing.assert_close(logits, expected[:, i : i + 1], atol=1e-5, rtol=1e-5)
    assert [sum(t[0].numel() for t in state) for state in states] == counts


def test_new_weights_are_gpt2s() -> None:
    model = build(width=128, depth=8)
    stds = {name: p.std().item() for name, p in model.named_parameters() if p.ndim > 1}
    expected = {name: 0.005 if "out_proj" in name else 0.02 for name in stds}
    assert stds == pytest.approx(expected, rel=0.05)
