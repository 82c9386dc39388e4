"""The decoder of causal language models: parity with Llama's code, causality, sites, checks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from automl.tasks.language_modelling import gpt
from automl.tasks.language_modelling.deploy import LENGTHS, READ, lengthen
from automl.tasks.language_modelling.gpt import Decoder
from automl.tasks.language_modelling.model import DECODERS, check_decoder
from automl.tasks.language_modelling.space import mixer
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


def test_a_module_without_a_state_cannot_decode() -> None:
    model = insert(build(), {"block1": Spec("conv1x1"), "block2.mixer": Spec("conv1x1")}, TOKENS)
    assert isinstance(model, Decoder)
    with pytest.raises(InputError, match=r"'block1', 'block2\.mixer'"):
        model.prefill(TOKENS)


def test_new_weights_are_gpt2s() -> None:
    model = build(width=128, depth=8)
    stds = {name: p.std().item() for name, p in model.named_parameters() if p.ndim > 1}
    expected = {name: 0.005 if "out_proj" in name else 0.02 for name in stds}
    assert stds == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 20, "heads": 4}, "even multiple of heads.*width=20, heads=4. Choose width=24"),
        ({"depth": 0}, "depth of a decoder must be at least 1; got 0"),
        ({"mlp": -8}, "mlp of a decoder must be at least 0; got -8"),
        ({"dropout": 1.0}, "below 1; got 1.0"),
        ({"head": 2}, "Did you mean 'heads'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_decoder("gpt", options)


def test_states_of_long_contexts_grow_where_a_layer_reads_all_tokens() -> None:
    placement = {
        "block1.mixer": mixer("sliding", heads=2, window=8),
        "block2.mixer": mixer("linear", heads=2, window=0),
    }
    model = insert(
        Decoder(7, 16, depth=3, width=8, heads=2), placement, torch.zeros(2, 16, dtype=torch.int64)
    )
    assert isinstance(model, Decoder)
    before, after = (model.prefill(torch.zeros(1, n, dtype=torch.int64))[1] for n in (READ // 2, READ))
    longer = [lengthen(old, new, LENGTHS[1]) for old, new in zip(before, after, strict=True)]
    assert [[t.shape for t in state] for state in longer[:2]] == [
        [t.shape for t in state] for state in after[:2]
    ]
    assert {t.shape[2] for t in longer[2]} == {LENGTHS[1]}
