"""Several labels and numbers of images, from the overview to predictions."""

import json

import pytest

from tests.helpers.drawn_targets import draw


@pytest.mark.slow("trains and confirms a search")
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_targets_are_searched_confirmed_reported_exported_and_predicted(kind, automl, tmp_path):
    metric = {"labels": "macro_ap", "numbers": "r2"}[kind]
    draw(tmp_path / "pictures", 160, numbers=kind == "numbers")
    assert "target" in automl("data", "pictures", "--size", 24)
    options = ["--backbone", "xresnet18", "--option", "width=0.25", "--size", 24, "--batch-size", 16]
    options += ["--epochs", 5, "--augment", "light", "--trials", 2, "--concurrent", 1, "--name", "pictures"]
    confirm = ["--confirm", "--top", 1, "--seeds", 6]
    result = json.loads(automl("search", "--data", "pictures", *options, *confirm, "--json").splitlines()[-1])
    assert result["baseline"]["metric"] == metric
    assert result["confirmation"]["complete"]
    automl("report")
    assert metric in (tmp_path / "searches/pictures/report/index.html").read_text()
    exported = automl("export", "--baseline", "--out", "out")
    assert metric in exported
    assert ("probabilities" if kind == "labels" else "number") in (tmp_path / "out/MODEL_CARD.md").read_text()
    (predicted,) = json.loads(automl("predict", "out", "pictures/000.png", "--json").splitlines()[-1])
    if kind == "labels":
        assert predicted["probabilities"].keys() == {"red", "green", "blue"}
    else:
        assert 1000 < predicted["number"] < 1060
