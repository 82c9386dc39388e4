"""Two workers train like one: the same weights and metrics for the same global batch."""

import copy
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from attention import Spec
from attention.padding import padding
from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.training.loop import fit, start
from automl.training.step import make_step
from automl.training.sync_norm import synchronise
from backbones import build
from backbones.padded import MaskedBatchNorm1d
from search.config import TrialConfig
from tests.helpers.automl_cases import CPU, Regression, tiny
from tests.helpers.photographs import make_noise

# Workers add the sums over a batch in another order, and each step amplifies the differences in float32. At a
# rate this small they stay far below the update of the weights. A factor of two in a gradient, or a batch
# norm over half the batch, does not.
SMALL = {"optimizer": "sgd", "learning_rate": 1e-3}
MAX_DRIFT = 1e-3  # relative to the norm of the update
METRICS = {"rel": 1e-4, "abs": 1e-5}
# With some seeds, rounding decides a tie of maximum pooling. A fault would show with all of them.
SEEDS = (1, 2, 3)

PLACEMENT = {"stage1.block2.branch": Spec("ssa"), "stage2.block1": Spec("sagan")}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"training": SMALL},
    "attention": {"training": SMALL, "model": {"placement": PLACEMENT}},
    "mixup": {
        "metric": "auc",
        "training": {
            **{**SMALL, "mixup": 0.4, "cutmix": 1.0, "policy": "trivial", "erasing": 0.5},
            "class_weights": "balanced",
        },
    },
}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("noise")
    make_noise(folder)
    return str(folder)


def train(rank: int, workers: int, config: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    runtime = Runtime(device=CPU, precision="fp32", rank=rank, workers=workers)
    task = open_task(TrialConfig.from_json(config), runtime)
    state = start(task)
    first = [tensor.clone() for tensor in next(task.batches(0))]
    initial = {name: value.clone() for name, value in state.model.state_dict().items()}
    history = list(fit(task, state))
    return {"start": initial, "weights": state.model.state_dict(), "history": history, "batch": first}


def _process(rank: int, port: int, folder: str, function: Callable[..., Any], *arguments: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(function(rank, 2, *arguments), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def run_in_two_processes(folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(rank, 2, *arguments)` in two processes, and return their results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # All processes are forks of one that has done the imports, which take seconds.
    mp.get_context("forkserver").set_forkserver_preload([__name__, "fastai.vision.models.xresnet"])
    mp.start_processes(
        _process, (port, str(folder), function, *arguments), nprocs=2, start_method="forkserver"
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def compute_drift(single: dict[str, Any], double: dict[str, Any]) -> float:
    """Return the distance between the weights of two trainings, relative to the norm of the update.

    It is the largest over the kinds of weights.
    """
    drifts = []
    for kind in ("weight", "bias", "gamma", "running_mean", "running_var"):
        names = [name for name in single["weights"] if name.endswith(kind)]
        if names:
            update, distance = (
                torch.cat([(single["weights"][name] - other[name]).flatten() for name in names]).norm()
                for other in (single["start"], double["weights"])
            )
            drifts.append(float(distance / update))
    return max(drifts)


@pytest.mark.slow("trains in several processes")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow("another case")) if case == "plain" else case
        for case in CASES
    ],
)
def test_two_workers_train_like_one(case: str, noise: str, tmp_path: Path) -> None:
    drifts = []
    for seed in SEEDS:
        data = {"source": "folder", "path": noise, "subset": 1.0}
        config = tiny(data=data, seed=seed, **CASES[case])
        folder = tmp_path / str(seed)
        folder.mkdir()
        single = train(0, 1, config.to_json())
        double = run_in_two_processes(folder, train, config.to_json())
        # Each worker has half of the same batch.
        for whole, *halves in zip(single["batch"], *(result["batch"] for result in double), strict=True):
            joined = torch.stack(halves, dim=1).flatten(0, 1)  # workers take every second image
            torch.testing.assert_close(joined, whole)
        for name, weight in double[0]["weights"].items():
            torch.testing.assert_close(double[1]["weights"][name], weight, rtol=0, atol=0, msg=name)
        timeless = [[{**r, "seconds": 0, "processor_seconds": 0} for r in each["history"]] for each in double]
        assert timeless[0] == timeless[1], "metrics are over all workers, on each of them"
        drifts.append(compute_drift(single, double[0]))
        if drifts[-1] < MAX_DRIFT:
            break
    assert min(drifts) < MAX_DRIFT, drifts
    for record, expected in zip(double[0]["history"], single["history"], strict=True):
        for name in ("train_loss", "loss", "accuracy", "macro_f1", "auc", "learning_rate"):
            assert record[name] == pytest.approx(expected[name], **METRICS), name


def accumulate(rank: int, workers: int) -> dict[str, Any]:
    """Train on four batches in groups of three, and count the reductions of gradients after each."""
    torch.set_num_threads(1)
    task = Regression(batch_size=8, accumulate=3, optimizer="sgd")
    task.runtime = Runtime(device=CPU, precision="fp32", rank=rank, workers=workers)
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler)
    reductions: list[int] = []
    if isinstance(step.forward, nn.parallel.DistributedDataParallel):
        step.forward.register_comm_hook(
            None, lambda _, bucket: reductions.append(1) or allreduce_hook(dist.group.WORLD, bucket)
        )
    counts = []
    for rows in torch.arange(32).split(8):
        step((task.x[task.runtime.shard(rows)], task.y[task.runtime.shard(rows)]), 0.1)
        counts.append(len(reductions))
    step.finish()
    return {"weights": state.model.state_dict(), "counts": counts}


@pytest.mark.slow("trains in several processes")
def test_accumulated_gradients_are_reduced_once_a_group(tmp_path: Path) -> None:
    """The last group of an epoch is incomplete, and has the gradients of all workers, too."""
    expected = accumulate(0, 1)["weights"]
    for result in run_in_two_processes(tmp_path, accumulate):
        assert result["counts"] == [0, 0, 1, 1]
        for name, weight in result["weights"].items():
            torch.testing.assert_close(weight, expected[name], msg=name)


def test_batches_are_shared_and_statistics_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"batch_size must be a multiple of the workers.*got 32 with 3"):
        open_task(tiny(), Runtime(device=CPU, workers=3))
    larnn = build("larnn", classes=2, in_channels=3, hidden=4, heads=2, layers=1, norm="all")
    synchronise(larnn)
    reduced: list[torch.Size] = []

    def all_reduce(value: Tensor) -> None:  # Simulates a second worker with the same statistics.
        reduced.append(value.shape)
        value *= 2

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    larnn(torch.randn(4, 3, 5))
    assert sorted(reduced) == [(3, 4), (3, 4), (8,), (8,)]


def normalise(
    rank: int, workers: int, kind: type[nn.Module], x: Tensor, mask: Tensor | None
) -> dict[str, Any]:
    norm = synchronise(kind(3))
    inputs = x[rank::workers].clone().requires_grad_()
    with padding(None if mask is None else mask[rank::workers]):
        y = norm(inputs)
    y.backward(y.detach().sin())
    return {"y": y.detach(), "dx": inputs.grad, "dw": norm.weight.grad, "state": norm.state_dict()}


# One worker has more real positions than the other.
LENGTHS = torch.tensor([6, 2, 6, 1, 5, 3, 6, 1])


@pytest.mark.slow("trains in several processes")
@pytest.mark.parametrize("kind", ["images", "sequences", "padded sequences"])
def test_synchronised_norm_equals_the_norm_of_the_whole_batch(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    norm: type[nn.Module] = nn.BatchNorm2d if kind == "images" else MaskedBatchNorm1d
    whole = norm(3)
    x = 3 * torch.randn(8, 3, *((5, 5) if kind == "images" else (6,))) + 10
    mask = torch.arange(6) < LENGTHS[:, None] if kind == "padded sequences" else None
    halves = run_in_two_processes(tmp_path, normalise, norm, x, mask)
    x.requires_grad_()
    with padding(mask):
        y = whole(x)
    y.backward(y.detach().sin())
    assert x.grad is not None
    for key, expected in (("y", y), ("dx", x.grad)):
        both = torch.stack([half[key] for half in halves], dim=1).flatten(0, 1)
        torch.testing.assert_close(both, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(halves[0]["dw"] + halves[1]["dw"], whole.weight.grad, rtol=1e-4, atol=1e-4)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(halves[0]["state"][name], value, rtol=1e-4, atol=1e-4)


def test_synchronised_norms_keep_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda value: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    x = torch.randn(4, 3, 5, 5)
    whole = nn.Sequential(BatchNormAct2d(3), nn.BatchNorm2d(3, affine=False))
    expected = whole(x)
    torch.testing.assert_close(synchronise(copy.deepcopy(whole))(x), expected)
