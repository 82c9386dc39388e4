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
ROW = "ssa 64px, fastai*"  # of one training in the record


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_in_its_record(page: str) -> None:
    assert list(figures.check_page(page, PAGES[page])) == []


def test_figures_of_many_pages_are_compared() -> None:
    texts = [unit.text for text in PAGES.values() for unit in figures.split(text) if unit.addresses]
    assert len(texts) > 150
    assert "xresnet18 + SSA, 128 px, the default size" in "".join(texts)


def test_a_ratio_between_better_and_worse_is_not_resolved() -> None:
    lines = "\n".join(PAGES[name] for name in ("README.md", "docs/explanation/benchmarks.md")).splitlines()
    rows = [
        (line, re.search(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", line)) for line in lines if line[:1] == "|"
    ]
    for line, match in rows:
        ratio, low, high = map(float, match.groups()) if match else (1, 1, 1)
        assert (low <= 1 <= high and max(high / ratio, ratio / low) > 1.03) == ("not resolved" in line), line
    assert sum("not resolved" in line for line, _ in rows) > 2


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


@pytest.mark.parametrize("kind", write_page(""))
def test_a_changed_record_is_a_fault(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads((figures.RESULTS / "step-cpu.json").read_text())
    for row in record["rows"]:
        row["ratio"] += 0.01
    (tmp_path / "step-cpu.json").write_text(json.dumps(record))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.load.cache_clear()
    faults = list(figures.check_page("page", write_page("2.45")[kind]))
    figures.load.cache_clear()
    assert len(faults) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Training takes 12 s.", "no record for 12"),
        ("It saves 30 to 40 %.", "no record for 30, 40"),
        ("Of these, 3 of 18 were accepted.", "no record for 3, 18"),
        (write_page("2.45", "rows/none")["item"], "not in the records"),
        (write_page("1.25", "rows/*")["paragraph"], "1.24 instead of 1.25 would pass"),
        ("It has `0.75` of 8 layers at 64 px, with a 95 % interval.", None),
    ],
)
def test_a_figure_needs_a_record_of_its_own(text: str, fault: str | None) -> None:
    faults = list(figures.check_page("page", text))
    assert [fault in line for line in faults[:1]] == [True] * bool(fault)


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
