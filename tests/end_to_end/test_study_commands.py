"""The small form of each study runs to its table."""

import csv

import pytest

from automl.search.studies import list_studies

SHORT = {"da-imagenet": ("--epochs", 1, "--subset", 0.1)}  # what makes them short
FILES = {"ssa-equal-time": 3}  # of tables, where there are several


@pytest.mark.slow("tests/automl/search/test_studies.py has their parts")
@pytest.mark.parametrize("name", list_studies())
def test_a_small_form_prints_its_table(automl, tmp_path, name):
    output = automl("study", name, "--small", *SHORT.get(name, ()))
    study = list_studies()[name]
    assert f"source    {study.source}" in output
    (page,) = tmp_path.glob("searches/*/study.md")
    assert study.source.split(",")[0] in page.read_text()
    tables = sorted(page.parent.glob("study*.csv"))
    assert len(tables) == FILES.get(name, 1)
    rows = list(csv.DictReader(tables[-1].read_text().splitlines()))
    if study.rows:
        assert [row["in the source"] for row in rows] == [row.name for row in study.rows]
        assert all(row["runs"] == "1" for row in rows if row["result"] == "trained")
    for row in rows:
        assert "error" not in row.values()
    if name == "da-conventional":
        results = {row["in the source"]: row["result"] for row in rows}
        assert {key for key, result in results.items() if result == "over a limit (memory)"} == {
            "conventional, 5",
            "conventional, 7",
        }
        assert {result for key, result in results.items() if "DA" in key} == {"trained"}
