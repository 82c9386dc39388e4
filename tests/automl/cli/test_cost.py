"""`automl cost`: what a placement costs in a model."""

import json
from collections.abc import Callable

import pytest

from attention import InputError, Spec
from automl.cli.cost import read_places

Cli = Callable[..., tuple[int, str, str]]

MODEL = ("cost", "torchvision:resnet18", "--size", "32", "--batch", "2")


def test_a_placement_costs_what_its_formula_says(cli: Cli) -> None:
    code, out, err = cli(
        *MODEL, "--place", "stage2.block2=decomposed:heads=8,normalisation=scaling", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    plain, placed = found["plain"], found["placement"]
    spec = Spec("decomposed", {"heads": 8, "normalisation": "scaling"})
    formula = spec.cost(128, 4 * 4)
    assert placed["parameters"] - plain["parameters"] == formula.parameters
    assert placed["macs"] - plain["macs"] == formula.macs
    assert placed["activations"] > plain["activations"]
    assert min(plain["step"], placed["step"]) > 0
    assert plain["parameters"] == 11_689_512  # as torchvision says
    rows = [line.split()[0] for line in err.splitlines() if line[:1].isalpha()]
    assert rows[:2] == ["plain", "placement"]


def test_without_a_placement_there_is_one_row(cli: Cli) -> None:
    code, out, _ = cli(*MODEL, "--json")
    assert (code, list(json.loads(out))) == (0, ["plain"])


def test_places_are_read() -> None:
    assert read_places([]) == {}
    assert read_places(["a.b=ssa", "c=decomposed:heads=2,normalisation=none"]) == {
        "a.b": Spec("ssa"),
        "c": Spec("decomposed", {"heads": 2, "normalisation": "none"}),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stem", "--place is SITE=TYPE"),
        ("=ssa", "--place is SITE=TYPE"),
        ("stem=", "--place is SITE=TYPE"),
        ("stem=ssa:ks", "options as name=value"),
        ("stem=sagn", "unknown attention 'sagn'.*Did you mean 'sagan'"),
        ("stem=ssa:heads=3", "unknown option of attention 'ssa' 'heads'"),
    ],
)
def test_mistakes_are_told(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_places([text])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--place", "stage9=ssa"), "unknown site of ResNet 'stage9'"),
        (("--size", "0"), "--size must lie between 1 and 4096"),
        (("--batch", "1"), "--batch must lie between 2"),
    ],
)
def test_the_command_tells_mistakes(arguments: tuple[str, ...], message: str, cli: Cli) -> None:
    code, _, err = cli(*MODEL, *arguments)
    assert code == 2
    assert message in err
