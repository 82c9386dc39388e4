"""The script of learning curves, on windows of UCI HAR or on generated ones."""

import csv
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

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


def test_prints_each_models_curve(
    curves: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_windows(tmp_path / "windows.npz", train=60, test=12, steps=16)
    out = tmp_path / "curves.csv"
    options = ["--epochs", "2", "--seeds", "1", "--batch-size", "24"]
    curves.main(["--data", str(data), "--out", str(out), *options])
    rows = list(csv.DictReader(out.open()))
    models = list(curves.configurations())
    assert [(row["model"], row["epoch"]) for row in rows] == [(m, str(e)) for m in models for e in (1, 2)]
    assert all(0 <= float(row[split]) <= 100 for row in rows for split in ("train", "validation", "test"))
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0] == "| model | runs | epoch 1 | epoch 2 | peak | train | minutes |"
    assert [line.split(" | ")[:2] for line in table[2:]] == [[f"| {model}", "1"] for model in models]
