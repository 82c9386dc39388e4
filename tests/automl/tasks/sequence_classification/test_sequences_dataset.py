"""Test batches, normalisation, splits and the manifest of sequences."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from automl.data.manifest import Manifest, compare_manifests
from automl.tasks.sequence_classification.data import (
    Sequences,
    normalise,
    open_sequence_records,
    open_sequences,
)
from automl.tasks.sequence_classification.data import reading as caches

pytestmark = pytest.mark.usefixtures("cache")

SPLITS = ("train", "validation", "test")
LENGTHS = np.random.default_rng(1).integers(2, 12, 80)


def data(seed: int = 0) -> dict[str, Any]:
    """Return 80 sequences of 3 channels and up to 12 steps: 60 for training, 20 for test including the
    longest.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(80, 3, 12)) * [[1], [10], [0]] + [[0], [-5], [7]]
    x[random.random(x.shape) < 0.1] = np.nan
    x[::9, 1] = np.nan  # a sensor that was off
    x[:, 2, 0] = 7
    lengths = LENGTHS.copy()
    lengths[79] = 12
    y = np.arange(80) % 4
    return {
        "x_train": x[:60], "y_train": y[:60], "lengths_train": lengths[:60],
        "x_test": x[60:], "y_test": y[60:], "lengths_test": lengths[60:],
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", **data())
    return tmp_path / "d.npz"


def opened(path: Path, **more: Any) -> dict[str, Sequences]:
    return {split: open_sequences("series", split, path=path, **more) for split in SPLITS}


def every(sequences: Sequences) -> torch.Tensor:
    return torch.arange(len(sequences))


def test_batches_have_one_shape_and_a_mask(path: Path) -> None:
    for sequences in opened(path).values():
        assert sequences.steps == 12, "the longest of all splits, which is for test"
        x, mask = sequences.gather(torch.tensor([len(sequences) - 1, 0, 0, -1]))
        assert (x.dtype, mask.dtype, sequences.lengths.dtype, sequences.labels.dtype) == (
            torch.float32, torch.bool, torch.int64, torch.int64,
        )  # fmt: skip
        assert (x.shape, mask.shape) == ((4, 3, 12), (4, 12))
        assert torch.equal(x[[0, 1]], x[[3, 2]])
        assert mask.sum(dim=1).tolist() == sequences.lengths[[-1, 0, 0, -1]].tolist()
        x, mask = sequences.gather(every(sequences))
        assert x.isfinite().all()
        assert (x[~mask[:, None].expand_as(x)] == 0).all()
        assert sequences.gather(torch.empty(0, dtype=torch.int64))[0].shape == (0, 3, 12)
        with pytest.raises(IndexError):
            sequences.gather(torch.tensor([len(sequences)]))


def test_statistics_are_those_of_the_training_data(path: Path) -> None:
    splits = opened(path)
    train = splits["train"]
    real = [train.values(i) for i in range(len(train))]
    for channel in range(2):
        known = np.concatenate([values[channel] for values in real])
        known = known[~np.isnan(known)].astype(np.float64)
        assert train.mean[channel].item() == pytest.approx(known.mean(), rel=1e-5)
        assert train.std[channel].item() == pytest.approx(known.std(), rel=1e-5)
    assert (train.mean[2].item(), train.std[2].item()) == (7, 1), "a channel that never changes"
    for sequences in splits.values():
        assert torch.equal(torch.stack([sequences.mean, sequences.std]), torch.stack([train.mean, train.std]))
        x, mask = sequences.raw(every(sequences))
        assert torch.equal(
            normalise(x, mask, sequences.mean, sequences.std), sequences.gather(every(sequences))[0]
        ), "as it is deployed"
    off = [i for i in range(len(train)) if np.isnan(train.values(i)[1]).all()]
    assert off
    assert (train.gather(torch.tensor(off))[0][:, 1] == 0).all(), "the training mean"
    smaller = opened(path, subset=0.3)
    assert not torch.equal(smaller["test"].mean, train.mean), "what is not trained on is not counted"
    assert torch.equal(smaller["test"].mean, smaller["train"].mean)


def test_pickles_hold_no_values(path: Path) -> None:
    train = open_sequences("series", "train", path=path)
    with pytest.raises(ValueError, match="read-only"):
        train.values(0)[:] = 0
    again: Sequences = pickle.loads(pickle.dumps(train))
    assert len(pickle.dumps(train)) < 5_000
    assert torch.equal(again.gather(every(train))[0], train.gather(every(train))[0])


# Manifests


def splits_by_name(manifest: Manifest) -> dict[str, str]:
    return {name: split for split, name, _, _ in manifest.rows()}


@pytest.mark.parametrize("subset", [1.0, 0.5])
def test_manifest_lists_the_opened_sequences(path: Path, subset: float) -> None:
    rows = [
        (split, name, sequences.classes[label])
        for split, sequences in opened(path, subset=subset).items()
        for name, label in zip(sequences.names(), sequences.labels.tolist(), strict=True)
    ]
    assert [
        row[:3] for row in open_sequence_records("series", path=path, subset=subset).manifest().rows()
    ] == rows


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d["x_train"].__setitem__((7, 0, 1), 99), "1 changed (train/7)"),
        (lambda d: d["x_test"].__setitem__((7, 0, 1), np.nan), "1 changed (test/7)"),
        (lambda d: d["lengths_train"].__setitem__(7, 12), "1 changed (train/7)"),
        (lambda d: d["y_test"].__setitem__(0, 1), "1 changed (test/0)"),
        (lambda d: d.update({key: d[key][:-1] for key in d if "test" in key}), "1 removed (test/19)"),
        (lambda d: d["x_train"].__setitem__((7, 0, -1), 99), ""),  # padding
    ],
)
def test_changed_data_are_reported(change: Callable[[dict[str, Any]], object], text: str, path: Path) -> None:
    before, changed = open_sequence_records("series", path=path).manifest(), data()
    changed["x_test"][7, 0, 1] = 0.5 if np.isnan(changed["x_test"][7, 0, 1]) else changed["x_test"][7, 0, 1]
    np.savez(path, **changed)
    before = open_sequence_records("series", path=path).manifest()
    change(changed)
    np.savez(path, **changed)
    after = open_sequence_records("series", path=path).manifest()
    assert str(compare_manifests(before, after)) == text
    assert (after.digest == before.digest) == (text == "")
    stayed = {
        name: split
        for name, split in splits_by_name(before).items()
        if name in splits_by_name(after) and name != "train/7"
    }
    assert stayed == {name: split for name, split in splits_by_name(after).items() if name != "train/7"}


# Cache files


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.arrow"))


def test_cache_file_depends_on_content(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path)
    (first,) = kept(cache)
    monkeypatch.setattr(caches, "_make_columns", None)  # Nothing is read again.
    opened(path.rename(path.with_name("moved.npz")))
    open_sequence_records("series", path=path.with_name("moved.npz")).manifest()
    assert kept(cache) == [first]
    monkeypatch.undo()
    monkeypatch.setenv("AUTOML_CACHE", str(cache))
    np.savez(path, **data(seed=1))
    opened(path)
    assert len(kept(cache)) == 2
