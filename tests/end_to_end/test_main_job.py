"""The main job as a person runs it: the installed command in a folder of its own, on a real local Ray."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import mlflow
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from automl.data.augment import centre_crop
from automl.data.pictures import decode
from automl.export.formats import forms_of
from automl.tasks.image_classification.data import cache_side
from automl.tracking.client import open_client
from search.study import open_study

BIN = Path(sys.executable).parent
TRIALS = 4
pytestmark = pytest.mark.heavy("the main job, end to end")
ODD = "100% of é;'&+"  # MLflow loads no model from paths with #, ? and %20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose name has characters with a meaning in addresses, and an empty home."""
    above = tmp_path_factory.mktemp("main-job")
    (above / "home").mkdir()
    (above / ODD).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(above / ODD)
        patch.setenv("HOME", str(above / "home"))
        patch.setenv("AUTOML_CACHE", str(above / "home" / ".cache" / "automl"))
        yield above / ODD


def automl(folder, *arguments):
    return subprocess.run(
        [str(BIN / "automl"), *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def searched(folder):
    """A finished search: what it printed, and its JSON."""
    run = automl(
        folder, "search", "--space", "digits", "--trials", TRIALS, "--epochs", 3, "--concurrent", 1,
        "--name", "first", "--json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run, json.loads(run.stdout)


@pytest.fixture(scope="module")
def exported(folder, searched):
    run = automl(folder, "export", "--best", "--out", "exports/first")
    assert run.returncode == 0, run.stderr
    assert "chosen    the search's best; not confirmed" in run.stdout
    return folder / "exports" / "first"


def test_the_search_ends_with_its_result(searched):
    run, result = searched
    assert result["search"] == "first"
    assert result["trials"] == TRIALS
    assert result["completed"] + result["pruned"] + result["infeasible"] == TRIALS
    assert result["errors"] == 0
    # Four trials are too few for a model of placements to predict anything.
    assert result["best"]["expected"] is None
    assert result["best"]["value"] >= result["baseline"]["value"]
    assert result["baseline"]["value"] > 0.5
    assert result["baseline"]["config"]["model"]["placement"] == {}
    assert "automl export --best" in run.stderr, "it names the next commands"
    lines = [line for line in run.stderr.splitlines() if re.match(r"\d\d:\d\d:\d\d \d{3} ", line)]
    lines = [line for line in lines if " running" not in line]  # of a busy machine's, one a minute
    assert len(lines) == TRIALS, "one line a trial in a log"
    assert re.search(rf" steps +1/{TRIALS}$", lines[0]), "the time left needs two trials"
    assert max(map(len, lines)) <= 110
    for noise in ("INFO", "WARNING", "Traceback", "ray::"):
        assert noise not in run.stderr + run.stdout


def test_every_trial_is_in_mlflow(folder, searched):
    _, result = searched
    client = open_client()
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert parent.info.run_name == "first"
    assert parent.info.status == "FINISHED"
    assert len(children) == TRIALS
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.tags["state"] for run in children) == sorted(
        ["complete"] * result["completed"]
        + ["pruned"] * result["pruned"]
        + ["infeasible"] * result["infeasible"]
    )
    for run in children:
        assert {"backbone", "modules", "types", "sites", "learning_rate"} <= set(run.data.params)
        history = client.get_metric_history(run.info.run_id, "accuracy")
        assert [metric.step for metric in history] == list(range(1, len(history) + 1))
    best = client.get_run(result["best"]["run_id"])
    assert best.data.metrics["accuracy"] == pytest.approx(result["best"]["value"])


def test_the_study_opens_with_optuna_alone(folder, searched):
    _, result = searched
    study = open_study(folder / "searches" / "first", name="first")
    assert len(study.trials) == TRIALS
    assert study.trials[0].params["modules"] == 0
    assert study.trials[result["best"]["number"]].value == pytest.approx(result["best"]["value"])


def test_the_best_is_exported_whole(exported):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *forms_of("model"), "model.safetensors", "config.json", "MODEL_CARD.md", "mlflow-model",
    }  # fmt: skip


@pytest.fixture(scope="module")
def predictions(folder, exported):
    """Predict the first 20 digits, which are files in the folder, as `automl predict` prints them."""
    files = []
    for i, image in enumerate(load_digits().images[:20]):
        file = folder / f"{i}.png"
        Image.fromarray((image * 255 / 16).round().astype(np.uint8)).save(file)
        files.append(file)
    run = automl(folder, "predict", exported, *files, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_it_predicts_images(predictions):
    right = sum(p["label"] == str(t) for p, t in zip(predictions, load_digits().target, strict=False))
    assert right >= 16
    for prediction in predictions:
        assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_the_served_model_answers_as_predict_does(folder, exported, predictions, tmp_path):
    """It is loaded as MLflow's server loads it, from a folder whose name MLflow takes."""
    model = mlflow.pyfunc.load_model(str(shutil.copytree(exported / "mlflow-model", tmp_path / "model")))
    number, predicted = next(
        (i, p)
        for i, (p, digit) in enumerate(zip(predictions, load_digits().target, strict=False))
        if p["label"] == str(digit)
    )
    squashed, aspect = decode(folder / f"{number}.png", cache_side(32))
    image = centre_crop(torch.tensor(squashed)[None], torch.tensor([aspect]), 32)
    answer = model.predict(image.numpy())
    assert answer["label"].tolist() == [predicted["label"]]
    np.testing.assert_allclose(
        answer["probabilities"][0], list(predicted["probabilities"].values()), atol=1e-6
    )


def test_nothing_is_written_elsewhere(folder, predictions):
    """`docs/how-to/manage-searches.md` names the folders."""
    home = folder.parent / "home"
    written = {file.relative_to(home).parts[:2] for file in home.rglob("*") if file.is_file()}
    assert written - {(".cache", "matplotlib")} == {(".cache", "automl")}
    # MLflow itself makes a quoted folder for a client of this process.
    assert {file.name for file in folder.parent.iterdir()} - {quote(ODD)} == {"home", ODD}
    assert {file.name for file in folder.iterdir() if file.suffix != ".png"} == {
        "exports", "mlflow.db", "mlruns", "searches",
    }  # fmt: skip
