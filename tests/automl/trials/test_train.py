import csv
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import ray.train.torch
import torch
from mlflow import MlflowClient
from ray.exceptions import RayActorError
from ray.train import WorkerGroupError

from automl.base.errors import InputError
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.training import checkpoint
from automl.trials import multi_worker
from automl.trials.train import append_line, run_train
from cluster.connect import Node
from cluster.resources import TrialResources
from search.config import TrialConfig
from search.record import Metrics, Report
from search.tuner import RETRIES
from tests.helpers.automl_cases import CPU, HERE, Cli, timeless, tiny
from tests.helpers.confirm_cases import RECORDS, fake_search
from tests.helpers.imitated_gpus import Driver


def only_run(store: MlflowClient) -> Any:
    (run,) = store.search_runs([store.get_experiment_by_name("train").experiment_id])
    return run


def test_train_writes_a_checkpoint_a_log_and_a_run(store: MlflowClient, tmp_path: Path) -> None:
    epochs: list[float] = []
    result = run_train(
        tiny(training={"epochs": 2}),
        runtime=HERE,
        log="epochs.csv",
        storage="kept",
        tell=lambda task, metrics: epochs.append(metrics["epoch"]),
    )
    assert epochs == [record["epoch"] for record in result.history] == [1, 2]

    lines = list(csv.DictReader((tmp_path / "epochs.csv").open()))
    assert [{key: float(value) for key, value in line.items()} for line in lines] == result.history
    append_line(tmp_path / "epochs.csv", {"epoch": 3, "of_a_gpu": 1.0})
    assert (tmp_path / "epochs.csv").read_text().endswith("\n3" + "," * (len(lines[0]) - 1) + "\n")
    assert (tmp_path / "epochs.csv").read_text().count("epoch,") == 1

    content = checkpoint.read(Storage(result.checkpoint.parent), CPU)
    assert content["epoch"] == 2
    assert content["history"] == result.history
    assert result.checkpoint.is_relative_to(tmp_path / "kept")

    run = only_run(store)
    assert run.info.run_id == result.run_id
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "complete")
    assert run.data.tags["automl.checkpoint"] == str(result.checkpoint.parent)
    assert run.data.metrics["accuracy"] == result.history[-1]["accuracy"]


def test_a_diverging_training_is_infeasible(store: MlflowClient, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="became nan in epoch 1, step 2; lower the learning rate"):
        run_train(tiny(training={"learning_rate": 1e30}), runtime=HERE)
    run = only_run(store)
    assert (run.info.status, run.data.tags["state"]) == ("FAILED", "infeasible")
    assert "became nan" in run.data.tags["reason"]
    assert not list((tmp_path / "searches").glob("*"))


def test_a_stopped_training_keeps_its_checkpoint(store: MlflowClient) -> None:
    def stop(task: object, metrics: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_train(tiny(training={"epochs": 3}), runtime=HERE, tell=stop)
    run = only_run(store)
    assert run.info.status == "FAILED"
    file = Path(run.data.tags["automl.checkpoint"]) / checkpoint.CHECKPOINT_FILE
    assert checkpoint.read(Storage(file.parent), CPU)["epoch"] == 1


def test_a_training_is_resumed_after_its_last_epoch(store: MlflowClient, cli: Cli) -> None:
    """The resumed training equals one that was never stopped, in the same run."""

    def stop(task: object, metrics: object) -> None:
        raise KeyboardInterrupt

    config = tiny(training={"epochs": 2, "average": 0.5})
    whole = run_train(config, runtime=HERE, name="whole")
    with pytest.raises(KeyboardInterrupt):
        run_train(config, runtime=HERE, name="mine", tell=stop)
    code, out, _ = cli("train", "--resume", "mine", "--device", "cpu")
    assert (code, out.count("epoch ")) == (0, 1)
    runs = store.search_runs([store.get_experiment_by_name("train").experiment_id])
    run = next(run for run in runs if run.info.run_name.startswith("plain mine "))
    assert len(runs) == 2
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "complete")
    assert [m.step for m in store.get_metric_history(run.info.run_id, "accuracy")] == [1, 2]
    assert run.data.tags.keys() >= {"mlflow.source.name"}
    assert {dataset_input.dataset.name for dataset_input in run.inputs.dataset_inputs} == {
        "digits training",
        "digits validation",
    }
    resumed = checkpoint.read(Storage("searches/mine"), CPU)
    uninterrupted = checkpoint.read(Storage(whole.checkpoint.parent), CPU)
    assert timeless(resumed["history"]) == timeless(uninterrupted["history"])
    assert all(torch.equal(value, uninterrupted["model"][name]) for name, value in resumed["model"].items())
    code, _, err = cli(*TRAIN, "--name", "mine")
    assert code == 2
    assert "mine exists; give another --name, or resume it: --resume mine" in err


def test_trainings_started_in_the_same_second_have_different_folders(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda format: "20260101-000000")
    first, second = (run_train(tiny(seed=seed), runtime=HERE) for seed in (0, 1))
    assert first.checkpoint != second.checkpoint
    assert checkpoint.read(Storage(first.checkpoint.parent), CPU)["config"]["seed"] == 0


TRAIN = (
    "train",
    "--dataset",
    "digits",
    "--size",
    "24",
    "--subset",
    "0.2",
    "--set",
    "model.options.width=0.25",
    "--batch-size",
    "32",
)


def test_a_training_is_dumped_or_printed(store: MlflowClient, cli: Cli) -> None:
    code, out, _ = cli(*TRAIN, "--attention", "sagan", "--where", "stage2.block1", "--dump")
    assert code == 0
    assert "site_attention" in out
    assert store.get_experiment_by_name("train") is None
    options = ("--attention", "ssa-sym", "--option", "ks=3", "--epochs", "1", "--device", "cpu")
    code, out, err = cli(*TRAIN, *options, "--mixup", "0.4", "--seed", "7")
    assert (code, err) == (0, "")
    assert re.search(r"^epoch 1/1  train_loss \d.*  loss \d.*  accuracy [\d.]+ %", out, re.MULTILINE)
    run = only_run(store)
    assert (
        run.data.params.items()
        >= {
            "types": "ssa-sym",
            "sites": "stage1.block2.branch",
            "mixup": "0.4",
            "seed": "7",
            "size": "24",
        }.items()
    )
    assert f"automl export --run {run.info.run_id}" in out
    content = checkpoint.read(Storage(Path(re.search(r"checkpoint (\S+)", out).group(1)).parent), CPU)  # type: ignore[union-attr]
    assert content["config"]["model"]["placement"]["stage1.block2.branch"] == {"type": "ssa-sym", "ks": 3}


@pytest.mark.slow("a training")
def test_a_space_of_another_task_is_trained(store: MlflowClient, cli: Cli) -> None:
    """LARNN on sequences, with options of the space and of the configuration."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3, 4)).astype(np.float32)
    np.savez("mine.npz", x_train=x, y_train=np.array(["run", "walk"] * 30))
    arguments = ("--space", "ucihar", "--data", "mine.npz", "--set", "backbone=larnn", "--set", "window=30",
                 "--set", "model.options.hidden=8", "--set", "model.options.heads=2")  # fmt: skip
    code, out, err = cli("train", *arguments, "--batch-size", "16", "--device", "cpu", "--lr-find")
    assert code == 0, err
    assert re.match(r"suggested learning rate \S+; the plot is lr_find.png", out)
    assert Path("lr_find.png").stat().st_size > 1000
    code, out, err = cli("train", *arguments, "--epochs", "1", "--batch-size", "16", "--device", "cpu",
                         "--name", "larnn")  # fmt: skip
    assert code == 0, err
    assert re.search(r"^result +accuracy [\d.]+ %, balanced_accuracy [\d.]+ %, .*loss \d", out, re.MULTILINE)
    run = only_run(store)
    assert run.data.params.items() >= {"backbone": "larnn", "options.window": "30", "epochs": "1"}.items()
    content = checkpoint.read(Storage("searches/larnn"), CPU)
    assert content["config"]["model"]["options"].items() >= {"hidden": 8, "heads": 2, "window": 30}.items()


def test_a_configuration_of_a_search_can_be_trained_again(
    store: MlflowClient, cli: Cli, tmp_path: Path
) -> None:
    fake_search(tmp_path / "searches")
    code, _, err = cli("train", "--like", "mine:1", "--subset", "0.2", "--epochs", "1", "--seed", "5",
                         "--device", "cpu", "--name", "again")  # fmt: skip
    assert code == 0, err
    content = checkpoint.read(Storage("searches/again"), CPU)
    config = TrialConfig.from_json(content["config"])
    change = {"data": {"subset": 0.2}, "training": {"epochs": 1}, "seed": 5}
    assert config == RECORDS[1].config.change(**change)


def test_several_workers_are_started_and_followed(
    store: MlflowClient, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reports of the first worker become the training's metrics. Ray is simulated."""
    started: list[tuple[TrialConfig, Path, int]] = []

    def yield_reports(
        config: TrialConfig, folder: Path, shape: TrialResources, runtime: Any
    ) -> Iterator[Report]:
        started.append((config, folder, shape.workers))
        history: list[Metrics] = []
        for epoch in (1, 2):
            record = {"epoch": epoch, "resource": epoch, "train_loss": 1.0, "accuracy": 0.1 * epoch}
            history = [*history, {**record, "seconds": 1.0, "time": 0.0}]
            (folder / "checkpoint.pt").touch()
            yield Report(history=history, finished=epoch == 2)

    monkeypatch.setattr(multi_worker, "_reports", yield_reports)
    monkeypatch.setattr(multi_worker, "connect", lambda **_: nullcontext())
    monkeypatch.setattr(multi_worker, "wait_for_capacity", lambda *_: None)
    monkeypatch.setattr(multi_worker, "list_nodes", lambda: {"here": Node("here", {"CPU": 64.0})})
    code, out, err = cli(*TRAIN, "--epochs", "2", "--workers", "2", "--device", "cpu")
    assert code == 0, err
    ((config, folder, workers),) = started
    assert (config.training.epochs, workers) == (2, 2)
    run = only_run(store)
    assert run.data.tags["state"] == "complete"
    assert [m.step for m in store.get_metric_history(run.info.run_id, "accuracy")] == [1, 2]
    assert [m.value for m in store.get_metric_history(run.info.run_id, "accuracy")] == [0.1, 0.2]
    assert [path.name for path in folder.iterdir()] == ["checkpoint.pt"]
    assert "result     accuracy 20 %" in out


def test_the_files_of_ray_train_stay_on_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an object store they would need markers of folders, which some stores reject."""
    trainer = Mock()
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", trainer)
    multi_worker.WorkerGroup(TrialResources(workers=2), str(tmp_path))._fit(None, None)
    folder = Path(trainer.call_args.kwargs["run_config"].storage_path)
    assert folder.parent == tmp_path
    assert not folder.exists()


def test_workers_have_devices_and_may_be_killed(
    monkeypatch: pytest.MonkeyPatch, gpus: Driver, tmp_path: Path
) -> None:
    monkeypatch.setattr(multi_worker, "count_cores", lambda: 8)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(multi_worker, "list_nodes", lambda: {"here": Node("here", {"CPU": 8.0, "GPU": 4.0})})
    assert multi_worker.plan_resources(2, HERE) == TrialResources(cpus=4, gpus=0, workers=2)
    cuda = Runtime(device=find_device("cuda"))
    assert multi_worker.plan_resources(4, cuda) == TrialResources(cpus=1, gpus=1, workers=4)
    with pytest.raises(InputError, match="a trial asks for 5 workers of 1 CPUs and 1 GPUs each"):
        multi_worker.plan_resources(5, cuda)
    train = Mock(side_effect=WorkerGroupError("forty lines", {0: RayActorError()}))
    monkeypatch.setattr(multi_worker.WorkerGroup, "train", train)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=r"log\.txt\. Continue it: automl train --resume mine"):
        list(multi_worker._reports(tiny(), tmp_path / "mine", TrialResources(workers=2), HERE))
    assert train.call_args_list == [train.call_args_list[0]] * (RETRIES + 1)
