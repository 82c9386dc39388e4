"""Reading, writing and checking of attention specs."""

import json
from collections.abc import Mapping

import pytest

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from tests.helpers.attention_cases import every_spec, formula


@every_spec
def test_json_round_trip(spec: Spec) -> None:
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_json_format() -> None:
    spec = Spec("ssa", {"ks": 3, "order": "xxt-first"})
    assert spec.to_json() == {"type": "ssa", "ks": 3, "order": "xxt-first"}
    assert Spec.from_json("ssa") == Spec.from_json({"type": "ssa"}) == Spec("ssa")
    assert str(spec) == "ssa(ks=3,order=xxt-first)"
    assert str(Spec("ssa")) == "ssa"


@pytest.mark.parametrize("name", ATTENTIONS)
def test_cost_accepts_the_options_of_its_module(name: str) -> None:
    defaults = {key: option.default for key, option in ATTENTIONS[name].options.items()}
    assert formula(Spec(name, defaults), 16, 64) == formula(Spec(name), 16, 64)
    assert repr(Spec(name, defaults).build(16)) == repr(Spec(name).build(16))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sagn", "unknown attention 'sagn'; choose from conv1x1, .*Did you mean 'sagan'"),
        ({"type": "ssa", "oder": "auto"}, "unknown option of attention 'ssa' 'oder'; .*Did you mean 'order'"),
        ({"ks": 3}, "an attention is a name or .*got {'ks': 3}"),
        ({"type": "ssa", "ks": "3"}, "option 'ks' of 'ssa' must be int; got '3'"),
        ({"type": "decomposed", "key_channels": "8"}, "'key_channels' .*must be int or null; got '8'"),
    ],
)
def test_invalid_json_is_rejected(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Spec.from_json(value)


@pytest.mark.parametrize(
    ("type", "options", "message"),
    [
        ("ssa", {"ks": 2}, "ks must be an odd number .*got 2"),
        ("multihead", {"heads": 3}, "heads must divide .*16 channels, 3 heads"),
        ("shortconv", {"kernel": 0}, "kernel must be at least 1; got 0"),
        ("sliding", {"window": 0}, "window must be at least 1; got 0"),
        ("decomposed", {"heads": 4, "key_channels": 8, "value_channels": 6}, "heads must divide .*6 value"),
    ],
)
def test_invalid_options_are_rejected(type: str, options: Mapping[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Spec(type, options).build(16)  # type: ignore[arg-type]
