"""The figures of README.md and docs/explanation are those of the records in benchmarks/results."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import figures  # noqa: E402
import language_page  # noqa: E402

PAGES = figures.read_documents()


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_in_its_record(page: str) -> None:
    assert list(figures.check_page(page, PAGES[page])) == []


def test_figures_of_many_pages_are_compared() -> None:
    texts = [unit.text for text in PAGES.values() for unit in figures.split(text) if unit.addresses]
    assert len(texts) > 150
    assert "xresnet18 + SSA, 128 px, the default size" in "".join(texts)  # where a peer is faster


def test_the_page_of_language_findings_is_made_from_its_records() -> None:
    page = language_page.PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)", page, re.M)
    records = sorted(language_page.read_records(), key=lambda record: titles.index(record["title"]))
    assert page == language_page.make_page(records)


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
