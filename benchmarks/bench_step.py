"""Training throughput: our loop against fastai's Learner and the essential loop of timm's train.py.

All three train the same model from the same weights on the same JPEG files with random resized crops,
flips, AdamW and label smoothing, each as its documentation has it: fastai with `to_fp16` on a GPU, timm's
loader and automatic mixed precision in the device's fast type.
"""

import copy
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness import Row, compare, find_device, seconds, write
from pictures import make_pictures
from torch import nn

from attention import Spec
from automl.loop import start, train_epoch
from automl.runtime import Runtime
from automl.tasks import open_task
from search.config import Data, Model, Training, TrialConfig

DEVICE = find_device()
ON_GPU = DEVICE.type == "cuda"
BATCH = 64
IMAGES = 8192 if ON_GPU else 320
ROUNDS = 5 if ON_GPU else 3
CASES = [
    (backbone, attention, size)
    for size in (64, 128)
    for backbone in ("xresnet18", "xresnet50")
    for attention in (None, "ssa", "sagan")
    if ON_GPU or size == 64 or (backbone == "xresnet18" and attention != "sagan")
]
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16 FLOP/s of the data sheets


def ours(config: TrialConfig) -> tuple[Callable[[], float], nn.Module]:
    """An epoch's training in images a second, and the model."""
    task = open_task(config, Runtime(device=DEVICE))
    state = start(task)
    images = task.steps() * BATCH

    def epoch() -> float:
        took = seconds(lambda: train_epoch(task, state), DEVICE)
        state.epoch = 0
        return images / took

    return epoch, state.model


def fastai_learner(folder: Path, size: int, model: nn.Module) -> Callable[[], float]:
    from fastai.vision.all import (
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
    learner.create_opt()

    def epoch() -> float:
        with learner.no_bar(), learner.no_logging():
            learner.epoch = 0
            return images / seconds(lambda: _train_only(learner), DEVICE)

    return epoch


def _train_only(learner) -> None:
    """The training half of Learner.fit, with its callbacks, one epoch."""
    learner.n_epoch = 1
    learner("before_fit")
    learner._do_epoch_train()
    learner("after_fit")


def timm_loop(folder: Path, size: int, model: nn.Module) -> Callable[[], float] | None:
    try:
        import timm
        from timm.data import create_dataset, create_loader
        from timm.loss import LabelSmoothingCrossEntropy
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
    model = model.to(DEVICE, memory_format=torch.channels_last)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=1e-2)
    loss_of = LabelSmoothingCrossEntropy(0.1)
    dtype = torch.bfloat16
    images = len(loader) * BATCH

    def train() -> None:
        model.train()
        for x, y in loader:
            x = x.to(DEVICE).contiguous(memory_format=torch.channels_last)
            y = y.to(DEVICE)
            with torch.autocast(DEVICE.type, dtype):
                loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return lambda: images / seconds(train, DEVICE)


def check(a: nn.Module, b: nn.Module, size: int) -> None:
    """Both sides train the same function."""
    x = torch.randn(2, 3, size, size, device=DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(
            a.eval()(x), b.to(DEVICE).eval()(x), rtol=1e-2, atol=1e-2, check_stride=False
        )


def share_of_peak(config: TrialConfig, rate: float) -> str:
    """The share of the GPU's peak that `rate` images a second are: three forward passes make a step."""
    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAK.items() if key in name), None)
    if peak is None:
        return ""
    from torch.utils.flop_counter import FlopCounterMode

    model = open_task(config, Runtime(device=DEVICE)).model()
    x = torch.randn(1, 3, config.data.size, config.data.size, device=DEVICE)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(x)
    return f", {3 * counter.get_total_flops() * rate / peak:.1%} of peak"


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(os.cpu_count() or 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = make_pictures(Path(scratch) / "pictures", train=IMAGES * 5 // 4, test=40)
        for backbone, attention, size in CASES:
            site = "stage1.block2.branch" if backbone == "xresnet18" else "stage1.block3.branch"
            config = TrialConfig(
                data=Data(source="folder", path=str(folder), size=size),
                model=Model(backbone=backbone, placement={site: Spec(attention)} if attention else {}),
                training=Training(batch_size=BATCH, epochs=1),
            )
            epoch, model = ours(config)
            peers = {
                "fastai Learner": fastai_learner(folder, size, copy.deepcopy(model)),
                "timm train.py": timm_loop(folder, size, copy.deepcopy(model)),
            }
            check(model, copy.deepcopy(model), size)
            epoch()
            for peer, measure in peers.items():
                if measure is None:
                    continue
                measure()
                case = f"{backbone}{'+' + attention if attention else ''} {size}px"
                row = compare(
                    case, peer, epoch, measure, unit="images/s", rounds=ROUNDS, higher_is_better=True
                )
                if ON_GPU:
                    row = Row(**{**vars(row), "case": case + share_of_peak(config, row.ours)})
                rows.append(row)
    write("step", rows)


if __name__ == "__main__":
    main()
