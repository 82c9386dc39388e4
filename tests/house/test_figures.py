"""The figures of README.md and docs/explanation are those of the records in benchmarks/results."""

import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
import typer.main

from attention import Spec
from automl.cli.main import app
from automl.cli.train_command import read_config
from automl.data.download import published_datasets
from automl.search.studies import list_studies
from search.config import TrialConfig
from search.space import SPACES

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import figures  # noqa: E402
import language_page  # noqa: E402

PAGES = figures.read_documents()
ROW = "ssa 64px, fastai*"  # of one training in the record


def test_the_table_of_published_modules_is_that_of_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_reality

    recorded = json.loads((ROOT / "benchmarks" / "results" / "reality-cpu.json").read_text())["columns"]
    columns = {column: {fact["module"]: fact for fact in facts} for column, facts in recorded.items()}
    assert bench_reality.table(columns) in bench_reality.PAGE.read_text(encoding="utf-8")


def test_no_record_names_a_folder_of_a_machine() -> None:
    records = [*(ROOT / "benchmarks" / "results").rglob("*.json"), ROOT / "tests/helpers/durations.json"]
    own = re.compile(r"(?<![\w.:/])/(?:work|tmp|home|root|Users|private|mnt|opt)/")
    assert [file.name for file in records if own.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_in_its_record(page: str) -> None:
    assert list(figures.check_page(page, PAGES[page])) == []


def test_unresolved_ratios_are_marked_and_the_language_page_is_current() -> None:
    lines = "\n".join(PAGES[name] for name in ("README.md", "docs/explanation/benchmarks.md")).splitlines()
    rows = [
        (line, re.search(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", line)) for line in lines if line[:1] == "|"
    ]
    for line, match in rows:
        ratio, low, high = map(float, match.groups()) if match else (1, 1, 1)
        assert (low <= 1 <= high and max(high / ratio, ratio / low) > 1.03) == ("not resolved" in line), line
    assert any("not resolved" in line for line, _ in rows)
    page = language_page.PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)", page, re.M)
    records = sorted(language_page.read_records(), key=lambda record: titles.index(record["title"]))
    assert page == language_page.make_page(records)


def write_page(figure: str, key: str = f"rows/*{ROW}") -> dict[str, str]:
    """Write the same figure in each kind of unit."""
    comment = f"<!-- record: step-cpu.json:{key} -->"
    table = f"| what | ratio |\n|---|---|\n| training | {figure} |"
    return {
        "paragraph": f"Training is {figure} times as fast.\n{comment}\n",
        "item": f"- Nothing.\n- Training is {figure} times\n  as fast. {comment}\n",
        "row": table.replace(f"{figure} |", f"{figure} {comment} |"),
        "table": f"{comment}\n\n{table}\n",
    }


@pytest.mark.parametrize("kind", write_page(""))
def test_a_figure_with_another_digit_is_a_fault(kind: str) -> None:
    assert list(figures.check_page("page", write_page("2.45")[kind])) == []
    for changed in ("2.44", "2.46", "3.45", "-2.45"):
        assert len(list(figures.check_page("page", write_page(changed)[kind]))) == 1


@pytest.mark.parametrize("file", [*language_page.RECORDS.glob("*.json")], ids=lambda file: file.stem)
def test_each_difference_is_that_of_the_scores_of_its_row(file: Path) -> None:
    record = json.loads(file.read_text())
    scale = {"accuracy": 100, "bits_per_byte": -1}[record["metric"]]
    (searched,) = (row["score"] for row in record["rows"] if row["searched"])
    for row in record["rows"]:
        scores = row.get("scores", {"": row["score"]}).values()
        assert row["score"] == pytest.approx(sum(scores) / len(scores))
        lead = 0 if row["searched"] else row["lead"]
        assert lead == pytest.approx(scale * (searched - row["score"]), abs=0.0011)  # three digits
        assert row["searched"] or row["time"] is None or row["interval"] is not None


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


def test_every_item_and_study_is_named():
    assert len(ROWS) >= 100
    items = [item for item, _, _ in ROWS]
    assert len(set(items)) == len(items)
    for item, command, state in ROWS:
        assert re.fullmatch(r"`[^`]+`", command), item
        assert state.startswith(STATES), item
    for name in list_studies():
        assert f"automl study {name}" in PAGE


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
