"""`automl cost`: costs of a placement in a model."""

import json
import random
from itertools import chain, cycle

import pytest
import torch
from torch import nn

from attention import Spec, decomposed
from automl.base.errors import InputError
from automl.cli.tables import read_placement
from automl.costs import time_ratio
from automl.costs.profile import measure_costs
from automl.task.subject import Subject
from backbones.example import sum_outputs
from tests.helpers.automl_cases import HERE, Cli

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


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_noisy_clock_gives_no_ratio(noise: float, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the interval contains the true ratio. With much noise none is printed as a number."""
    generator, now = random.Random(1), iter(range(10**6))
    truth = chain([1.0, 1.0], cycle([1.0, 1.05, 1.05, 1.0]))
    monkeypatch.setattr(
        time_ratio, "seconds", lambda run, runtime: next(truth) * generator.lognormvariate(0, noise)
    )
    monkeypatch.setattr(time_ratio, "elapsed", lambda runtime: next(now))
    _, out, err = cli(*MODEL, "--place", "stage1.block1=conv1x1", "--json")
    placed = json.loads(out)["placement"]
    row = next(line for line in err.splitlines() if line.startswith("placement"))
    if noise:
        assert (placed["step"], placed["step_ratio"]) == (None, None)
        assert row.endswith("not resolved")
        assert "step time not resolved while the machine is busy (95 % interval of its ratio: " in err
    else:
        assert row.endswith("ms 1.05x")
        assert "step time: 95 % interval of its ratio: 1.05 to 1.05" in err


def test_a_larger_model_is_never_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with the real clock, whatever else runs on this machine."""
    monkeypatch.setattr(time_ratio, "COMPARING", 0.0)
    subject = Subject(
        name="line",
        build=nn.Identity,
        example=lambda n: torch.zeros(n, 256),
        loss=sum_outputs,
        description="",
    )
    for _ in range(5):
        models = {str(n): nn.Sequential(*(nn.Linear(256, 256) for _ in range(n))) for n in (4, 12)}
        placed = measure_costs(models, subject, 64, HERE)["12"]
        assert (placed.step_ratio or placed.step_high) > 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stem", "--place must be SITE=TYPE"),
        ("stem=", "--place must be SITE=TYPE"),
        ("stem=ssa:ks", "takes TYPE or TYPE:option=value"),
    ],
)
def test_invalid_placement_is_rejected(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_placement([text])


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


def test_costs_of_a_published_model(cli: Cli) -> None:
    """ViT-Ti with 168 pixels and patches of 12 has 5.5 million parameters."""
    code, out, _ = cli("cost", "vit", "--size", "168", "--option", "patch_size=12", "--batch", "2", "--json")
    assert code == 0
    assert 5e6 < json.loads(out)["plain"]["parameters"] < 6e6
    code, _, err = cli("cost", "vit", "--option", "patch=12")
    assert code == 2
    assert "unknown option of backbone 'vit' 'patch'" in err


def test_too_small_stereo_pairs_are_rejected(cli: Cli) -> None:
    code, _, err = cli("cost", "psmnet", "--size", "32", "--option", "pool=8")
    assert (code, "--size must be a multiple of 16 from 96 for psmnet; got 32" in err) == (2, True)
