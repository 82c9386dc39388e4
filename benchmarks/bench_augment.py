"""Compare augmentation of whole batches with torchvision's classes, which transform image by image.

Both draw the same operations for the same seeds. The images are those of a training at 64 px: cached squares
of 80 px, in batches of 64. Times are processor times of interleaved rounds. Operator calls are those that
reach torch's dispatcher.

A step of xresnet18 + SSA is timed without augmentation and with each policy, on whole batches and image by
image.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from harness import compare, write_values
from pictures import make_pictures
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from attention import Spec
from automl.config.runtime import Runtime
from automl.costs.time_ratio import interval
from automl.data.augment import apply_policy, erase_boxes
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification import task as task_module
from automl.training.clock import processor_time, time_in_turn
from automl.training.loop import plan_course, start, train_epoch
from automl.training.step import make_step
from search.config import Model, TrialConfig

BATCH, SIZE, SIDE = 64, 64, 80
ERASING = 0.25  # probability
IMAGES = 256  # of an epoch
BATCHES = 5  # of a measurement
ROUNDS, LIMIT = 7, 15.0  # rounds between two checks of the interval, and time of a row [s]
POLICIES = {"trivial": ("TrivialAugment", v2.TrivialAugmentWide), "rand": ("RandAugment", v2.RandAugment)}
Augment = Callable[[Tensor, Tensor], Tensor]


def transform_each(transform: Callable[[Tensor], Tensor], images: Tensor, seeds: Tensor) -> Tensor:
    """Transform each image `(C, H, W)` with its own seed."""
    with torch.random.fork_rng(devices=[]):
        transformed = []
        for image, seed in zip(images, seeds.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)
            transformed.append(transform(image))
    return torch.stack(transformed).contiguous(memory_format=torch.channels_last)


def apply_to_each(policy: str, images: Tensor, seeds: Tensor) -> Tensor:
    """Apply a policy as `apply_policy` does, with torchvision's class."""
    transform = POLICIES[policy][1]()
    return transform_each(transform, images.permute(0, 3, 1, 2), seeds).permute(0, 2, 3, 1)


class Calls(TorchDispatchMode):
    """Count operator calls."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def draw_seeds(seed: int) -> Tensor:
    return torch.randint(2**31, (BATCH,), generator=torch.Generator().manual_seed(seed))


def count_calls(augment: Augment, images: Tensor) -> dict[str, int]:
    """Return the operator calls of a batch: the median and the most of twenty."""
    counts = []
    for seed in range(20):
        seeds = draw_seeds(seed)
        with Calls() as calls:
            augment(images, seeds)
        counts.append(calls.count)
    return {"median": round(statistics.median(counts)), "most": max(counts)}


def make_timer(augment: Augment, images: Tensor) -> Callable[[], float]:
    """Return a function that returns the processor time of a batch [ms]."""

    def measure() -> float:
        start_time = processor_time()
        for seed in range(BATCHES):
            augment(images, draw_seeds(seed))
        return 1e3 * (processor_time() - start_time) / BATCHES

    return measure


def make_epoch(folder: Path, policy: Any, apply: Callable[..., Tensor]) -> Callable[[], float]:
    """Return a function that trains an epoch and returns the processor time of a step [ms]."""
    config = TrialConfig(
        data=ImageData(source="folder", path=str(folder), size=SIZE),
        model=Model(backbone="xresnet18", placement={"stage1.block2.branch": Spec("ssa")}),
        training=ImageTraining(batch_size=BATCH, epochs=1, policy=policy),
    )
    task = open_task(config, Runtime(device=torch.device("cpu")))
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler)
    course = plan_course(task)

    def epoch() -> float:
        start_time = processor_time()
        with patch.object(task_module, "apply_policy", apply):
            list(train_epoch(task, state, step, course, lambda *_: None))
        state.epoch = 0
        return 1e3 * (processor_time() - start_time) / task.steps()

    return epoch


def compare_steps(folder: Path) -> dict[str, Any]:
    """Return the time of a step with each policy, relative to a step without augmentation."""
    variants = {"none": make_epoch(folder, "none", apply_policy)}
    for policy, (name, _) in POLICIES.items():
        variants[f"{name}, whole batches"] = make_epoch(folder, policy, apply_policy)
        variants[f"{name}, image by image"] = make_epoch(folder, policy, apply_to_each)
    rounds = list(islice(time_in_turn(list(variants.values())), ROUNDS))
    result: dict[str, Any] = {"step": statistics.median(row[0] for row in rounds)}
    for i, name in enumerate(variants):
        if i:
            ratio, low, high = interval([row[i] / row[0] for row in rounds])
            result[name] = {"time_ratio": ratio, "spread": [low, high]}
            print(f"a step with {name}: {ratio:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return result


def main() -> None:
    images = torch.randint(0, 256, (BATCH, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(0))
    raw, normalised = images.to(torch.uint8), torch.randn(BATCH, 3, SIZE, SIZE)
    pairs: dict[str, tuple[Augment, Augment, Tensor]] = {
        name: (partial(apply_policy, policy), partial(apply_to_each, policy), raw)
        for policy, (name, _) in POLICIES.items()
    }
    pairs["random erasing"] = (
        partial(erase_boxes, probability=ERASING),
        partial(transform_each, v2.RandomErasing(ERASING)),
        normalised,
    )
    calls: dict[str, Any] = {}
    for name, (ours, theirs, batch) in pairs.items():
        changed, expected = (augment(batch, draw_seeds(0)).float() for augment in (ours, theirs))
        assert (changed - expected).abs().mean() < 0.01
        calls[name] = {
            "whole batches": count_calls(ours, batch), "image by image": count_calls(theirs, batch)
        }  # fmt: skip
        print(name, calls[name], flush=True)
    rows, steps = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = make_pictures(Path(scratch) / "pictures", train=IMAGES * 5 // 4, test=40)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            case = "1 thread" if threads == 1 else f"{threads} threads"
            for name, (ours, theirs, batch) in pairs.items():
                row = compare(
                    f"{name}, {case}", "torchvision, image by image",
                    make_timer(ours, batch), make_timer(theirs, batch),
                    unit="ms of processor time", rounds=ROUNDS, higher_is_better=False, limit=LIMIT,
                )  # fmt: skip
                rows.append(asdict(row))
            steps[case] = compare_steps(folder)
            write_values("augment", {"rows": rows, "calls": calls, "steps": steps})


if __name__ == "__main__":
    main()
