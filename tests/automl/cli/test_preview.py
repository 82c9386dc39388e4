"""`automl search --dry-run`: forecast of cost and power."""

import json
import os
import random
from dataclasses import replace
from math import sqrt
from pathlib import Path

import optuna
import pytest
from scipy.stats import nct
from scipy.stats import t as student

from automl.base.serialise import to_json
from automl.config.settings import Settings
from automl.search.preview import NOISE, continued_resource, detectable, expected_resource, preview
from automl.tasks.function.space import function_space
from automl.trials.measurements import PaceWorker, average_paces
from search.class_metrics import ACCURACY
from search.halving import Rungs
from tests.helpers import FOLDER
from tests.helpers.automl_cases import TINY
from tests.helpers.report_cases import plan_of

MARKS = FOLDER / "train_marks.py"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, 1.0),
        (2, 1 + 1 / 3),
        (6, 2 + 4 / 3),
        (9, 2 + 4 / 3 + 3 / 9),
        (27, 3 + 6 / 3 + 18 / 9),
        (90, 10 + 20 / 3 + 60 / 9),
    ],
)
def test_expected_resource(budget: float, expected: float) -> None:
    assert expected_resource(plan_of(budget=budget)) == pytest.approx(expected)
    assert expected_resource(plan_of(budget=budget, pruning=False)) == budget


@pytest.mark.parametrize(
    ("trials", "expected"), [(3, 8), (12, (3 * 8 + 9 * 2) / 12), (2, 8), (None, 2)], ids=str
)
def test_resource_of_continued_trials(trials: int | None, expected: float) -> None:
    assert continued_resource(8, 6, 3, trials) == pytest.approx(expected)


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


@pytest.mark.parametrize("seeds", [3, 5, 10, 25, 100])
@pytest.mark.parametrize("inputs", [100, 3929])
def test_power_at_the_detectable_difference(seeds: int, inputs: int) -> None:
    """Compute the power of the paired t-test by the noncentral t distribution."""
    error = ACCURACY.standard_error(0.9, inputs)
    shift = detectable(error, seeds) / (NOISE * sqrt(2) * error / sqrt(seeds))
    critical = student.ppf(0.975, seeds - 1)
    power = nct.sf(critical, seeds - 1, shift) + nct.cdf(-critical, seeds - 1, shift)
    assert power == pytest.approx(0.8, abs=0.04)


def test_preview_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    assert forecast.size.combinations > forecast.size.error > 0
    assert json.loads(json.dumps(to_json(forecast)))["space"] == "digits"
    assert forecast.gpus is None
    assert "gpus        0.25 of a GPU" in replace(forecast, gpus="0.25 of a GPU").lines()
    text = "\n".join(forecast.lines())
    for word in (
        "combinations",
        "MACs",
        f"8 trials, {forecast.slots} at a time",
        "until the first trial runs",
        "for the baseline, measured with",
        "MB of checkpoints",
        "10 seeds detect",
    ):
        assert word in text
    assert not list(tmp_path.iterdir())


def test_pace_is_measured_even_in_no_time() -> None:
    worker = PaceWorker(TINY, {}, 1, 0, {"precision": "auto", "compile": "auto"})
    paces = [worker.measure(seconds) for seconds in (0.0, 0.2)]
    for pace in paces:
        assert min(pace.step, pace.validation, pace.checkpoint, pace.model) > 0
        assert pace.load >= 1
    train = function_space(f"{MARKS}:train", ACCURACY)
    config = train(optuna.trial.FixedTrial(train.baseline))
    function = PaceWorker(config, {}, 1, 0, {"precision": "auto", "compile": "auto"}).measure(0.0)
    assert function.step > 0
    assert function.validation == 0, "only the function has validation data"
    assert average_paces(paces).step == pytest.approx((paces[0].step + paces[1].step) / 2)
