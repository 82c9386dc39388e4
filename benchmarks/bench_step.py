"""Compare training throughput with fastai's Learner and the essential loop of timm's train.py.

All three train the same model from the same weights on the same JPEG files with random resized crops, flips,
AdamW and label smoothing. Each follows its documentation: fastai with `to_fp16` on a GPU, timm with its
loader and automatic mixed precision in the device's fast type. On a CPU, images are counted per second of a
core, worker processes included, since rates by the clock change with other load. Epochs are timed in turn
until the interval of the ratio is narrow, or LIMIT has passed.

On a GPU, this project's loop with CUDA graphs is also compared with its loop without them.
"""

import copy
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness import Row, compare, core_time, write
from pictures import make_pictures
from torch import nn

from attention import Spec
from automl.config.device import device_name, find_device, is_gpu
from automl.config.runtime import Runtime
from automl.config.search_options import Compile
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.training.loop import plan_course, start, train_epoch
from automl.training.step import make_step
from search.config import Model, TrialConfig

DEVICE = find_device()
ON_GPU = is_gpu(DEVICE)
BATCH = 64
ROUNDS = 5 if ON_GPU else 3  # between two checks of the interval
LIMIT = 90.0  # time of a row [s]
UNIT = "images/s" if ON_GPU else "images per core second"
CASES = [
    (backbone, attention, size)
    for size in (64, 128)
    for backbone in ("xresnet18", "xresnet50")
    for attention in (None, "ssa", "sagan")
    # A CPU measures the small model with all attentions, and two others with SSA.
    if ON_GPU
    or (backbone, size) == ("xresnet18", 64)
    or ((backbone, size, attention) in (("xresnet50", 64, "ssa"), ("xresnet18", 128, "ssa")))
]


def count_images(backbone: str, size: int) -> int:
    """Return the images of an epoch: enough that the start of the loaders' workers hardly counts."""
    return 8192 if ON_GPU else 512 if (backbone, size) == ("xresnet18", 64) else 192


PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16 FLOP/s of the data sheets


def make_epoch(config: TrialConfig, mode: Compile = "auto") -> tuple[Callable[[], float], nn.Module]:
    """Return a function that trains an epoch and returns images per second, and the model."""
    task = open_task(config, Runtime(device=DEVICE, compile=mode))
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler)
    images = task.steps() * BATCH
    course = plan_course(task)

    def epoch() -> float:
        start_time = core_time(DEVICE)
        list(train_epoch(task, state, step, course, lambda *_: None))
        took = core_time(DEVICE) - start_time
        state.epoch = 0
        return images / took

    return epoch, state.model


def compare_graphs(case: str, config: TrialConfig) -> Row:
    """Compare CUDA graphs with step by step."""
    (captured, _), (plain, _) = make_epoch(config, "graphs"), make_epoch(config, "off")
    return compare(
        case, "step by step", captured, plain, unit=UNIT, rounds=ROUNDS, higher_is_better=True, limit=LIMIT
    )


def fastai_learner(folder: Path, size: int, model: nn.Module) -> Callable[[], float]:
    from fastai.vision.all import (
        Callback,
        CrossEntropyLossFlat,
        Flip,
        ImageDataLoaders,
        Learner,
        Normalize,
        RandomResizedCrop,
        imagenet_stats,
    )

    loaders = ImageDataLoaders.from_folder(
        folder,
        valid="val",
        item_tfms=RandomResizedCrop(size, min_scale=0.35),
        batch_tfms=[Flip(), Normalize.from_stats(*imagenet_stats)],
        bs=BATCH,
        device=DEVICE,
    )
    learner = Learner(loaders, model, loss_func=CrossEntropyLossFlat(label_smoothing=0.1))
    if ON_GPU:
        learner.to_fp16()
    images = len(loaders.train) * BATCH

    class Stopwatch(Callback):
        """Timer of the training half of an epoch."""

        def before_train(self) -> None:
            self.start = core_time(DEVICE)

        def after_train(self) -> None:
            self.took = core_time(DEVICE) - self.start

    stopwatch = Stopwatch()

    def epoch() -> float:
        with learner.no_bar(), learner.no_logging():
            learner.fit(1, cbs=stopwatch)
        return images / stopwatch.took

    return epoch


def timm_loop(folder: Path, size: int, model: nn.Module) -> Callable[[], float] | None:
    try:
        from timm.data import create_dataset, create_loader
        from timm.loss import LabelSmoothingCrossEntropy
        from timm.optim import create_optimizer_v2
    except ImportError:
        return None
    loader = create_loader(
        create_dataset("", root=str(folder / "train")),
        input_size=(3, size, size),
        batch_size=BATCH,
        is_training=True,
        scale=(0.35, 1.0),
        use_prefetcher=ON_GPU,
        num_workers=os.cpu_count() or 1,
        device=DEVICE,
        persistent_workers=True,
    )
    model = model.to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=1e-2)
    loss_of = LabelSmoothingCrossEntropy(0.1)
    dtype = torch.bfloat16
    images = len(loader) * BATCH

    def train() -> float:
        start_time = core_time(DEVICE)
        model.train()
        for x, y in loader:
            x = x.to(DEVICE).contiguous(memory_format=torch.channels_last)
            y = y.to(DEVICE)
            with torch.autocast(DEVICE.type, dtype):
                loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return images / (core_time(DEVICE) - start_time)

    return train


def check_loss(config: TrialConfig, model: nn.Module) -> None:
    """Check that both sides minimise the same function, on a batch."""
    from torch.nn.functional import cross_entropy

    task = open_task(config, Runtime(device=DEVICE, precision="fp32"))
    batch = next(task.batches(0))
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        expected = cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
        torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-4, atol=1e-4)


def fraction_of_peak(config: TrialConfig, rate: float) -> str:
    """Return the fraction of the GPU's peak at `rate` images/s; a step counts as three forward passes."""
    name = device_name(DEVICE)
    peak = next((value for key, value in PEAK.items() if key in name), None)
    if peak is None:
        return ""
    from torch.utils.flop_counter import FlopCounterMode

    task = open_task(config, Runtime(device=DEVICE))
    model, x = task.model(), task.example(1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(x)
    return f", {3 * counter.get_total_flops() * rate / peak:.1%} of peak"


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(os.cpu_count() or 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        for backbone, attention, size in CASES:
            count = count_images(backbone, size) * 5 // 4  # a fifth is this project's validation split
            folder = make_pictures(Path(scratch) / f"pictures{count}", train=count, test=40)
            site = "stage1.block2.branch" if backbone == "xresnet18" else "stage1.block3.branch"
            config = TrialConfig(
                data=ImageData(source="folder", path=str(folder), size=size),
                model=Model(backbone=backbone, placement={site: Spec(attention)} if attention else {}),
                training=ImageTraining(batch_size=BATCH, epochs=1),
            )
            case = f"{backbone}{'+' + attention if attention else ''} {size}px"
            if ON_GPU:
                rows.append(compare_graphs(case, config))
            epoch, model = make_epoch(config)
            peers = {
                "fastai Learner": fastai_learner(folder, size, copy.deepcopy(model)),
                "timm train.py": timm_loop(folder, size, copy.deepcopy(model)),
            }
            check_loss(config, model)
            epoch()
            for peer, measure in peers.items():
                if measure is None:
                    continue
                measure()
                row = compare(
                    case, peer, epoch, measure, unit=UNIT, rounds=ROUNDS, higher_is_better=True, limit=LIMIT
                )
                if ON_GPU:
                    row = Row(**{**vars(row), "case": case + fraction_of_peak(config, row.ours)})
                rows.append(row)
    write("step", rows)


if __name__ == "__main__":
    main()
