"""The memory of keys, values and states while decoding, and its limit."""

import pytest
import torch

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from automl.config.limits import Limits
from automl.config.nouns import Question, Terms
from automl.costs.forecast import Forecast, check_limits
from automl.tasks.language_modelling import LanguageData, LanguageModel
from automl.tasks.language_modelling.config import VALUE as BYTES
from automl.tasks.language_modelling.model import DECODERS
from automl.tasks.language_modelling.space import mixer
from backbones import insert
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE

CONTEXT = 24


def configured(*kinds: str, context: int = CONTEXT) -> TrialConfig:
    placement = {
        f"block{i}.mixer": mixer(kind, heads=2, window=4)
        for i, kind in enumerate(kinds, start=1)
        if kind != "full"
    }
    model = LanguageModel(options={"depth": len(kinds), "width": 16, "heads": 2}, placement=placement)
    data = LanguageData(context=8, decoding=context)
    return TrialConfig(task="language-modelling", data=data, model=model)


@pytest.mark.parametrize("kind", ["full", *(name for name, kind in ATTENTIONS.items() if kind.state)])
def test_the_formula_is_what_a_decoder_keeps(kind: str) -> None:
    config = configured(kind, "full")
    plain = DECODERS["gpt"].build(vocabulary=9, length=8, **config.model.options)
    tokens = torch.zeros(1, CONTEXT, dtype=torch.int64)
    model = insert(plain, config.model.placement, tokens)
    _, states = model.prefill(tokens)
    assert config.cache_bytes() == BYTES * sum(tensor.numel() for state in states for tensor in state)


def test_another_task_keeps_nothing() -> None:
    assert TrialConfig().cache_bytes() == 0


def test_a_forecast_rejects_what_keeps_too_much() -> None:
    limit = configured("full", "linear").cache_bytes()
    forecast = Forecast(Terms(max_cache=f"{limit}"))
    assert forecast(configured("full", "linear"))["cache"] == 0
    assert forecast(configured("full", "full"))["cache"] > 0
    assert forecast(configured("full", "linear", context=2 * CONTEXT))["cache"] > 0


def test_a_limit_that_no_placement_meets_names_the_cheapest() -> None:
    question = Question(space="hybrid", full=2, context=8192)
    draws = [config for config in question.open().configs(20) if "full" in config.model.kinds]
    with pytest.raises(
        InputError,
        match=r"no placement meets --max-cache 1k at 8,192 tokens: the cheapest has 4 of shortconv and 2 of "
        r"full attention and keeps [\d.]+M bytes. Raise the limit, or shorten --context",
    ):
        check_limits(draws, Limits(cache=1000), HERE)


def test_a_type_without_a_state_cannot_be_limited() -> None:
    config = configured("linear").change(model={"placement": {"block1.mixer": Spec("conv1x1")}})
    with pytest.raises(InputError, match="--max-cache needs the state of attention conv1x1, which has none"):
        config.cache_bytes()


def test_a_limit_is_for_language_models() -> None:
    with pytest.raises(InputError, match="--max-cache is for language models; leave it out for task image"):
        check_limits([TrialConfig()], Limits(cache=1e6), HERE)


@pytest.mark.parametrize("context", [1, -1])
def test_a_context_of_no_earlier_token_is_refused(context: int) -> None:
    with pytest.raises(InputError, match=f"--context, must be at least 2 tokens; got {context}"):
        configured("linear", context=context)
