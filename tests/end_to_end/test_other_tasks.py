"""From a search to a prediction for data other than images: sequences, and a user-defined task of a table."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from automl.search.studies import list_studies
from tests.helpers import FOLDER

TABLE = FOLDER / "tabular.py"


def last(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.slow("a training function takes the same way; test_register_task.py has the task")
def test_a_table_is_searched_confirmed_reported_exported_and_predicted(automl, tmp_path):
    """A metric of which less is better, in kg; nothing outside of the task's own file knows of it."""
    confirm = ["--confirm", "--top", 1, "--seeds", 6]
    options = ["--trials", 4, "--concurrent", 1, "--name", "table", *confirm, "--json"]
    result = last(automl("search", "--space", f"{TABLE}:draw", *options))
    assert result["errors"] == 0
    assert result["baseline"]["metric"] == "rmse"
    assert result["best"]["value"] <= result["baseline"]["value"]

    verdict = result["confirmation"]
    assert verdict["complete"]
    # Products are what the table is made of.
    assert verdict["verdict"] in ("undecided", "better")
    assert verdict["difference"] > 0.02
    assert re.search(r"\bkg\b", verdict["headline"])
    assert "points" not in verdict["headline"]

    automl("report")
    page = (tmp_path / "searches" / "table" / "report" / "index.html").read_text()
    page = re.sub("<script type='module'>.*?</script>", "", page, flags=re.DOTALL)  # the plots' library
    assert "rmse, kg" in page
    for word in ("accuracy", "points", "images"):
        assert word not in page.lower(), word

    automl("export", "--best", "--out", "out", "--trust")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "rmse" in card
    assert "probabilit" not in card
    (tmp_path / "things.csv").write_text("1,1,1,0\n0,0,0,0\n")
    predicted = last(automl("predict", "out", "things.csv", "--json", "--trust"))
    assert predicted[0]["weight"][0] == pytest.approx(1 * 1 + 0.5 * 1, abs=0.5)


@pytest.mark.slow("a whole search")
@pytest.mark.parametrize(
    ("space", "metric", "inputs", "written"),
    [
        ("scenes", "box_ap", "photo.png", {"photo.json", "photo.png"}),
        ("planes", "epe", "pairs.csv", {"photo.pfm", "photo.png"}),
    ],
)
def test_dense_predictions(automl, tmp_path, space, metric, inputs, written):
    """Two trials of an epoch, on a fifth of the bundled data, to files that are predicted."""
    options = ["--space", space, "--trials", 2, "--epochs", 1, "--subset", 0.2, "--concurrent", 1]
    result = last(automl("search", *options, "--json"))
    assert (result["errors"], result["best"]["metric"]) == (0, metric)
    automl("report")
    automl("export", "--best", "--out", "out")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 160, 3), np.uint8))
    picture.save(tmp_path / "photo.png")
    (tmp_path / "pairs.csv").write_text("left,right\nphoto.png,photo.png\n")
    automl("predict", "out", inputs, "--out", "found")
    assert {file.name for file in (tmp_path / "found").iterdir()} == written


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
