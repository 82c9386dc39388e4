import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image
from sklearn.datasets import load_digits

from automl.export.checks import Speed
from automl.export.chosen import Chosen
from automl.export.export_result import ExportResult, model_card
from automl.export.predict import run_predict
from automl.storage.storage import Storage
from automl.task import Task
from automl.task.deployment import Interface, as_arrays
from automl.trials.train import TrainResult
from search.class_statistics import ScoreCard
from tests.helpers.automl_cases import opened
from tests.helpers.hostile import HOSTILE

RUN = Chosen(name="name", checkpoint=Storage("checkpoint"), what="the run that was named", run_id="abc")
BEST = replace(RUN, what="the search's best", search="mine", run_id=None)
SPEEDS = {"model.onnx": Speed(latency=1.25, throughput=1234.5, batch=32)}


def card(task: Task | None = None, **more: Any) -> str:
    fields: dict[str, Any] = {
        "folder": Path("export"),
        "chosen": RUN,
        "test": {"accuracy": 0.5},
        "differences": {},
        "scores": None,
        "speeds": SPEEDS,
        "machine": "a machine",
    }
    task = task or opened()
    deployment = task.deployment(task.model())
    tensors = task.model_inputs("test", 2)
    labels = more.pop("labels", deployment.labels)
    interface = Interface.of(deployment, as_arrays(tensors), deployment.run(tensors))
    graphs = more.pop("graphs", {"model": interface})
    return model_card(task, ExportResult(**(fields | more)), labels=labels, graphs=graphs)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    lines = page.partition(heading)[2].splitlines()[2:]
    held = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in held]


def test_card_of_an_export(exported: ExportResult, trained: TrainResult) -> None:
    page = (exported.folder / "MODEL_CARD.md").read_text()
    assert f"`{trained.run_id}`" in page
    assert f"accuracy {100 * exported.test['accuracy']:.4g} %" in page
    assert "Not confirmed on fresh seeds.\n\nThis model: the run that was named." in page
    task = opened()
    assert task.manifest(task.config).digest in page
    assert [row[:2] for row in rows(page, "| split |")] == [
        ["train", "229"],
        ["validation", "60"],
        ["test", "359"],
    ]
    scores = exported.scores
    by_label = rows(page, "| label |")
    assert [row[0] for row in by_label] == list(scores.labels)
    assert [float(row[2]) for row in by_label] == pytest.approx(list(scores.recall), abs=5.1e-5)
    assert [float(row[4]) for row in by_label] == pytest.approx(list(scores.f1), abs=5.1e-5)
    matrix = rows(page, "a column for each answer.\n\n")
    assert [list(map(int, row[1:])) for row in matrix] == scores.matrix.tolist()


@pytest.mark.slow("starts another interpreter")
def test_ten_lines_of_python_as_predict_has_it(exported: ExportResult, tmp_path: Path) -> None:
    folder = shutil.copytree(exported.folder, tmp_path / "model")
    code = re.findall(r"```python\n(.*?)```", (folder / "MODEL_CARD.md").read_text(), re.S)[0]
    assert len(code.splitlines()) <= 10
    photos = [tmp_path / f"{i}.jpg" for i in range(20)]
    for photo, image in zip(photos, load_digits().images, strict=False):
        pixels = (image * (255 / 16)).round().astype(np.uint8)
        Image.fromarray(pixels).resize((24, 24)).save(photo, quality=95)
    predictions = run_predict(folder, photos).predictions
    expected = max(predictions, key=lambda prediction: float(prediction.values["probability"]))
    photos[predictions.index(expected)].rename(folder / "photo.jpg")  # the one that the model is surest of
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    label, probability = output.stdout.split()
    assert label == expected.values["label"]
    assert float(probability) == pytest.approx(
        expected.values["probability"], abs=0.1
    )  # it is resized once less


@pytest.mark.parametrize(
    ("run", "sentences", "limit"),
    [
        (BEST, ["Not confirmed", "the search's best"], "has not been confirmed"),
        (
            replace(BEST, what="confirmed winner", verdict="ssa is better by 0.7 points", confirmed=True),
            ["ssa is better by 0.7 points", "confirmed winner"],
            "flatters the one it chose",
        ),
        (
            replace(BEST, verdict="no detectable gain"),
            ["no detectable gain", "the search's best"],
            "did not show it to be better",
        ),
    ],
    ids=["none", "better", "undecided"],
)
def test_card_has_the_verdict(run: Chosen, sentences: list[str], limit: str) -> None:
    page = card(chosen=run)
    verdict = page.partition("## Verdict")[2].partition("## Data")[0]
    assert all(part in verdict for part in sentences)
    assert limit in page


def elements(page: str) -> list[str]:
    """Return the types of all elements of a page but its text."""
    blocks = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page)
    kinds = [token.type for block in blocks for token in (block, *(block.children or ()))]
    return [kind for kind in kinds if kind not in ("text", "text_special")]


@pytest.mark.parametrize("few", [True, False], ids=["few labels", "many labels"])
def test_names_are_no_markdown(few: bool) -> None:
    """Neither of labels, models, searches, runs and machines, nor of files and reasons."""

    def page(words: list[str]) -> str:
        word = iter(words * 2).__next__
        run: dict[str, Any] = {of: word() for of in ("name", "what", "search", "verdict", "figures")}
        return card(
            chosen=Chosen(**run, checkpoint=Storage("checkpoint"), run_id=None if few else words[8]),
            labels=words,
            scores=ScoreCard(labels=words, matrix=np.ones((len(words), len(words)), int)),
            test={word(): 0.5},
            machine=word(),
            differences={word(): 0.0},
            speeds={word(): SPEEDS["model.onnx"]},
            left_out={"model.onnx": word(), "transformers": word()} if few else {},
        )

    names = HOSTILE[::3] if few else HOSTILE
    assert elements(page(names)) == elements(page([f"name {i}" for i in range(len(names))]))
