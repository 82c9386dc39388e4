"""Text encoders: parity with torch's transformer, padding, pooling, placements."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from attention.padding import padding
from automl.base.errors import InputError
from automl.tasks.code_retrieval.layers import EPSILON, Layer, Pooling
from automl.tasks.code_retrieval.model import ENCODERS, Encoder, TwoTowers, check_encoder
from backbones import insert, sites
from tests.helpers import others_slow

VOCABULARY, LENGTH = 50, 12
POOLS = ("weighted_mean", "mean", "max", "first", "bert")


def build(name: str, **options: Any) -> Encoder:
    torch.manual_seed(0)
    small = {"hidden": 16, "heads": 2, "intermediate": 32}
    chosen = {key: value for key, value in small.items() if key in ENCODERS[name].options}
    encoder = ENCODERS[name].build(vocabulary=VOCABULARY, length=LENGTH, **{**chosen, **options})
    assert isinstance(encoder, Encoder)
    return encoder.eval()


def texts(*lengths: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(max(1, *lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, VOCABULARY, mask.shape).where(mask, 0), mask


def test_a_layer_equals_torchs() -> None:
    torch.manual_seed(0)
    reference = nn.TransformerEncoderLayer(
        16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, layer_norm_eps=EPSILON
    )
    module = Layer(16, 2, 32, dropout=0.0)
    names = {
        "self_attn.in_proj_": "mixer.in_proj.",
        "self_attn.out_proj.": "mixer.out_proj.",
        "linear1.": "mlp.0.",
        "linear2.": "mlp.2.",
    }
    state = {}
    for key, value in reference.state_dict().items():
        for torch_name, name in names.items():
            key = key.replace(torch_name, name)
        state[key] = value + 0.1 * torch.randn_like(value)
    module.load_state_dict(state)
    for key, value in module.state_dict().items():
        for torch_name, name in names.items():
            key = key.replace(name, torch_name)
        reference.state_dict()[key].copy_(value)
    x = torch.randn(3, 7, 16)
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    with padding(mask):
        output = module(x)
    expected = reference.train()(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(output[mask], expected[mask])


@pytest.mark.parametrize("pooling", POOLS)
@pytest.mark.parametrize("name", ENCODERS)
def test_a_text_has_the_same_vector_with_any_padding(name: str, pooling: str) -> None:
    encoder = build(name, pooling=pooling)
    tokens, mask = texts(12, 5, 1, 0)
    together = encoder(tokens, mask)
    assert together.isfinite().all()
    assert (together[3] == 0).all() or pooling in ("first", "bert")
    for row, length in enumerate((12, 5, 1)):
        alone = encoder(tokens[row : row + 1, :length], mask[row : row + 1, :length])
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-4)
    tokens = tokens.where(mask, 7)  # The content of padding must not matter.
    torch.testing.assert_close(encoder(tokens, mask), together, atol=1e-5, rtol=1e-4)


def test_pooling_matches_its_definition() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(2, 4, 3), torch.tensor([[True, True, True, False], [True, False, False, False]])
    first = x[0, :3]
    assert torch.allclose(Pooling(3, "mean")(x, mask)[0], first.mean(0))
    assert torch.allclose(Pooling(3, "max")(x, mask)[0], first.amax(0))
    assert torch.equal(Pooling(3, "first")(x, mask)[0], first[0])
    weighted = Pooling(3, "weighted_mean")
    weights = (first @ weighted.weight.weight[0]).sigmoid()
    assert weighted.weight.bias is None
    assert torch.allclose(weighted(x, mask)[0], weights @ first / weights.sum(), atol=1e-6)
    with pytest.raises(InputError, match="pooling must be one of weighted_mean"):
        Pooling(3, "sum")  # type: ignore[arg-type]


def towers(name: str) -> TwoTowers:
    return TwoTowers(build(name), build(name)).eval()


def example(count: int = 3) -> dict[str, Any]:
    return {"code": [texts(*[9] * count)]}


def test_sites_are_after_convolutions_and_at_mixers() -> None:
    sites_by_name = {site.name: site for site in sites(towers("cnn-selfattention"), example())}
    assert {"stem", "stage1.block1", "stage1.block2.mixer", "stage1.block3.mixer"} <= set(sites_by_name)
    assert (sites_by_name["stem"].path, sites_by_name["stage1.block1"].path) == (
        "code.layers.0",
        "code.layers.1",
    )
    assert sites_by_name["stage1.block2.mixer"].replaces
    assert all(site.path.startswith("code.") and site.channels == 16 for site in sites_by_name.values())
    assert {site.name.partition(".")[0] for site in sites(towers("bow"), example())} == {"code"}


PLACED = [(name, kind) for i, kind in enumerate(ATTENTIONS) for name in [list(ENCODERS)[i % len(ENCODERS)]]]


@pytest.mark.parametrize(("name", "kind"), others_slow(product(ENCODERS, ATTENTIONS), *PLACED, rows=True))
def test_new_modules_are_the_identity_and_ignore_padding(name: str, kind: str) -> None:
    plain = towers(name)
    before = plain(**example())[1]
    known = sites(plain, example())
    for site in {known[0], known[-1]}:
        model = insert(towers(name), {site.name: Spec(kind)}, example())
        after = model(**example())[1]
        assert site.replaces or torch.equal(before, after)
        for module in model.modules():
            if getattr(module, "site", ""):
                nn.init.ones_(module.gamma)  # type: ignore[arg-type]
        tokens, mask = texts(9, 4, 1)
        together = model(code=[(tokens, mask)])[1]
        assert together is not None
        for row, length in enumerate((9, 4, 1)):
            alone = model(code=[(tokens[row : row + 1, :length], mask[row : row + 1, :length])])[1]
            torch.testing.assert_close(alone[0], together[row], atol=1e-4, rtol=1e-3)


def test_batches_of_texts_equal_all_at_once() -> None:
    model = towers("selfattention")
    tokens, mask = texts(9, 9, 9, 9)
    batches = [(tokens[:1], mask[:1]), (tokens[1:], mask[1:])]
    query, code = model(query=batches, code=batches)
    torch.testing.assert_close(query, model.query(tokens, mask))
    torch.testing.assert_close(code, model.code(tokens, mask))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("selfatention", {}, "Did you mean 'selfattention'"),
        ("bow", {"heads": 4}, "unknown option of text encoder 'bow' 'heads'"),
        ("selfattention", {"heads": 7}, "hidden must be a multiple of heads"),
        ("selfattention", {"hidden": 4}, "hidden of a text encoder must lie between 8"),
        ("cnn", {"dropout": 1.0}, "dropout of a text encoder must be at least 0 and below 1"),
        ("cnn", {"pooling": "sum"}, "choose from bert, first, max, mean, weighted_mean"),
        ("cnn", {"cnn_activation": "sine"}, "choose from elu, gelu, .*tanh"),
        ("cnn", {"channels": "128"}, "channels .* one number for each of 3 convolutions; got '128'"),
        ("cnn", {"channels": "128,128,128"}, "channels .* numbers such as 128-128; got"),
        ("cnn", {"channels": "128-128-4"}, "channels .* between 8 and 4096 each; got"),
        ("cnn", {"kernels": "8-8-100"}, "kernels .* between 1 and 99 each; got"),
        ("cnn", {"kernels": 8}, "must be str; got 8"),
        ("cnn", {"channels": "64-64-128"}, "residual connections need one width .* residual=none"),
        ("cnn-selfattention", {"channels": "64-64"}, "last width of channels must be hidden"),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_encoder(name, options)
