"""`automl cost`: costs of a placement in a model."""

import json

import pytest

from attention import Spec, decomposed
from automl.costs import time_ratio
from tests.helpers.automl_cases import Cli

MODEL = ("cost", "torchvision:resnet18", "--size", "32", "--batch", "2")


def test_costs_match_the_formula(cli: Cli) -> None:
    code, out, err = cli(
        *MODEL, "--place", "stage2.block2=decomposed:heads=8,normalisation=scaling", "--json"
    )
    assert code == 0, err
    costs = json.loads(out)
    plain, placed = costs["plain"], costs["placement"]
    spec = Spec("decomposed", {"heads": 8, "normalisation": "scaling"})
    formula = decomposed.cost(128, (4, 4), **spec.options)
    assert placed["parameters"] - plain["parameters"] == formula.parameters
    assert placed["macs"] - plain["macs"] == formula.macs
    assert placed["activations"] > plain["activations"]
    assert plain["step"] > 0
    assert placed["step_low"] <= (placed["step_ratio"] or 1.0) <= placed["step_high"]
    assert plain["parameters"] == 11_689_512  # documented by torchvision
    rows = [line.split()[0] for line in err.splitlines() if line[:1].isalpha()]
    assert rows[:2] == ["plain", "placement"]


def test_without_a_placement_there_is_one_row(cli: Cli) -> None:
    code, out, _ = cli(*MODEL, "--json")
    assert (code, list(json.loads(out))) == (0, ["plain"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--place", "stage9=ssa"), "unknown site of ResNet 'stage9'"),
        (("--size", "0"), "--size must lie between 1 and 4096"),
        (
            ("--task", "stereo"),
            "is a model of the task image-classification or detection or segmentation; got",
        ),
        (("--task", "detektion"), "unknown task 'detektion'; choose from code-retrieval, detection"),
        (("--task", "detection", "--size", "100"), "--size must be a multiple of 32 for a detector; got 100"),
        (("--batch", "1"), "--batch must be between 2"),
    ],
)
def test_invalid_argument_is_reported(arguments: tuple[str, ...], message: str, cli: Cli) -> None:
    code, _, err = cli(*MODEL, *arguments)
    assert code == 2
    assert message in err


MODELS = {
    "larnn": ("larnn", "--option", "hidden=24", "--option", "heads=4", "--size", "6"),
    "selfattention": ("selfattention", "--size", "16"),
    "unet": ("xresnet18", "--task", "segmentation", "--size", "64", "--option", "width=0.125"),
}
TEXT = (
    "a text of 16 tokens from a vocabulary of 10,000",
    "a sequence of 6 steps with 9 channels",
    "each of one of 90 classes",
)


@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_task_have_costs_and_sites(
    model: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_ratio, "COMPARING", 0.0)
    code, out, err = cli("sites", *MODELS[model])
    assert code == 0, err
    names = [
        line.split()[0] for line in out.splitlines()[1:] if "/" in line and "x" not in line.split()[0][:1]
    ]
    assert names
    code, out, err = cli("cost", *MODELS[model], "--place", f"{names[0]}=conv1x1", "--batch", "2", "--json")
    assert code == 0, err
    costs = json.loads(out)
    assert costs["placement"]["parameters"] > costs["plain"]["parameters"]
    assert min(value for cost in costs.values() for value in cost.values() if value is not None) > 0
    assert any(text in err for text in TEXT)
