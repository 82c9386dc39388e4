"""The ways of training that only a GPU has, in this process."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

from attention import Spec
from automl.config.device import is_out_of_memory
from automl.config.runtime import Runtime
from automl.export.formats import forms_of
from automl.export.run_export import run_export
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.training import checkpoint
from automl.training.loop import fit, start
from automl.trials.train import run_train
from search.config import TrialConfig
from tests.helpers.automl_cases import EVERY_ATTENTION, tiny

pytestmark = pytest.mark.gpu

IMAGES = tiny(model={"placement": {"stage1.block2.branch": Spec("ssa")}}, training={"epochs": 2})
TOKENS = TrialConfig(
    task="language-modelling",
    data=LanguageData(source="recall", context=12, vocabulary=9, pairs=2, gap=1, examples=256),
    model=LanguageModel(options={"depth": 2, "width": 16, "heads": 2, "mlp": 16}),
    training=LanguageTraining(epochs=2, batch_size=8),
)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return the graphs that are replayed, one after another."""
    replayed: list[object] = []
    replay = torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    yield replayed
    torch.compiler.reset()


def open_on(gpu: torch.device, config: TrialConfig, compile: str = "off") -> Task:
    return open_task(config, Runtime(device=gpu, precision="fp32", compile=compile))  # type: ignore[arg-type]


def losses(task: Task) -> list[float]:
    return [metrics["train_loss"] for metrics in fit(task, start(task))]


@pytest.mark.parametrize(("config", "mode"), [(IMAGES, "graphs"), (TOKENS, "graphs"), (TOKENS, "inductor")])
def test_a_compiled_training_computes_the_same(
    config: TrialConfig, mode: str, gpu: torch.device, replays: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    expected = losses(open_on(gpu, config))
    with caplog.at_level(logging.WARNING, "automl"):
        assert losses(open_on(gpu, config, mode)) == pytest.approx(expected, rel=0.05)
    if gpu.type != "cpu":
        assert replays or mode != "graphs"
        assert not caplog.records


def test_a_share_of_memory_ends_no_neighbour(gpu: torch.device) -> None:
    """A trial that asks for more than its share runs out of memory, and trains on with less."""
    if gpu.type == "cpu":
        pytest.skip("a CPU has no shares")
    size = torch.cuda.mem_get_info(gpu)[1]
    try:
        runtime = Runtime(device=gpu, memory_fraction=0.05)
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            torch.empty(size // 10, dtype=torch.uint8, device=gpu)
        assert is_out_of_memory(caught.value)
        task = open_task(IMAGES, runtime)
        assert len(list(fit(task, start(task)))) == 2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)


def test_a_resumed_training_goes_on_as_before(gpu: torch.device, tmp_path: Path) -> None:
    task = open_on(gpu, IMAGES)
    expected = losses(task)
    state = start(task)
    first = next(iter(fit(task, state)))
    checkpoint.save(Storage(str(tmp_path)), IMAGES, state, [first])
    torch.manual_seed(4711)
    resumed = start(task)
    checkpoint.restore(resumed, checkpoint.read(Storage(str(tmp_path)), gpu))
    assert first["train_loss"] == pytest.approx(expected[0], rel=0.05)
    assert [metrics["train_loss"] for metrics in fit(task, resumed)] == pytest.approx(expected[1:], rel=0.05)


def test_a_model_trained_on_a_gpu_is_exported(gpu: torch.device, store: MlflowClient, tmp_path: Path) -> None:
    """In the default precision, with every attention. Export compares each file with the trained model."""
    trained = run_train(tiny(model={"placement": EVERY_ATTENTION}), runtime=Runtime(device=gpu))
    exported = run_export("model", run=trained.run_id)
    assert exported.differences.keys() == {*forms_of("model"), "mlflow-model"}
    assert all(0 <= difference <= 1e-4 for difference in exported.differences.values())
