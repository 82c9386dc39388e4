"""Predicted costs compared with the costs of the built model."""

import pytest
import torch

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from automl.config.nouns import Limits, Terms
from automl.costs.forecast import MIN_TRIALS, Forecast, check_limits, predict_cost
from automl.task import open_task
from automl.tasks.language_modelling import VALUE as BYTES
from automl.tasks.language_modelling import LanguageData, LanguageModel
from automl.tasks.language_modelling.model import DECODERS
from automl.tasks.language_modelling.space import mixer
from backbones import insert
from backbones.cost import count_macs
from search.config import TrialConfig
from search.record import TrialRecord
from tests.helpers.automl_cases import EVERY_ATTENTION, HERE, SITES, opened, tiny

PLACEMENTS = {
    "plain": {},
    **{name: {"stage2.block1": Spec(name)} for name in ATTENTIONS},
    "every attention": EVERY_ATTENTION,
}


@pytest.mark.parametrize("case", PLACEMENTS)
def test_parameters_and_macs_are_exact(case: str) -> None:
    config = tiny(model={"placement": PLACEMENTS[case]})
    task = opened(model={"placement": PLACEMENTS[case]})
    model = task.model().eval()
    predicted = predict_cost(config, HERE)
    assert predicted.params == sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        assert predicted.macs == count_macs(model, task.example(1))


@pytest.mark.parametrize("kind", ["conv1x1", "multihead"])
def test_model_with_a_replaced_mixer_is_counted(kind: str) -> None:
    options = {"embed_dim": 24, "depth": 3, "heads": 3, "patch_size": 8}
    placement = {"stage1.block1.mixer": Spec(kind), "stage1.block2": Spec("ssa")}
    config = tiny(model={"backbone": "vit", "options": options, "placement": placement})
    model = open_task(config, HERE).model().eval()
    predicted = predict_cost(config, HERE)
    assert predicted.params == sum(parameter.numel() for parameter in model.parameters())
    assert predicted.macs == count_macs(model, torch.zeros(1, 3, 24, 24))


def test_costs_are_predicted_at_once_or_after_a_few_trials() -> None:
    predicted = predict_cost(tiny(), HERE)
    forecast = Forecast(Terms(max_params=str(2 * predicted.params), max_macs=str(predicted.macs)))
    assert forecast(tiny()) == pytest.approx({"params": -0.5, "macs": 0.0})
    assert forecast(tiny(model={"placement": EVERY_ATTENTION}))["macs"] > 0
    forecast = Forecast(Terms(max_latency_ms=20, max_memory="1GB"))
    configs = [
        tiny(model={"placement": {site: Spec("multihead") for site in SITES[:n]}}, training={"batch_size": b})
        for n, b in [(0, 32), (1, 64), (2, 32), (3, 128), (2, 64), (1, 32)]
    ]

    def latency(config: TrialConfig) -> float:
        return 4.0 + 3 * len(config.model.placement)

    def memory(config: TrialConfig) -> float:
        return 1e7 + 5e6 * config.training.batch_size

    for number, config in enumerate(configs):
        assert (forecast(config) == {}) is (number < MIN_TRIALS)
        forecast.on_epoch_end(make_record(number, config, latency(config), memory(config)))
        forecast.on_trial_end(make_record(number, config, 1e9, 1e9))  # No trial counts twice.
    more = tiny(
        model={"placement": {site: Spec("multihead") for site in SITES[:6]}}, training={"batch_size": 256}
    )
    predicted = forecast(more)
    assert predicted["latency"] > 0
    assert predicted["memory"] > 0
    assert forecast(configs[0])["latency"] < 0
    assert forecast(tiny(model={"options": {"width": 0.5}})) == {}, (
        "nothing was measured for another backbone"
    )


def make_record(number: int, config: TrialConfig, latency: float, memory: float) -> TrialRecord:
    return TrialRecord(number, config, profile={"latency": latency, "memory": memory})


def test_limits_that_nothing_keeps_are_rejected() -> None:
    least = predict_cost(tiny(), HERE).params
    configs = [tiny(model={"placement": EVERY_ATTENTION}), tiny()]
    check_limits(configs, Limits(params=least), HERE)
    check_limits(configs, Limits(latency=0.001), HERE)
    for option in ("params", "macs"):
        message = rf"nothing in this space meets --max-{option} 1k: the smallest of 2"
        with pytest.raises(InputError, match=message):
            check_limits(configs, Limits(**{option: 1000.0}), HERE)


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


def test_the_cache_is_limited_where_there_is_one() -> None:
    assert TrialConfig().cache_bytes() == 0
    limit = configured("full", "linear").cache_bytes()
    forecast = Forecast(Terms(max_cache=f"{limit}"))
    assert forecast(configured("full", "linear"))["cache"] == 0
    assert forecast(configured("full", "full"))["cache"] > 0
    assert forecast(configured("full", "linear", context=2 * CONTEXT))["cache"] > 0
