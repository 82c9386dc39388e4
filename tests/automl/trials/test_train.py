import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from automl_cases import CPU, HERE, timeless, tiny
from mlflow import MlflowClient

from attention import InputError, Spec
from automl.cli.train_command import DEFAULTS, OTHERS
from automl.storage.storage import Storage
from automl.training import checkpoint
from automl.trials.train import default_site, place, run_train
from search.config import ImageData, Model, TrialConfig
from search.spaces import SPACES, random_draws

Cli = Callable[..., tuple[int, str, str]]


def only_run(store: MlflowClient) -> Any:
    (run,) = store.search_runs([store.get_experiment_by_name("train").experiment_id])
    return run


def test_train_leaves_a_checkpoint_a_log_and_a_run(store: MlflowClient, tmp_path: Path) -> None:
    told: list[float] = []
    result = run_train(
        tiny(training={"epochs": 2}),
        runtime=HERE,
        log="epochs.csv",
        storage="kept",
        tell=lambda task, metrics: told.append(metrics["epoch"]),
    )
    assert told == [record["epoch"] for record in result.history] == [1, 2]

    lines = list(csv.DictReader((tmp_path / "epochs.csv").open()))
    assert [{key: float(value) for key, value in line.items()} for line in lines] == result.history
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
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "infeasible")
    assert "became nan" in run.data.tags["reason"]
    assert not list((tmp_path / "searches").glob("*"))


def test_a_person_who_stops_a_training_keeps_what_there_is(store: MlflowClient) -> None:
    def stop(task: object, metrics: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_train(tiny(training={"epochs": 3}), runtime=HERE, tell=stop)
    run = only_run(store)
    assert run.info.status == "FAILED"
    file = Path(run.data.tags["automl.checkpoint"]) / checkpoint.CHECKPOINT_FILE
    assert checkpoint.read(Storage(file.parent), CPU)["epoch"] == 1


def test_a_placement_that_goes_in_later_is_trained_without_a_search(store: MlflowClient) -> None:
    placed = {"stage1.block2.branch": Spec("ssa")}
    late = tiny(training={"epochs": 3, "graft_at": 2}, model={"placement": placed})
    result = run_train(late, runtime=HERE)
    assert [record["epoch"] for record in result.history] == [3]
    assert "gate.stage1.block2.branch" in result.history[0]
    assert len(list((result.checkpoint.parent / "trunks").iterdir())) == 1


def test_a_training_is_resumed_after_its_last_epoch(store: MlflowClient, cli: Cli) -> None:
    """It ends as one that was never stopped, in the same run."""

    def stop(task: object, metrics: object) -> None:
        raise KeyboardInterrupt

    config = tiny(training={"epochs": 2, "average": 0.5})
    whole = run_train(config, runtime=HERE, name="whole")
    with pytest.raises(KeyboardInterrupt):
        run_train(config, runtime=HERE, name="mine", tell=stop)
    code, out, _ = cli("train", "--resume", "mine", "--device", "cpu", "--log", "rest.csv")
    assert (code, out.count("epoch ")) == (0, 1)
    runs = store.search_runs([store.get_experiment_by_name("train").experiment_id])
    run = next(run for run in runs if run.info.run_name == "plain mine")
    assert len(runs) == 2
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "complete")
    assert [m.step for m in store.get_metric_history(run.info.run_id, "accuracy")] == [1, 2]
    assert run.data.tags.keys() >= {"mlflow.source.name"}
    assert {one.dataset.name for one in run.inputs.dataset_inputs} == {"digits training", "digits validation"}
    ours = checkpoint.read(Storage("searches/mine"), CPU)
    theirs = checkpoint.read(Storage(whole.checkpoint.parent), CPU)
    assert timeless(ours["history"]) == timeless(theirs["history"])
    assert all(torch.equal(value, theirs["model"][name]) for name, value in ours["model"].items())
    for arguments, message in {
        ("--resume", "mine"): "'mine' has ended after 2 epochs",
        ("--resume", "yours"): "there is no checkpoint",
        ("--resume", "mine", "--epochs", "3"): "--epochs 3 cannot be combined with --resume",
        (*TRAIN[1:], "--name", "mine"): "mine exists; give another --name, or resume it: --resume mine",
    }.items():
        code, _, err = cli("train", *arguments)
        assert code == 2
        assert message in err


def test_trainings_of_one_second_do_not_meet(store: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda format: "20260101-000000")
    first, second = (run_train(tiny(seed=seed), runtime=HERE) for seed in (0, 1))
    assert first.checkpoint != second.checkpoint
    assert checkpoint.read(Storage(first.checkpoint.parent), CPU)["config"]["seed"] == 0


@pytest.mark.parametrize("option", ["log", "storage"])
def test_what_cannot_be_written_is_told_first(option: str, store: MlflowClient, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/proc/x\S* cannot be written"):
        run_train(tiny(), runtime=HERE, **{option: "/proc/x/y"})
    assert not list((tmp_path / "searches").glob("*"))


@pytest.mark.parametrize(
    ("backbone", "site"),
    [
        ("xresnet18", "stage1.block2.branch"),
        ("xresnet34", "stage1.block3.branch"),
        ("xresnet50", "stage1.block3.branch"),
    ],
)
def test_default_site_is_the_last_branch_of_the_first_stage(backbone: str, site: str) -> None:
    config = TrialConfig(data=ImageData(size=64), model=Model(backbone=backbone, options={"width": 0.25}))
    assert default_site(config) == site


def test_place() -> None:
    spec = Spec("ssa", {"ks": 3})
    assert place(tiny(), spec, "stage2.block1").model.placement == {"stage2.block1": spec}
    config = place(tiny(), spec)
    assert config.model.placement == {"stage1.block2.branch": spec}
    assert config.change(model={"placement": {}}) == tiny()


TRAIN = (
    "train",
    "--dataset",
    "digits",
    "--size",
    "24",
    "--subset",
    "0.2",
    "--width",
    "0.25",
    "--batch-size",
    "32",
)


def test_command_line(store: MlflowClient, cli: Cli) -> None:
    options = ("--attention", "ssa", "--symmetric", "--option", "ks=3", "--epochs", "1", "--device", "cpu")
    code, out, err = cli(*TRAIN, *options, "--mixup", "0.4", "--seed", "7")
    assert (code, err) == (0, "")
    assert re.search(r"^epoch 1/1  train_loss \d.*  loss \d.*  accuracy 0\.\d+", out, re.MULTILINE)
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


def test_dump_prints_the_model_and_trains_nothing(store: MlflowClient, cli: Cli) -> None:
    code, out, _ = cli(*TRAIN, "--attention", "sagan", "--where", "stage2.block1", "--dump")
    assert code == 0
    assert "site_attention" in out
    assert store.get_experiment_by_name("train") is None


def test_lr_find_writes_a_plot_and_trains_nothing(store: MlflowClient, tmp_path: Path, cli: Cli) -> None:
    code, out, _ = cli(*TRAIN, "--lr-find", "--device", "cpu")
    assert code == 0
    assert re.match(r"suggested learning rate \S+; the plot is lr_find.png", out)
    assert (tmp_path / "lr_find.png").stat().st_size > 1000
    assert store.get_experiment_by_name("train") is None


@pytest.mark.parametrize("dataset", ["digits", "woof"])
def test_defaults_fit_the_dataset(dataset: str) -> None:
    """As the baseline of the search space of that name."""
    space = SPACES[dataset]
    _, config = next(random_draws(space, 1, given=space.baseline))
    assert config is not None
    found = (config.data.size, dict(config.model.options), config.training.epochs)
    assert found == DEFAULTS.get(dataset, OTHERS)
    assert config.model.backbone == "xresnet18"
