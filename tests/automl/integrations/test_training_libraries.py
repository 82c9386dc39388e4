"""Training functions of the guides with other libraries: pruned, continued exactly, and searched."""

import io
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from PIL import Image

import automl
from automl.config.runtime import Runtime
from automl.tasks.function.loop import RunningTrial
from automl.tasks.function.space import TrainingFunction, find_function, function_space
from search.config import TrialConfig
from search.metric import Metric
from search.space import draw_randomly

GUIDES = Path(__file__).parents[3] / "docs" / "how-to"
EPOCHS = 3
# Random numbers that the Trainer draws before it trains, and that a continued training draws again.
DRAW = "Digits.setup = lambda self, stage: torch.rand(3)\n"


@dataclass(frozen=True)
class Guide:
    """A training function of a guide, its metric, and code that changes it."""

    file: str
    metric: str
    change: str = ""

    def write(self, folder: Path) -> str:
        """Write the function to a file, and return its name."""
        pages = "\n".join(page.read_text() for page in sorted(GUIDES.glob("*.md")))
        (block,) = re.findall(rf"^```python\n(# {self.file}\n.*?)^```", pages, re.S | re.M)
        (folder / self.file).write_text(block + self.change)
        return f"{folder / self.file}:train"


LIGHTNING = Guide("lightning_digits.py", "accuracy")
TRAINER = Guide("trainer_digits.py", "eval_accuracy")
FASTAI = Guide("fastai_digits.py", "accuracy")
CASES = {
    "Lightning": Guide(LIGHTNING.file, LIGHTNING.metric, DRAW),
    "transformers": TRAINER,
    "fastai": FASTAI,
    "timm": Guide("timm_train.py", "accuracy", "SIZE, BATCH = (3, 32, 32), 8\n"),
    "segmentation_models_pytorch": Guide("smp_train.py", "iou"),
}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import the libraries here, as each process collects this file and one runs its tests.

    Importing Lightning makes every question for a GPU search for a library that only machines with one have.
    Models that are traced later in this process would take 15 % longer.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
        pytest.importorskip("pytorch_lightning")
    pytest.importorskip("accelerate")


def write_images(folder: Path) -> None:
    """Write photos of two classes for timm, and images with masks for segmentation_models_pytorch."""
    rng = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        for kind in ("a", "b", "images", "masks"):
            path = folder / ("photos" if len(kind) == 1 else "streets") / split / kind
            path.mkdir(parents=True)
            for i in range(8):
                pixels = (
                    rng.integers(0, 3, (32, 32)) if kind == "masks" else rng.integers(0, 255, (32, 32, 3))
                )
                Image.fromarray(pixels.astype(np.uint8)).save(path / f"{i}.png")


@dataclass
class Training:
    """One run of a training function: `content` is its last checkpoint, `raised` the type of its error."""

    history: list[dict[str, Any]]
    tested: Mapping[str, float]
    content: dict[str, Any]
    raised: type[BaseException] | None


def run(
    function: TrainingFunction,
    config: TrialConfig,
    *,
    stop: int = EPOCHS,
    content: dict[str, Any] | None = None,
) -> Training:
    """Run a function until it has reported `stop` epochs in all."""
    raised = []

    def train(trial: automl.Trial) -> None:
        try:
            function(trial)
        except BaseException as error:
            raised.append(type(error))
            raise

    runtime = Runtime(device=torch.device("cpu"))
    trial = RunningTrial(config, runtime, fitting=EPOCHS, tests=True, content=content)
    history = []
    with closing(trial.run(train)) as reports:
        for metrics in reports:
            history.append({name: value for name, value in metrics.items() if "seconds" not in name})
            file = io.BytesIO()
            torch.save(trial.content(finished=False), file)
            if metrics["epoch"] == stop:
                break
    file.seek(0)
    return Training(
        history=history,
        tested=trial.tested,
        content=torch.load(file, weights_only=True),
        raised=raised[0] if raised else None,
    )


VARIANTS = ("Lightning with a plateau scheduler", "transformers", "timm", "segmentation_models_pytorch")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow("another case")) if case in VARIANTS else case
        for case in CASES
    ],
)
def test_pruned_training_ends_and_continues_exactly(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that was pruned and continued has the metrics and weights of a whole one."""
    monkeypatch.chdir(tmp_path)
    guide = CASES[case]
    data = {"timm": "photos", "segmentation_models_pytorch": "streets"}.get(case)
    if data:
        write_images(tmp_path)
    name = guide.write(tmp_path)
    space = function_space(name, Metric(name=guide.metric, maximize=True), data=data)
    config = next(config for _, config in draw_randomly(space, 20) if config.model.placement)
    function = find_function(name)
    files = set(tmp_path.rglob("*"))

    whole = run(function, config)
    pruned = run(function, config, stop=1)
    continued = run(function, config, content=pruned.content)

    assert whole.raised is None
    assert pruned.raised is optuna.TrialPruned
    assert [metrics["epoch"] for metrics in whole.history] == [1, 2, 3]
    assert pruned.history + continued.history == whole.history
    assert continued.tested == whole.tested
    assert guide.metric in whole.tested
    weights, expected = continued.content["model"], whole.content["model"]
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    left = {file for file in set(tmp_path.rglob("*")) - files if file.suffix != ".pyc" and file.is_file()}
    assert left == set(), "a trial leaves no files"
