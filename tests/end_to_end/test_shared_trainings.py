"""Placements that go into shared partial trainings, from the search to the verdict and the exported model."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from search.record import CHECKPOINT_FILE, State
from search.study import STUDY_FILE, read_records
from tests.helpers.killable import Search, left

TRIALS = 6

SPACE = """
from attention import Spec
from search import choices
from automl.tasks.image_classification import ImageData, ImageTraining
from search.config import Model, TrialConfig

SITES = ["stage1.block2.branch", "stage2.block1", "stage3.block1"]


def little(trial):
    sites = choices.ascending(trial, len(SITES), most=1)
    placement = {
        SITES[site]: Spec(trial.suggest_categorical(f"type{i}", ["ssa", "sagan"]))
        for i, site in enumerate(sites, start=1)
    }
    return TrialConfig(
        data=ImageData(source="digits", size=24, subset=0.2),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement),
        training=ImageTraining(epochs=3, batch_size=32),
    )
"""


OPTIONS = [
    "--space", "spaces.py:little", "--init", "shared", "--shared-trainings", 2, "--sampler", "placement",
    "--metric", "loss", "--trials", TRIALS,
]  # fmt: skip


@pytest.mark.slow("a whole search")
def test_a_killed_search_into_shared_trainings_is_confirmed(
    automl: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    (tmp_path / "spaces.py").write_text(SPACE)
    search = Search(tmp_path, "late", OPTIONS)
    folder = search.search_folder
    search.start()
    assert search.process is not None
    end = time.monotonic() + 300
    while search.process.poll() is None and time.monotonic() < end:
        if (folder / STUDY_FILE).exists() and any(
            record.config.model.placement for record in read_records(folder, "late")
        ):
            break
        time.sleep(0.2)
    below = search.children("")
    search.end()
    before = len(read_records(folder, "late"))
    assert before < TRIALS, search.output()
    assert left(below) == [], "a local Ray goes with its driver"
    output = automl("search", "--resume", "late")
    assert "6 trials complete" in output
    assert "(expected " in output
    search.check_whole(TRIALS)
    records = read_records(folder, "late")
    assert [record.epoch for record in records] == [3] * TRIALS
    plain = [record for record in records if not record.config.model.placement]
    assert sorted(record.config.seed for record in plain) == list(range(len(plain)))
    assert all(len(record.history) == 1 for record in records if record.config.model.placement)
    assert len(list((folder / "shared_trainings").glob(f"*/{CHECKPOINT_FILE}"))) == len(plain)
    verdict = json.loads(automl("confirm", "--top", 1, "--seeds", 6, "--json").splitlines()[-1])
    assert verdict["seeds"] == 6
    trained = read_records(folder / "confirm", "late-confirm")
    assert all(record.state is State.COMPLETE for record in trained)
    assert {len(r.history) for r in trained if r.config.model.placement} == {1}
    assert len(list((folder / "confirm" / "shared_trainings").glob(f"*/{CHECKPOINT_FILE}"))) == 6
    automl("report")
    assert "What parts of placements add" in (folder / "report" / "index.html").read_text()
    automl("export", "--best", "--search", "late", "--out", "exported")
    assert (tmp_path / "exported" / "model.onnx").exists()
