"""The untouched original of a search that starts from a trained model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attention import Spec
from automl.base.serialise import write_json
from automl.callbacks.search_progress import Progress
from automl.search.prepare import check_models
from automl.storage.trial_files import ORIGINAL_FILE, Original, describe_original
from automl.trials import measurements
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.drawn import Drawn
from search.record import State, TrialRecord
from search.space import SPACES
from tests.helpers.confirm_cases import PLAN, config, record

COSTS = {"params": 2_000_000, "memory": 4e6, "cache": 0, "latency": 2.0, "macs": 5}


def trial(**costs: float) -> TrialRecord:
    return replace(record(3, 0.9), device="core", profile={**COSTS, **costs})


@pytest.mark.parametrize(
    ("known", "trial", "text"),
    [
        ({}, None, "accuracy 80 %, 2M parameters, 4MB of memory, 2 ms of latency"),
        ({"scores": {}}, None, "no score, as its head is new, 2M parameters, 4MB of memory, 2 ms of latency"),
        ({"costs": {}}, trial(), "accuracy 80 %"),
        ({}, trial(params=2_100_000, latency_ratio=0.744), ": parameters +5 %, latency -26 %"),
        ({}, trial(memory=1e6, latency=0.3), ": memory -75 %"),
        (
            {"decoding": {"trial 3": [(8192, 2.5, 10.0)]}},
            trial(),
            " 2.5 instead of 10 ms a token after 8,192",
        ),
        ({}, trial(latency_ratio=1.049), ": the same costs"),
    ],
)
def test_an_original_has_its_score_and_what_a_trial_saves(
    known: dict[str, Any], trial: TrialRecord | None, text: str, tmp_path: Path
) -> None:
    assert describe_original(tmp_path, ACCURACY, trial) == "", "there is none"
    original = {"scores": {"accuracy": 0.8}, "costs": COSTS, "device": "core"} | known
    write_json(tmp_path / ORIGINAL_FILE, Original(**original))
    assert describe_original(tmp_path, ACCURACY, trial).endswith(text)


@pytest.mark.parametrize(("new", "text"), [([], "accuracy 50 %"), (["fc"], "no score, as its head is new")])
def test_an_original_is_measured_once_if_its_weights_are_trained(
    new: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(weights: str, placement: dict[str, Spec]) -> Any:
        return SimpleNamespace(
            config=config(placement).change(model={"weights": weights}),
            runtime=SimpleNamespace(device=torch.device("cpu")),
            model=lambda: torch.nn.Linear(1, 1),
            initialise=lambda model: new,
        )

    asked: list[str] = []

    def evaluate(task: Any, model: torch.nn.Module, split: str) -> dict[str, torch.Tensor]:
        asked.append(split)
        return {"accuracy": torch.tensor(0.5)}

    def measure(plain: TrialConfig, baseline: TrialConfig, runtime: Any) -> None:
        assert plain.model.placement == {}
        raise torch.OutOfMemoryError

    monkeypatch.setattr(measurements, "evaluate", evaluate)
    monkeypatch.setattr(measurements, "measure", measure)
    monkeypatch.setattr(measurements, "open_task", lambda plain, runtime: task("trained.pt", {}))
    placed = {"stage1.block2": Spec("ssa")}
    measurements.measure_original(tmp_path, task("", placed), "validation")
    assert not (tmp_path / ORIGINAL_FILE).exists()
    for split in ("validation", "test"):
        measurements.measure_original(tmp_path, task("trained.pt", placed), split)  # type: ignore[arg-type]
    assert asked == [] if new else ["validation"]
    assert describe_original(tmp_path, ACCURACY) == text


def test_windows_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(SPACES["recall"]).configs(40)
    fits = next(each for each in drawn if "window" in str(each.model.placement))
    wide = {
        site: Spec(spec.type, {**spec.options, "window": 24}) for site, spec in fits.model.placement.items()
    }
    whole = fits.change(model={"placement": wide})
    assert fits.data.decoding_context == 24
    monkeypatch.setattr("automl.search.prepare.open_task", lambda *_: SimpleNamespace(
        notes=list, initialise=lambda model: [], model=lambda: None
    ))  # fmt: skip
    check_models([fits, whole], None)  # type: ignore[arg-type]
    note = "note: a window of 24 tokens saves nothing at 24 tokens; lengthen --context\n"
    assert capsys.readouterr().err == note
    running = TrialRecord(7, whole, state=State.RUNNING)
    label: Callable[..., str] = Progress(PLAN, {7: running}, trials=lambda: 8, summary=str)._label
    assert label(running, 60).endswith(", window 24")
    assert "window" not in label(TrialRecord(8, config()), 60)
