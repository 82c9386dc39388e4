"""Six inputs with the map of the strongest module, which a confirmation keeps for the report."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention import Spec, attention_maps
from automl import maps as examples
from automl.config.nouns import Terms
from automl.maps import MAPS_FILE, MapExamples, read_examples, record_examples, save_examples
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.task.classification import spread_over_classes
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.trials.job import Trainings
from automl.trials.trial import build_assignment, train_trial
from backbones import call, sites
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE, TINY, opened, sequence_config, tiny
from tests.helpers.code_corpus import write_corpus

CNN = {"backbone": "resnet1d", "options": {"width": 0.0625, "blocks": 1}}


def sequence_task(folder: Path, placement: dict[str, Spec], shortest: int) -> Task:
    return open_task(sequence_config(folder, shortest=shortest, model={**CNN, "placement": placement}), HERE)


def code_task(folder: Path, attention: str) -> Task:
    data = CodeData(path=str(write_corpus(folder)), vocabulary=300, query_length=7, code_length=30)
    model: dict[str, Any] = {"backbone": "cnn", "options": {"hidden": 16, "kernel": 5}}
    training = RetrievalTraining(epochs=1, batch_size=32)

    def opened_with(**more: Any) -> Task:
        whole = CodeModel(**model, **more)
        return open_task(TrialConfig(task="code-retrieval", data=data, model=whole, training=training), HERE)

    plain = opened_with()
    last = sites(plain.model(), plain.example(2))[-1].name
    return opened_with(placement={last: Spec(attention)})


def with_gates(task: Task, **gates: float) -> torch.nn.Module:
    model = task.model().eval()
    for module in model.modules():
        if getattr(module, "site", ""):
            torch.nn.init.constant_(module.gamma, gates.get(module.site.replace(".", "_"), 0.1))
    return model


@pytest.mark.parametrize("kind", ["images", "signals", "padded signals", "code"])
def test_examples_are_those_of_the_model_and_small(kind: str, tmp_path: Path) -> None:
    placement = {"stage1.block1.branch": Spec("multihead"), "stage1.block1": Spec("sagan")}
    if kind == "images":
        task = opened(model={"placement": placement})
    elif kind == "code":
        task = code_task(tmp_path, "multihead")
    else:
        task = sequence_task(tmp_path, placement, 12 if kind == "signals" else 5)
    model = with_gates(task, stage1_block1=-0.5)
    recorded = record_examples(task, model)
    assert len(recorded.names) == len(recorded.inputs) == len(recorded.heats) == examples.COUNT
    if kind != "code":
        assert recorded.site == "stage1.block1"  # the largest |gate|
        assert recorded.gate == -0.5
        count = min(len(task.labels), examples.COUNT)
        assert recorded.names[:count] == task.labels[:count]
    folder = Storage(tmp_path / "trial")
    recorded.save(folder)
    assert (tmp_path / "trial" / MAPS_FILE).stat().st_size < 150_000
    read = read_examples(folder)
    assert (read.spec, read.site, read.kind, read.names) == (
        recorded.spec, recorded.site, recorded.kind, list(recorded.names)
    )  # fmt: skip
    shown = task.shown_inputs(examples.COUNT)
    with attention_maps(model) as maps:
        call(model, shown.inputs)
    heat = maps[recorded.site].heat()
    for i, (picture, weights) in enumerate(zip(read.inputs, read.heats, strict=True)):
        real = heat[i] if kind == "images" else heat[i][: len(weights)]
        assert torch.allclose(torch.tensor(weights).float(), real.float(), atol=2e-3)
        if kind == "images":
            assert np.array_equal(picture, shown.pictures[i])
        elif kind == "code":
            assert picture == shown.pictures[i]
            assert len(picture) == len(weights)
        else:
            assert picture.shape == shown.pictures[i].shape


def test_modules_without_positions_or_maps(tmp_path: Path) -> None:
    task = opened(model={"placement": {"stage1.block1": Spec("timm:se")}})
    recorded = record_examples(task, with_gates(task))
    assert recorded.of_channels
    assert recorded.heats[0].ndim == 1
    folder = Storage(tmp_path / "trial")
    for placement in ({}, {"stage1.block1": Spec("conv1x1")}):
        task = opened(model={"placement": placement})
        save_examples(task, task.model().eval(), folder)
        assert read_examples(folder) is None
    (tmp_path / "trial").mkdir(exist_ok=True)
    (tmp_path / "trial" / MAPS_FILE).write_bytes(b"damaged")
    assert read_examples(folder) is None
    labels = torch.tensor(random.Random(0).choices(range(4), k=40))
    chosen = spread_over_classes(labels, 6)
    assert labels[chosen].tolist() == [0, 1, 2, 3, 0, 1]
    assert all(chosen[i] == (labels == i).nonzero()[0] for i in range(4))
    assert len(spread_over_classes(torch.tensor([0, 0]), 6)) == 2


@pytest.mark.parametrize("test", [True, False], ids=["confirmation", "search"])
def test_a_confirmation_keeps_the_examples_of_each_training(
    test: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(model={"placement": {"stage1.block1": Spec("multihead")}})
    trainings = Trainings(
        location=Storage(tmp_path), baseline=TINY, terms=Terms(equal="epochs", test=test), profile=False
    )
    assignment = build_assignment(config, Storage(tmp_path / "0"), trainings)
    *_, last = train_trial(assignment, HERE)
    assert last.finished
    kept = read_examples(Storage(tmp_path / "0"))
    assert isinstance(kept, MapExamples) == test
    if kept is not None:
        assert (kept.spec, kept.site) == ("multihead", "stage1.block1")
    # Pictures are not worth a training.
    monkeypatch.setattr(examples, "record_examples", lambda task, model: 1 / 0)
    save_examples(open_task(config, HERE), torch.nn.Identity(), Storage(tmp_path / "1"))
