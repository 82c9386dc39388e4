"""The script of learning curves, on windows of UCI HAR or on generated ones."""

import csv
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = DATA / "sequences" / "ucihar_part.npz"
ACTIVITIES = ("LAYING", "SITTING", "WALKING")


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    import sensor_curves

    return sensor_curves


def write_windows(path: Path, *, train: int, test: int, steps: int) -> Path:
    """Write windows of nine waves in the layout of the real file. The activity sets the frequency."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", train), ("test", test)):
        label = np.arange(count) % len(ACTIVITIES)
        phase = random.uniform(0, 2 * np.pi, (count, 9, 1))
        wave = np.sin(phase + (1 + label[:, None, None]) * np.arange(steps) / 5)
        arrays[f"x_{split}"] = (wave + random.normal(0, 0.1, wave.shape)).astype(np.float32)
        arrays[f"y_{split}"] = np.array(ACTIVITIES)[label]
    np.savez(path, **arrays)
    return path


def check(curves: ModuleType, data: Path, out: Path, epochs: int, *options: str) -> dict[str, float]:
    """Run the script with one seed and return the last test accuracy of each model."""
    file = out / "curves.csv"
    curves.main(["--data", str(data), "--epochs", str(epochs), "--seeds", "1", "--out", str(file), *options])
    rows = list(csv.DictReader(file.open()))
    assert [(row["model"], row["epoch"]) for row in rows] == [
        (model, str(epoch)) for model in curves.configurations() for epoch in range(1, epochs + 1)
    ]
    assert all(0 <= float(row[split]) <= 100 for row in rows for split in ("train", "validation", "test"))
    return {row["model"]: float(row["test"]) for row in rows}


def test_prints_each_models_curve(
    curves: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_windows(tmp_path / "windows.npz", train=60, test=12, steps=16)
    check(curves, data, tmp_path, 2, "--batch-size", "24")
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0] == "| model | runs | epoch 1 | epoch 2 | peak | train | minutes |"
    assert [line.split(" | ")[:2] for line in table[2:]] == [
        [f"| {model}", "1"] for model in curves.configurations()
    ]


def test_the_configurations_are_the_published_ones(curves: ModuleType) -> None:
    larnn, lstm, cnn = curves.configurations().values()
    options = larnn.model.options
    assert (options["hidden"], options["heads"], options["window"], options["layers"]) == (81, 27, 38, 3)
    assert options["activation_on_keys_and_values"]
    assert options["residual"]
    assert larnn.training.learning_rate == pytest.approx(0.006026504115228934)
    assert lstm.training == larnn.training
    assert lstm.model.backbone == "bilstm"
    assert not cnn.model.placement


@pytest.mark.slow("takes minutes")
def test_learns_windows_of_people(curves: ModuleType, tmp_path: Path) -> None:
    data = REAL
    if not data.exists():
        data = write_windows(tmp_path / "windows.npz", train=1500, test=600, steps=128)
    last = check(curves, data, tmp_path, 2)
    assert last["1-D CNN"] > 75
    assert last["BiLSTM"] > 60
    assert last["LARNN"] > 20  # 1 of 6 by chance
