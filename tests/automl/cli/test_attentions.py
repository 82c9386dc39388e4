"""Attention types of a user: each fault is one message before anything is trained. `automl attentions`."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from attention import ATTENTIONS, Spec
from attention.attention_table import TIMM_NAMES
from automl.export.formats import forms_of
from automl.trials.train import run_train
from tests.helpers.automl_cases import HERE, Cli, tiny

GOOD = """
from typing import Annotated

import torch
from torch import nn

from attention import Choices


class Gate(nn.Module):
    def __init__(self, channels, width: Annotated[int, Choices(4, 8)] = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, channels))

    def forward(self, x):
        return x * self.layers(x.mean((2, 3))).sigmoid()[:, :, None, None]


class Ranged(Gate):
    @classmethod
    def suggest(cls, trial, prefix, channels):
        return {"width": trial.suggest_int(prefix + "width", 1, 1000)}
"""

# A name, a change of `Gate`, and the message after the name and the site.
FAULTS = {
    "Halves": (
        "def forward(self, x): return super().forward(x)[:, ::2]",
        r" returns \(1, 8, 16, 16\) for \(1, 16, 16, 16\); a module must keep the shape",
    ),
    "Multiple": (
        "def forward(self, x): assert x.shape[2] % 4 == 0, 'multiples of 4'; return super().forward(x)",
        r" fails for \(1, 128, 2, 2\): AssertionError: multiples of 4 \(mine.py, line \d+\)",
    ),
    "Mixes": (
        "def forward(self, x): return super().forward(x) + x.cumsum(0)",
        " mixes the examples of a batch",
    ),
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the file of a user, and go to its folder."""
    monkeypatch.chdir(tmp_path)
    faulty = [
        f"class {name}(Gate):\n{textwrap.indent(change, '    ')}\n" for name, (change, _) in FAULTS.items()
    ]
    unexportable = """
class Fixed(Gate):
    def forward(self, x):
        return x if int(x.shape[0]) == 100 else super().forward(x)
"""
    Path("mine.py").write_text("\n\n".join([GOOD, *faulty, unexportable]))
    return tmp_path / "mine.py"


CHECK = ("check-attention", "--backbone", "xresnet18", "--size", "64", "--backbone-option", "width=0.25")


@pytest.mark.slow("checks and exports of a type")
def test_good_module_has_a_row_for_each_shape(cli: Cli) -> None:
    code, out, err = cli(*CHECK, "mine.py:Gate", "--option", "width=8", "--json")
    assert (code, "Traceback" in err) == (0, False)
    result = json.loads(out)
    assert result["attention"] == "mine.py:Gate(width=8)"
    assert result["missing"] == {}
    assert [site["shape"] for site in result["sites"]] == [
        "64x16x16",
        "16x16x16",
        "32x8x8",
        "64x4x4",
        "128x2x2",
    ]
    assert all(check["passed"] for site in result["sites"] for check in site["checks"])
    heading, *rows, formats = err.splitlines()
    assert heading.split()[:4] == ["site", "shape", "build", "shape"]
    assert [row.split()[0] for row in rows] == ["stem", *(f"stage{i}.block1.branch" for i in (1, 2, 3, 4))]
    assert all("FAILS" not in row for row in rows)
    assert formats == "an export has all formats"


@pytest.mark.parametrize(("attention", "passes"), [("linear", False), ("linear:causal=true", True)])
def test_a_causal_model_has_a_check_of_later_positions(attention: str, passes: bool, cli: Cli) -> None:
    name, _, option = attention.partition(":")
    options = ("--option", option) if option else ()
    small = ("--backbone-option", "depth=1", "--backbone-option", "width=16", "--backbone-option", "heads=2")
    code, out, err = cli("check-attention", name, *options, "--backbone", "gpt", "--size", "16", *small)
    assert code == (0 if passes else 2), err
    assert ("lets a position see later ones, but the model is causal" in out) != passes
    assert "causal" in (out + err).split()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_one_message(name: str, cli: Cli) -> None:
    code, out, err = cli(*CHECK, f"mine.py:{name}")
    assert code == 2
    assert "Traceback" not in out + err
    _, message = FAULTS[name]
    assert any(re.match(f"mine.py:{name} at .*{message}", line) for line in out.splitlines()), out


@pytest.mark.parametrize(
    "command",
    [
        ("search", "--space", "digits", "--attention", "ssa,mine.py:Multiple", "--trials", "2"),
        ("train", "--dataset", "digits", "--attention", "mine.py:Mixes", "--epochs", "1"),
        ("train", "--dataset", "digits", "--attention", "timm:bat", "--epochs", "1"),
        ("search", "--space", "digits", "--attention", "timm:eka", "--trials", "2"),
        ("check-attention", "mine.py:Gates"),
        ("check-attention", "mine.py:Gate", "--option", "with=4"),
    ],
    ids=" ".join,
)
def test_faulty_types_are_reported_before_anything_is_trained(
    command: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    code, out, err = cli(*command)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, len(errors), "Traceback" in out + err) == (2, 1, False), err
    assert re.search(MESSAGES[command[-1] if command[0] == "check-attention" else command[4]], errors[0])
    assert not (tmp_path / "searches").exists()


MESSAGES = {
    "ssa,mine.py:Multiple": r"mine.py:Multiple\(.*\) at \S+ fails for .*multiples of 4",
    "mine.py:Mixes": r"mine.py:Mixes at stage1.block2.branch mixes the examples of a batch",
    "timm:bat": r"timm:bat at stage1.block2.branch fails for .* \(non_local_attn.py, line \d+\)",
    "timm:eka": r"unknown attention of timm 'eka'; .*Did you mean 'ela'",
    "mine.py:Gates": "unknown Class in .*mine.py 'Gates'; .*Did you mean 'Gate'",
    "with=4": "unknown option of attention 'mine.py:Gate' 'with'; .*Did you mean 'width'",
}


@pytest.mark.usefixtures("store")
@pytest.mark.slow("checks and exports of a type")
def test_an_export_leaves_out_the_formats_that_were_named(cli: Cli, tmp_path: Path) -> None:
    placement = {"stage2.block1": Spec("mine.py:Fixed").identified()}
    trained = run_train(tiny(model={"placement": placement}), runtime=HERE)
    assert trained.run_id is not None
    code, out, _ = cli("export", "--run", trained.run_id, "--out", "exports/fixed")
    assert code == 0
    left_out = re.findall(r"^left out  (\S+): ", out, re.M)
    assert left_out == [*forms_of("model"), "mlflow-model"]
    assert {"next", "speed"}.isdisjoint(line.split()[0] for line in out.splitlines())
    assert {file.name for file in (tmp_path / "exports" / "fixed").iterdir()} == {
        "MODEL_CARD.md",
        "config.json",
        "model.safetensors",
    }


def test_attentions(cli: Cli) -> None:
    code, out, err = cli("attentions", "--json")
    assert code == 0
    described = {record["type"]: record for record in json.loads(out)}
    assert set(described) == set(ATTENTIONS)
    assert described["multihead"]["options"]["heads"] == {"default": 4, "choices": []}
    assert described["ssa"]["options"]["order"]["choices"] == ["auto", "xxt-first", "conv-first"]
    for name, attention in ATTENTIONS.items():
        assert re.search(rf"^{name} +{described[name]['cost']} +{re.escape(attention.source)}$", err, re.M)
    assert f"timm:NAME; NAME is {', '.join(TIMM_NAMES)}" in err
    assert "file.py:Class" in err
