"""Modules that replace the attention of a decoder take over its projections."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import Spec
from automl.base.errors import InputError
from automl.tasks.language_modelling.hugging_face import HuggingFaceDecoder
from automl.tasks.language_modelling.model import DECODERS, find_decoder
from automl.tasks.language_modelling.space import mixer
from backbones import insert, sites
from backbones.take_over import find_projections, load, load_with_projections, take_over
from tests.helpers import others_slow
from tests.helpers.tiny_decoders import (
    BASE,
    CONTEXT,
    DEPTH,
    DIFFERENT,
    HEADS,
    NORMS,
    POSITIONS,
    SIZES,
    VOCABULARY,
    WIDTH,
    save,
)

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(VOCABULARY, (2, CONTEXT), generator=torch.Generator().manual_seed(0))


def build(kind: str, folder: Path) -> nn.Module:
    torch.manual_seed(0)
    if kind == "gpt":
        sizes = {"depth": DEPTH, "width": WIDTH, "heads": HEADS}
        model = DECODERS[kind].build(vocabulary=VOCABULARY, length=CONTEXT, **sizes)
    else:
        name = f"hf:{save(transformers, kind, folder)}"
        model = find_decoder(name).build(vocabulary=VOCABULARY, length=CONTEXT)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def replaced(original: nn.Module, spec: Spec) -> nn.Module:
    model = copy.deepcopy(original)
    return insert(model, {f"block{i + 1}.mixer": spec for i in range(DEPTH)}, TOKENS)


@pytest.mark.parametrize("kind", ["gpt", "llama", "gpt2"])
def test_a_window_over_the_context_equals_full_attention(kind: str, tmp_path: Path) -> None:
    """Also with grouped queries, with biases and with another base of rotary positions."""
    original = build(kind, tmp_path)
    options = {"encoding": "none"} if kind == "gpt2" else {"base": BASE if kind == "llama" else None}
    model = replaced(original, mixer("sliding", heads=HEADS, window=CONTEXT, **options))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.zero_()
    load_with_projections(model, original, source="of the test")
    with torch.no_grad():
        expected = original(TOKENS)
        torch.testing.assert_close(model(TOKENS), expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def test_modules_without_projections_keep_their_weights(tmp_path: Path) -> None:
    original = build("llama", tmp_path)
    model = replaced(original, Spec("conv1x1"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert take_over(model, original) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def check_taken(original: nn.Module, spec: Spec) -> list[str]:
    """Check that windows over the context compute what the layers do whose projections they take over."""
    listed = [site.name for site in sites(original, TOKENS) if site.replaces]
    model = insert(copy.deepcopy(original), dict.fromkeys(listed, spec), TOKENS)
    if taken := take_over(model, original):
        model = insert(copy.deepcopy(original), dict.fromkeys(taken, spec), TOKENS)
        assert take_over(model, original) == taken
        with torch.no_grad():
            expected, actual = original(TOKENS), model.eval()(TOKENS)
        assert (actual - expected).abs().max() < 1e-3 * expected.abs().max()
    return taken


TAKEN = ("llama", "gpt2", *NORMS, *POSITIONS)


def window_of(original: str, **changes: Any) -> Spec:
    """Return a window over the context with the positions and norms of a model."""
    shape = find_decoder(original).shape()  # type: ignore[misc]
    options = {"encoding": shape.encoding, "base": shape.base, "norm": shape.norm, **changes}
    return mixer("sliding", heads=HEADS, window=CONTEXT, **options)


@pytest.mark.parametrize("kind", others_slow([*TAKEN, *DIFFERENT], "qwen3", "llama-yarn", "glm"))
def test_layers_that_compute_something_else_start_new(kind: str, tmp_path: Path) -> None:
    """Norms of queries and keys, and scaled positions, are taken over."""
    original = build(kind, tmp_path)
    expected = [f"block{i + 1}.mixer" for i in range(DEPTH)] if kind in TAKEN else []
    assert check_taken(original, window_of(f"hf:{tmp_path}")) == expected


@pytest.mark.parametrize(
    ("kind", "norm"),
    [
        ("qwen3", "none"),
        ("llama", "head"),
        pytest.param("olmo2", "head", marks=pytest.mark.slow("another case")),
    ],
)
def test_a_window_with_other_norms_starts_new(kind: str, norm: str, tmp_path: Path) -> None:
    assert check_taken(build(kind, tmp_path), window_of(f"hf:{tmp_path}", norm=norm)) == []


def test_norms_of_linear_attention_are_taken_over(tmp_path: Path) -> None:
    original = build("gemma3", tmp_path)
    model = replaced(original, mixer("linear", heads=HEADS, window=0, norm="head"))
    assert take_over(model, original) == ["block1.mixer", "block2.mixer"]
    own, taken = (model_.get_submodule("model.model.layers.1.self_attn") for model_ in (original, model))
    weights = dict(taken.site_mixer.norms.named_parameters())  # type: ignore[union-attr]
    torch.testing.assert_close(weights["key.weight"], 1 + own.get_parameter("k_norm.weight"))
    # Logits are scaled by 7 ** -0.5 instead of 4 ** -0.5.
    expected = (1 + own.get_parameter("q_norm.weight")) * (4 / 7) ** 0.5
    torch.testing.assert_close(weights["query.weight"], expected)


@pytest.mark.slow("runs large decoders")
@pytest.mark.parametrize(
    "kind", sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
)
def test_layers_of_every_decoder_are_taken_over_exactly_or_start_new(kind: str) -> None:
    """Every family that can be built small here."""
    sizes = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 24}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": WIDTH // HEADS}
    try:
        config = transformers.CONFIG_MAPPING[kind](**sizes)
        assert (config.hidden_size, config.num_hidden_layers) == (WIDTH, DEPTH)
        with torch.device("meta"):
            shapes = transformers.AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in shapes.parameters()) < 10**6
        own = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        lists = [path for path, m in own.named_modules() if isinstance(m, nn.ModuleList) and len(m) == DEPTH]
        original = HuggingFaceDecoder(own, lists[0], DEPTH, 0.3).eval()
        mixers = [site.name for site in sites(original, TOKENS) if site.replaces]
        insert(copy.deepcopy(original), dict.fromkeys(mixers, Spec("conv1x1")), TOKENS)
    except Exception as error:
        pytest.skip(f"cannot be built small, or has no attention to replace: {error}")
    for parameter in original.parameters():
        nn.init.normal_(parameter, std=0.3)
    rotary = getattr(config, "rope_parameters", None) or {}
    bases = {rotary.get("rope_theta"), *(v.get("rope_theta") for v in rotary.values() if isinstance(v, dict))}
    for base in bases - {None}:
        check_taken(original, mixer("sliding", heads=HEADS, window=CONTEXT, base=float(base)))
    check_taken(original, mixer("sliding", heads=HEADS, window=CONTEXT, encoding="none"))


@pytest.mark.parametrize("kind", others_slow(DIFFERENT, "glm", "codegen"))
def test_projections_of_another_computation_are_not_taken_over(kind: str, tmp_path: Path) -> None:
    original = build(kind, tmp_path)
    assert take_over(replaced(original, Spec("shortconv", {"causal": True})), original) == []


def test_weights_of_a_model_with_replaced_layers_are_refused(tmp_path: Path) -> None:
    original = build("gpt", tmp_path)
    hybrid = insert(copy.deepcopy(original), {"block1.mixer": Spec("linear", {"causal": True})}, TOKENS)
    message = r"lack 1 layers of .* replaces there, such as .*0\.mixer\. Name a trial"
    with pytest.raises(InputError, match=message):
        load(original, hybrid.state_dict(), classes=0, source="of the test")


@pytest.mark.parametrize("name", ["linear", "decomposed", "shortconv"])
def test_narrower_modules_take_spaced_channels(name: str, tmp_path: Path) -> None:
    original = build("llama", tmp_path)
    model = replaced(original, Spec(name, {"causal": True, **({} if name == "shortconv" else {"heads": 2})}))
    assert take_over(model, original) == ["block1.mixer", "block2.mixer"]
    own = find_projections(original.get_submodule("model.model.layers.1.self_attn"))
    module = model.get_submodule("model.model.layers.1.self_attn.site_mixer")
    layers = dict(module.named_children())
    value: Tensor
    if name != "decomposed":
        value, output, step = layers["in_proj"].weight.chunk(3)[2], layers["out_proj"].weight, 1  # type: ignore[operator]
    else:
        value, output, step = layers["value"].weight, layers["reprojection"].weight, 2  # type: ignore[assignment]
    assert torch.equal(value, own.v.weight[::step])
    if name != "decomposed":
        first = own.k if name == "shortconv" else own.q
        assert torch.equal(layers["in_proj"].weight.chunk(3)[0], first.weight)  # type: ignore[operator]
    assert torch.equal(output, own.o.weight[:, ::step])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gated-delta", "kda"])
def test_a_delta_rule_takes_over_projections_behind_an_identity(kind: str, tmp_path: Path) -> None:
    original = build("llama", tmp_path)
    model = replaced(original, Spec(kind, {"causal": True, "heads": 2}))
    assert take_over(model, original) == ["block1.mixer", "block2.mixer"]
    own = find_projections(original.get_submodule("model.model.layers.1.self_attn"))
    module = model.get_submodule("model.model.layers.1.self_attn.site_mixer")
    layers: dict[str, nn.Module] = dict(module.named_children())
    expected = torch.cat([own.q.weight, own.k.weight, own.v.weight])
    assert torch.equal(layers["in_proj_qkv"].weight, expected)  # type: ignore[arg-type]
    assert torch.equal(layers["out_proj"].weight, own.o.weight)  # type: ignore[arg-type]
    signal = torch.randn(1, expected.shape[0], 9)
    torch.testing.assert_close(layers["conv1d"](nn.functional.pad(signal, (3, 0))), signal)
