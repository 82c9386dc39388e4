"""MLflow's pages as a person sees them who opens the link that a search prints."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from test_tracking import PLACEMENT, live, make, trial

from search.class_metrics import ACCURACY
from search.record import State
from tests.helpers.services import serve_mlflow_ui


@pytest.mark.slow("starts a server and a browser")
def test_placement_learning_rate_and_accuracy_are_there(
    browser: Any, store: MlflowClient, tmp_path: Path
) -> None:
    tracker = make(tmp_path / "checkpoints", metric=ACCURACY)
    plain, placed = trial(0), trial(1, placement=PLACEMENT)
    for record, value in ((plain, 0.625), (placed, 0.875)):
        live(tracker, record, State.COMPLETE, [value])
    tracker.finish(best=placed, metric="accuracy", counts={State.COMPLETE: 2})
    link = tracker.writer.page()
    with serve_mlflow_ui(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}") as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(link.replace("http://127.0.0.1:5000", address))
        page.get_by_text("87.5").or_(page.get_by_text("0.875")).first.wait_for(timeout=120_000)
        table = page.inner_text("body")
        for word in ("ssa", "sagan", "accuracy", "types", "learning_rate", "0.003"):
            assert word in table, table
        runs = json.dumps([tracker.runs[0], tracker.runs[1]])
        experiments = json.dumps([tracker.writer.experiment])
        page.goto(f"{address}/#/compare-runs?runs={runs}&experiments={experiments}")
        page.get_by_text("learning_rate").first.wait_for(timeout=120_000)
        compared = page.inner_text("body")
        for word in ("types", "sites", "stage1.block2.branch", "accuracy", "0.875"):
            assert word in compared, compared
        page.close()
