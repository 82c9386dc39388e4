"""Configurations of a space or a search, with values set by the user."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention import Spec
from automl.base.errors import InputError
from automl.search.configuration import config_of_space, config_of_trial, read_settings, set_values
from search.config import TASKS, TrialConfig
from search.space import SPACES, draw_randomly
from tests.helpers import others_slow
from tests.helpers.confirm_cases import RECORDS, fake_search


@pytest.mark.parametrize(
    "name", others_slow([n for n in SPACES if n != "sceneflow"], *(n for n in SPACES if n != "resnext101-da"))
)
def test_without_settings_it_is_the_baseline_of_the_space(name: str) -> None:
    space = SPACES[name]
    config, drawn = config_of_space(space, {})
    _, baseline = next(draw_randomly(space, 1, first=space.baseline))
    assert baseline is not None
    assert (config, drawn) == (baseline, {})


def test_parameters_of_a_space_are_set_or_drawn() -> None:
    config, drawn = config_of_space(
        SPACES["ucihar"], {"backbone": "larnn", "heads": "24", "learning_rate": "0.005"}
    )
    assert config.model.backbone == "larnn"
    assert config.model.options["heads"] == 24
    assert config.training.learning_rate == 0.005
    assert config.model.options["window"] > 0, "what the baseline lacks is the published one's"
    assert drawn == {}
    config, _ = config_of_space(SPACES["codesearch"], {"shared": "False", "encoder": "cnn"})
    assert (config.model.shared, config.model.backbone) == (False, "cnn")  # type: ignore[attr-defined]
    config, _ = config_of_space(SPACES["digits"], {"modules": "1", "type1": "decomposed"})
    (spec,) = config.model.placement.values()
    assert spec.type == "decomposed"
    free_answers = [{"modules": 3, "type1": "ssa"}]
    space = replace(SPACES["digits"], free=lambda: free_answers)
    configs = [config_of_space(space, {"modules": "3"}) for _ in range(2)]
    assert configs[0] == configs[1]
    config, drawn = configs[0]
    assert len(config.model.placement) == 3
    assert {"site2", "type3"} <= drawn.keys()


@pytest.mark.parametrize(
    ("space", "parameters", "message"),
    [
        ("ucihar", {"heads": "8"}, "does not ask for 'heads' .*; it asks for backbone one of larnn, bilstm"),
        ("ucihar", {"learning_rate": "1"}, r"--set learning_rate: space 'ucihar' takes \S+ to \S+; got '1'"),
        ("ucihar", {"backbone": "lstm"}, "takes one of larnn, bilstm; got 'lstm'"),
    ],
)
def test_parameters_that_cannot_be(space: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config_of_space(SPACES[space], parameters)


MODELS = {"sequence-classification": {"backbone": "larnn"}}  # of tasks that images' default does not fit


@pytest.mark.parametrize("task", [name for name, spec in TASKS.items() if spec.metrics])
def test_each_key_of_each_task_can_be_set(task: str) -> None:
    config = TrialConfig.from_json({"task": task, "model": MODELS.get(task, {})})
    values = {
        f"{part}.{key}": str(value)
        for part in ("data", "training")
        for key, value in config.to_json()[part].items()
        if key != "path"
    }
    assert set_values(config, values) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": "8"}, "--set heads: a parameter needs the space"),
        (
            {"training.epoch": "8"},
            "unknown key of the training .* 'epoch'; choose from .*Did you mean 'epochs'",
        ),
        ({"training.epochs": "many"}, "training.epochs must be int; got 'many'"),
        ({"model.options.widht": "1"}, "unknown option of backbone 'xresnet18' 'widht'.*'width'"),
        ({"model.placement.stage1": "sagn"}, "unknown attention 'sagn'.*'sagan'"),
    ],
)
def test_keys_that_cannot_be_set(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        set_values(TrialConfig(), values)


def test_settings_are_read_and_set() -> None:
    assert read_settings(["a=1", "b=c=d"]) == {"a": "1", "b": "c=d"}
    for texts, message in ((["a"], "must be KEY=VALUE"), (["a=1", "a=2"], "names 'a' twice")):
        with pytest.raises(InputError, match=message):
            read_settings(texts)
    config = set_values(
        TrialConfig(),
        {
            "model.options.depth": "2",
            "model.backbone": "vit",
            "model.placement.stage1.block1": "decomposed:heads=2,normalisation=scaling",
            "training.learning_rate": "1e-3",
            "training.epochs": "25",
            "training.flip": "none",
            "training.policy": "trivial",
            "data.size": "48",
            "seed": "3",
            "metric": "auc",
        },
    )
    assert (config.model.backbone, dict(config.model.options)) == ("vit", {"depth": 2})
    spec = Spec("decomposed", {"heads": 2, "normalisation": "scaling"})
    assert config.model.placement == {"stage1.block1": spec}
    assert (config.training.learning_rate, config.training.epochs) == (0.001, 25)
    assert (config.data.size, config.seed, config.metric) == (48, 3, "auc")  # type: ignore[attr-defined]
    assert TrialConfig.from_json(config.to_json()) == config


@pytest.mark.usefixtures("store")
def test_the_configuration_of_a_search(tmp_path: Path) -> None:
    fake_search(tmp_path / "searches")
    assert config_of_trial("mine", "searches") == RECORDS[1].config, "the best"
    assert config_of_trial("mine:0", "searches") == RECORDS[0].config
    with pytest.raises(InputError, match="has no trial '99'; its trials are 0, 1"):
        config_of_trial("mine:99", "searches")
    with pytest.raises(InputError, match="no search called 'yours'"):
        config_of_trial("yours", "searches")
