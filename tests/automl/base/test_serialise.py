"""Conversion of dataclasses to JSON and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from filelock import Timeout

from attention import Spec
from automl.base.atomic import locked
from automl.base.errors import InputError
from automl.base.serialise import from_json, read_json, to_json, write_json
from search.config import TrialConfig


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a part needs a name")


@dataclass(frozen=True, kw_only=True)
class Whole:
    part: Part
    parts: list[Part] = field(default_factory=list)
    names: Sequence[str] = ()
    interval: tuple[float, float] | None = None
    pairs: list[tuple[float, float]] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    maybe: int | None = None
    other: Part | None = None
    colour: Colour | None = None
    anything: dict[str, Any] = field(default_factory=dict)
    spec: Spec | None = None
    config: TrialConfig | None = None


WHOLE = Whole(
    part=Part(name="x", colour=Colour.BLUE),
    parts=[Part(name="y")],
    names=["n"],
    interval=(1.0, 2.0),
    pairs=[(1.0, 0.5)],
    scores={"1": 0.5},
    kind="b",
    maybe=3,
    other=Part(name="z"),
    colour=Colour.RED,
    anything={"a": [1, {"b": None}]},
    spec=Spec("ssa", {"ks": 3}),
    config=TrialConfig(seed=3),
)


@pytest.mark.parametrize("value", [WHOLE, Whole(part=Part(name="x"), names=[])], ids=["all", "defaults"])
def test_round_trips(value: Whole) -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(value))), "whole") == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "whole: the value must be an object; got 3"),
        ({"part": {"nam": "x"}}, "unknown key 'part.nam'; known: name, colour. Did you mean 'name'?"),
        ({"part": {"name": "x", "colour": "green"}}, "part.colour must be one of red, blue; got 'green'"),
        ({"names": [1]}, "names[0] must be str; got 1"),
        ({"interval": [1]}, "interval must have 2 values; got [1]"),
        ({"scores": {"1": "x"}}, "scores at '1' must be float; got 'x'"),
        ({"config": {"seed": -1}}, "config: configuration: seed must lie between 0 and"),
    ],
)
def test_invalid_values_are_rejected(value: Any, message: str) -> None:
    whole = {"part": {"name": "x"}, **value} if value and isinstance(value, dict) else value
    with pytest.raises(InputError) as error:
        from_json(Whole, whole, "whole")
    assert message in str(error.value)


def test_problems_and_formats_are_reported(tmp_path: Path) -> None:
    message = r"whole: 3 problems\n  unknown key 'x'.*\n  part is miss.*\n  maybe"
    with pytest.raises(InputError, match=message):
        from_json(Whole, {"x": 1, "maybe": "3"}, "whole")
    assert from_json(Part, {"name": "x", "later": 1}, "part", strict=False) == Part(name="x")
    file = tmp_path / "part.json"
    write_json(file, Part(name="x"), format=1)
    assert json.loads(file.read_text()) == {"format": 1, "name": "x", "colour": "red"}
    assert read_json(Part, file, format=1) == Part(name="x")
    assert [path.name for path in tmp_path.iterdir()] == ["part.json"]
    for content in ("{", "[]", '{"name": "x"}', '{"format": 2, "name": "x"}', '{"format": 1}'):
        file.write_text(content)
        with pytest.raises(InputError, match=r"part\.json is corrupt or in an unsupported format \("):
            read_json(Part, file, format=1)


def test_a_lock_excludes_others_and_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "report"
    for _ in range(2):
        with locked(target), pytest.raises(Timeout), locked(target, timeout=0):
            pass
        with locked(target, timeout=0), locked(tmp_path / "other", timeout=0):
            pass
        assert list(tmp_path.iterdir()) == []
