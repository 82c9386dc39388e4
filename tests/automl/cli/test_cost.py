"""`automl cost`, and `automl search --dry-run`: the forecast of cost and power."""

import json
import os
import random
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path

import optuna
import pytest
import torch
from torch import nn

from attention import Spec, decomposed
from automl.base.serialise import to_json
from automl.config.settings import Settings
from automl.costs import time_ratio
from automl.costs.profile import measure_costs
from automl.search import preview as module
from automl.search.preview import expected_resource, preview
from automl.task.subject import Subject
from automl.tasks.function.space import function_space
from automl.trials.measurements import PaceWorker, average_paces
from backbones.example import sum_outputs
from search.class_metrics import ACCURACY
from search.halving import Rungs
from tests.helpers import FOLDER
from tests.helpers.automl_cases import HERE, TINY, Cli
from tests.helpers.report_cases import plan_of

MODEL = ("cost", "torchvision:resnet18", "--size", "32", "--batch", "2")


@pytest.mark.slow("costs of whole models")
def test_costs_match_the_formula(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ratio, "COMPARING", 0.0)
    code, out, err = cli(
        *MODEL, "--place", "stage2.block2=decomposed:heads=8,normalisation=scaling", "--json"
    )
    assert code == 0, err
    costs = json.loads(out)
    plain, placed = costs["plain"], costs["placement"]
    spec = Spec("decomposed", {"heads": 8, "normalisation": "scaling"})
    formula = decomposed.cost(128, (4, 4), **spec.options)
    assert placed["parameters"] - plain["parameters"] == formula.parameters
    assert placed["macs"] - plain["macs"] == formula.macs
    assert placed["activations"] > plain["activations"]
    assert plain["step"] > 0
    assert placed["step_low"] <= (placed["step_ratio"] or 1.0) <= placed["step_high"]
    assert plain["parameters"] == 11_689_512  # documented by torchvision
    rows = [line.split()[0] for line in err.splitlines() if line[:1].isalpha()]
    assert rows[:2] == ["plain", "placement"]
    code, out, _ = cli(*MODEL, "--json")
    assert (code, list(json.loads(out))) == (0, ["plain"])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_noisy_clock_gives_no_ratio(noise: float, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the interval contains the true ratio. With much noise none is printed as a number."""
    generator, now = random.Random(1), iter(range(10**6))
    truth = chain([1.0, 1.0], cycle([1.0, 1.05, 1.05, 1.0]))
    monkeypatch.setattr(
        time_ratio, "seconds", lambda run, runtime: next(truth) * generator.lognormvariate(0, noise)
    )
    monkeypatch.setattr(time_ratio, "elapsed", lambda runtime: next(now))
    _, out, err = cli(*MODEL, "--place", "stage1.block1=conv1x1", "--json")
    placed = json.loads(out)["placement"]
    row = next(line for line in err.splitlines() if line.startswith("placement"))
    if noise:
        assert (placed["step"], placed["step_ratio"]) == (None, None)
        assert row.endswith("not resolved")
        assert "step time not resolved while the machine is busy (95 % interval of its ratio: " in err
    else:
        assert row.endswith("ms 1.05x")
        assert "step time: 95 % interval of its ratio: 1.05 to 1.05" in err


def test_a_larger_model_is_never_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with the real clock, whatever else runs on this machine."""
    monkeypatch.setattr(time_ratio, "COMPARING", 0.0)
    subject = Subject(
        name="line",
        build=nn.Identity,
        example=lambda n: torch.zeros(n, 256),
        loss=sum_outputs,
        description="",
    )
    for _ in range(5):
        models = {str(n): nn.Sequential(*(nn.Linear(256, 256) for _ in range(n))) for n in (4, 12)}
        placed = measure_costs(models, subject, 64, HERE)["12"]
        assert (placed.step_ratio or placed.step_high) > 1


MODELS = {
    "larnn": ("larnn", "--option", "hidden=24", "--option", "heads=4", "--size", "6"),
    "selfattention": ("selfattention", "--size", "16"),
    "unet": ("xresnet18", "--task", "segmentation", "--size", "64", "--option", "width=0.125"),
}
TEXT = (
    "a text of 16 tokens from a vocabulary of 10,000",
    "a sequence of 6 steps with 9 channels",
    "each of one of 90 classes",
)


@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_task_have_costs_and_sites(
    model: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_ratio, "COMPARING", 0.0)
    code, out, err = cli("sites", *MODELS[model])
    assert code == 0, err
    names = [
        line.split()[0] for line in out.splitlines()[1:] if "/" in line and "x" not in line.split()[0][:1]
    ]
    assert names
    code, out, err = cli("cost", *MODELS[model], "--place", f"{names[0]}=conv1x1", "--batch", "2", "--json")
    assert code == 0, err
    costs = json.loads(out)
    assert costs["placement"]["parameters"] > costs["plain"]["parameters"]
    assert min(value for cost in costs.values() for value in cost.values() if value is not None) > 0
    assert any(text in err for text in TEXT)


MARKS = FOLDER / "train_marks.py"


def test_expected_resource_matches_a_simulation_of_halving() -> None:
    budget, drawn = 27, random.Random(0)
    rungs = Rungs(budget)
    spent = 0
    for number in range(900):
        score = [drawn.random()]
        for resource in range(1, budget + 1):
            spent += 1
            if rungs.enter(number, "all", resource, score) is False:
                break
    # The first trials continue, as there are none to compare them with.
    assert spent / 900 == pytest.approx(expected_resource(plan_of(budget=budget)), rel=0.1)


@pytest.mark.slow("costs of whole models")
def test_preview_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "connect", lambda **_: nullcontext())  # starting Ray takes long
    monkeypatch.setattr(module, "list_open_nodes", lambda place: [{"CPU": float(os.cpu_count() or 1)}])
    monkeypatch.setattr(module, "LIMIT", 0.0)
    monkeypatch.setattr(module, "TIMED", 0.0)
    phases: list[str] = []
    forecast = preview(Settings(space="digits", trials=8, size=24, epochs=6).parsed, phases.append)
    assert phases, "it reports its progress"
    assert (forecast.trials, forecast.epochs) == (8, 6)
    assert forecast.slots == os.cpu_count()
    assert forecast.resource == pytest.approx(expected_resource(plan_of(budget=6)))
    assert forecast.smallest.macs < forecast.largest.macs
    assert forecast.smallest.what == "xresnet18(width=0.25), no attention"
    trial = forecast.measuring + forecast.resource * forecast.epoch
    assert forecast.startup > 0, "Ray has to start first"
    assert forecast.hours == pytest.approx((forecast.startup + 8 * trial / forecast.slots) / 3600)
    assert json.loads(json.dumps(to_json(forecast)))["space"] == "digits"
    assert forecast.gpus is None
    assert "gpus        0.25 of a GPU" in replace(forecast, gpus="0.25 of a GPU").lines()
    assert forecast.fetching is None, "the data are on this machine"
    assert forecast.data > 1400 * 32 * 32 * 3, "the cached images of both splits"
    on_cluster = replace(forecast, data=30_700_000_000, fetching=130.0)
    data = "data        31 GB on the disk of each host that trains, fetched in about 2m10s"
    assert data in on_cluster.lines()
    (low, _), (high, _) = forecast.steps
    assert 0 < low <= high
    assert not list(tmp_path.iterdir())


def test_pace_is_measured_even_in_no_time() -> None:
    worker = PaceWorker(TINY, {}, 1, 0, {"precision": "auto", "compile": "auto"})
    paces = [worker.measure(seconds) for seconds in (0.0, 0.2)]
    for pace in paces:
        assert min(pace.step, pace.validation, pace.checkpoint, pace.model) > 0
        assert pace.load >= 1
    assert all(ratio > 0 for ratio in worker.compare([(TINY, {}), (TINY, {})], 0.0))
    train = function_space(f"{MARKS}:train", ACCURACY)
    config = train(optuna.trial.FixedTrial(train.baseline))
    function = PaceWorker(config, {}, 1, 0, {"precision": "auto", "compile": "auto"}).measure(0.0)
    assert function.step > 0
    assert function.validation == 0, "only the function has validation data"
    assert average_paces(paces).step == pytest.approx((paces[0].step + paces[1].step) / 2)
