"""Compare accuracy with fastai: xresnet18 with SSA on a tenth of Imagenette, 64 px, 5 epochs, 3 seeds.

This project's loop and fastai's Learner start from the same weights, train on the same images with the same
kinds of crops and flips, and follow the same schedule: AdamW, one cycle to 3e-3, label smoothing 0.1, batches
of 64. The same code then scores both models on the same validation images. The archive must be in the folder
AUTOML_TEST_DATA or in ../shared/data.
"""

import copy
import os
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from harness import Row, show, write
from torch import nn

from attention import Spec
from automl.config.device import find_device, is_gpu
from automl.config.runtime import Runtime
from automl.data.archive import extract_cached
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification.task import load_images
from automl.training.loop import evaluate, fit, start
from search.config import Model, TrialConfig

DEVICE = find_device()
SEEDS = (0, 1, 2)
DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
ARCHIVE = DATA / "imagenette2-128.tgz"


def config(seed: int) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="nette", path=str(ARCHIVE), size=64, subset=0.1),
        model=Model(backbone="xresnet18", placement={"stage1.block2.branch": Spec("ssa")}),
        training=ImageTraining(epochs=5, batch_size=64, learning_rate=3e-3, weight_decay=1e-2),
        seed=seed,
    )


def train_with_fastai(task: Task, model: nn.Module) -> None:
    from fastai.vision.all import (
        Adam,
        CategoryBlock,
        CrossEntropyLossFlat,
        DataBlock,
        Flip,
        ImageBlock,
        IndexSplitter,
        Learner,
        Normalize,
        RandomResizedCrop,
        imagenet_stats,
        parent_label,
        set_seed,
    )

    training = task.config.training
    assert isinstance(training, ImageTraining)
    root = extract_cached(ARCHIVE)
    files = [
        next(root.rglob(name)) if not (root / name).exists() else root / name
        for split in ("train", "validation")
        for name in load_images(task.config.data, split).names()
    ]
    count = len(load_images(task.config.data, "train"))
    set_seed(task.config.seed)
    loaders = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_items=lambda _: files,
        get_y=parent_label,
        splitter=IndexSplitter(range(count, len(files))),
        item_tfms=RandomResizedCrop(64, min_scale=0.35),
        batch_tfms=[Flip(), Normalize.from_stats(*imagenet_stats)],
    ).dataloaders(root, bs=training.batch_size, device=DEVICE)
    learner = Learner(
        loaders,
        model,
        loss_func=CrossEntropyLossFlat(label_smoothing=training.label_smoothing),
        opt_func=lambda params, lr, **kw: Adam(params, lr, mom=0.9, sqr_mom=0.99, eps=1e-6, wd=1e-2),
        wd_bn_bias=False,
    )
    if is_gpu(DEVICE):
        learner.to_fp16()
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(
            training.epochs,
            training.learning_rate,
            div=10,
            div_final=1e5,
            pct_start=0.3,
            moms=(0.9, 0.9, 0.9),
        )


def accuracy(task: Task, model: nn.Module) -> float:
    return 100 * evaluate(task, model)["accuracy"].item()


def main() -> None:
    warnings.filterwarnings("ignore")
    if not ARCHIVE.exists():
        sys.exit(f"{ARCHIVE} does not exist; set AUTOML_TEST_DATA to its folder")
    torch.set_num_threads(os.cpu_count() or 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = scratch
        for seed in SEEDS:
            task = open_task(config(seed), Runtime(device=DEVICE))
            state = start(task)
            theirs = copy.deepcopy(state.model)
            for _ in fit(task, state):
                pass
            train_with_fastai(task, theirs)
            a, b = accuracy(task, state.model), accuracy(task, theirs)
            rows.append(
                Row(
                    case=f"accuracy after 5 epochs, seed {seed}",
                    peer="fastai Learner",
                    ours=a,
                    theirs=b,
                    unit="%",
                    spread=(a / b, a / b),
                    ratio=a / b,
                )
            )
            show(rows[-1])
    ratios = [row.ratio for row in rows]
    mean_a, mean_b = (statistics.mean(getattr(row, side) for row in rows) for side in ("ours", "theirs"))
    rows.append(
        Row(
            case=f"mean accuracy over {len(SEEDS)} seeds",
            peer="fastai Learner",
            ours=mean_a,
            theirs=mean_b,
            unit="%",
            spread=(min(ratios), max(ratios)),
            ratio=mean_a / mean_b,
        )
    )
    show(rows[-1])
    write("quality", rows)


if __name__ == "__main__":
    main()
