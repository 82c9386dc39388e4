"""Text encoders: parity with torch's transformer, padding, pooling, placements."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
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


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(InputError, match="hidden must be a multiple of heads"):
        check_encoder("selfattention", {"heads": 7})
