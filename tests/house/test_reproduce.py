"""docs/reference/published-experiments.md has a row and a valid command for each item of the sources."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
import typer.main

from attention import Spec
from automl.cli.main import app
from automl.cli.tables import cost_table, read_placement
from automl.cli.train_command import read_config
from automl.costs.profile import ModelCost
from automl.data.download import published_datasets
from automl.search.studies import list_studies
from automl.task.subject import make_subject
from backbones import insert
from backbones.cost import count_macs
from search.config import TrialConfig
from search.space import SPACES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "published-experiments.md").read_text()
STATES = ("exact", "smaller by default:", "not reproducible:")


def read_rows() -> list[tuple[str, str, str]]:
    """Return item, command and state of each row."""
    rows = []
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| item "):
            item, command, state = line.strip("| ").split(" | ")
            rows.append((item, command, state))
    return rows


ROWS = read_rows()
OTHERS = ("mlflow ui", "optuna-dashboard")  # tests/end_to_end/test_search_truth.py runs the latter
COMMANDS = sorted({line for _, command, _ in ROWS if not (line := command.strip("`")).startswith(OTHERS)})


def parse(line: str) -> click.Context:
    """Parse a command line as the installed script does."""
    words = shlex.split(line)
    if "automl.search" in words:
        words = ["automl", "search", *words[words.index("automl.search") + 1 :]]
    assert words[0] == "automl"
    return typer.main.get_command(app).commands[words[1]].make_context(words[1], words[2:])  # type: ignore[attr-defined]


def insert_at_fixed_site(config: TrialConfig, spec: Spec, where: str | None) -> TrialConfig:
    spec.build(64)
    return config.change(model={"placement": {where or "stage1.block2.branch": spec}})


def test_every_item_has_a_command_and_a_state():
    assert len(ROWS) >= 100
    items = [item for item, _, _ in ROWS]
    assert len(set(items)) == len(items)
    for item, command, state in ROWS:
        assert re.fullmatch(r"`[^`]+`", command), item
        assert state.startswith(STATES), item


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_understood(line, monkeypatch):
    """The configuration is checked. No data is opened, so attention has a fixed site."""
    monkeypatch.setattr("automl.trials.train.insert_attention", insert_at_fixed_site)
    context = parse(line)
    params = context.params
    if params.get("space") is not None:
        assert params["space"] in SPACES
    if context.info_name == "study":
        assert params["name"] in list_studies()
    if context.info_name == "data" and params["download"] is not None:
        assert params["download"] in published_datasets()
    if context.info_name == "train" and params["like"] is None:
        read_config(context)


def test_the_costs_on_the_page_are_those_of_its_command():
    ((command, state),) = [row[1:] for row in ROWS if row[0].startswith("cost: linear")]
    params = parse(command.strip("`")).params
    subject = make_subject(params["backbone"], size=params["size"])
    (text,) = params["modules"]
    plain = count_macs(subject.build().eval(), subject.example(1))
    printed = []
    for heads in (1, 8, 32):
        placement = read_placement([text.replace("heads=8", f"heads={heads}")])
        model = insert(subject.build(), placement, subject.example(2)).eval()
        cost = ModelCost(parameters=0, macs=count_macs(model, subject.example(1)), activations=0, step=1.0)
        table = list(cost_table({"plain": replace(cost, macs=plain), "placement": cost}, "an image"))
        printed.append(re.search(r"added +0 +(\d+)M", table[3])[1])
    assert f"{printed[0]}, {printed[1]} and {printed[2]} million" in state


def test_every_study_and_published_space_is_named():
    for name in list_studies():
        assert f"automl study {name}" in PAGE
