"""Measure training steps on a GPU against plain loops, in a few minutes, all interleaved.

- A step of xresnet18 at 64 px and of xresnet50 at 128 px: images a second of this project in the modes `off`
  and `auto`, as users run it, against timm's ResNet with a batch that stays on the device.
- The decoder `gpt` at two sizes: tokens a second in the modes `off`, `graphs`, `auto` and `inductor`, against
  a plain loop of GPT-2's layers, eager and compiled. With it the share of the card's peak, at 6 operations a
  weight and token.
- Recall from nothing to a verdict, in seconds.
- The baseline and one variant of xresnet18 with ten seeds each on images of 32 px, one training at a time:
  the seconds from the search's end to the verdict, and the share of them in which a training ran.

A second run of the last mode ("again") shows the noise. Without a GPU it is a smoke test of tiny sizes, and
writes no file.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import bench_language
import plain_gpt
import timm
import torch
import torch.nn.functional as F
from harness import Row, device_name, summarise, write_values
from pictures import make_pictures
from torch import Tensor, nn

from automl.config.device import copy_ahead, find_device, is_gpu, synchronise
from automl.config.runtime import Runtime
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.language_modelling import LanguageModel
from automl.training.loop import start
from automl.training.step import make_step
from search.config import Model, TrialConfig
from search.study import open_study, read_history

DEVICE = find_device()
GPU = is_gpu(DEVICE)
ROUNDS, WARM_UP = 3, 22  # repetitions of all rates; steps until graphs are captured and layers compiled
LONG = 100_000  # steps of a training, for which `auto` does what pays in a long one
PEAK = 989e12  # bf16 operations a second of an H100 without sparsity, by its data sheet
CLIP = 1.0
IMAGES = (
    [("xresnet18", "resnet18", 64), ("xresnet50", "resnet50", 128)]
    if GPU
    else [("xresnet18", "resnet18", 32)]
)
# Sizes, context, batch size and steps of a measurement.
DECODERS: list[tuple[dict[str, int], int, int, int]] = (
    [
        ({"depth": 4, "width": 128, "heads": 4}, 256, 64, 40),
        ({"depth": 12, "width": 768, "heads": 12}, 1024, 16, 20),
    ]
    if GPU
    else [({"depth": 2, "width": 32, "heads": 2}, 64, 4, 2)]
)


def own_step(config: TrialConfig, mode: str) -> Callable[[], None]:
    """Return a function that trains on the next batch, as a trial does."""
    task: Task = open_task(config, Runtime(device=DEVICE, compile=mode))  # type: ignore[arg-type]
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler, LONG)
    state.model.train()
    batches = (batch for epoch in count() for batch in task.batches(epoch))

    def train() -> None:
        step(next(batches), 1e-3)

    return train


def plain_step(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Return a function that trains on the next batch in a plain loop, in bfloat16."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)

    def step() -> None:
        x, y = next(batches)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            output = model(x)
        F.cross_entropy(output.flatten(0, -2).float(), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rate(step: Callable[[], None], repeat: int, size: int) -> float:
    """Return the inputs a second of `repeat` steps."""
    synchronise(DEVICE)
    begin = time.perf_counter()
    for _ in range(repeat):
        step()
    synchronise(DEVICE)
    return repeat * size / (time.perf_counter() - begin)


def compare_all(
    case: str,
    ours: dict[str, Callable[[], None]],
    peers: dict[str, Callable[[], None]],
    repeat: int,
    size: int,
    unit: str,
) -> list[Row]:
    """Return a row for each mode and each peer, from `ROUNDS` rates of each in turn."""
    steps = {**{f"this project, {mode}": step for mode, step in ours.items()}, **peers}
    for name, step in steps.items():
        begin = time.perf_counter()
        for _ in range(WARM_UP if GPU else 2):
            step()
        synchronise(DEVICE)
        print(f"{case}: {name} is warm after {time.perf_counter() - begin:.1f} s", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            rates[name].append(rate(step, repeat, size))
    own = list(rates)[: len(ours)]
    return [
        summarise(
            f"{case}, {name}",
            peer,
            list(zip(rates[name], rates[peer], strict=True)),
            unit=unit,
            higher_is_better=True,
        )
        for name in own
        for peer in (*peers, own[-1])
        if name != peer
    ]


def compare_images(folder: str) -> list[Row]:
    rows = []
    for backbone, peer, size in IMAGES:
        batch = 64 if GPU else 8
        config = TrialConfig(
            data=ImageData(source="folder", path=folder, size=size),
            model=Model(backbone=backbone),
            training=ImageTraining(batch_size=batch),
        )
        model = timm.create_model(peer, num_classes=10).to(DEVICE, memory_format=torch.channels_last).train()
        x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
        fixed = (x, torch.randint(10, (batch,), device=DEVICE))
        peers = {f"timm's {peer}, fixed batch": plain_step(model, (fixed for _ in count()))}
        modes = ("off", "auto", "auto again") if GPU else ("off",)
        ours = {name: own_step(config, name.split()[0]) for name in modes}
        rows += compare_all(f"{backbone} at {size} px", ours, peers, 40 if GPU else 2, batch, "images/s")
    return rows


def compare_decoders(text: Path) -> tuple[list[Row], dict[str, float]]:
    rows: list[Row] = []
    fractions: dict[str, float] = {}
    for sizes, context, batch, repeat in DECODERS:
        bench_language.DEVICE, bench_language.SIZES = DEVICE, sizes
        task = bench_language.open_language(text, context, batch, 0)
        config = task.config.change(model=asdict(LanguageModel(options=sizes)))
        windows = plain_gpt.random_windows(bench_language.all_tokens(task), context, batch)
        on_device: Iterator[Any] = ((copy_ahead(x, DEVICE), copy_ahead(y, DEVICE)) for x, y in windows)
        plain = plain_gpt.GPT(task.windows.vocabulary, context, **sizes).to(DEVICE)
        modes = ("off", "graphs", "auto", "inductor", "inductor again") if GPU else ("off",)
        ours = {name: own_step(config, name.split()[0]) for name in modes}
        peers = {"plain loop": plain_step(plain, on_device)}
        if GPU:
            peers["plain loop, compiled"] = plain_step(torch.compile(plain), on_device)  # type: ignore[arg-type]
        case = f"gpt {sizes['depth']} x {sizes['width']}, {batch} x {context} tokens"
        compared = compare_all(case, ours, peers, repeat, batch * context, "tokens/s")
        weights = sum(p.numel() for p in plain.parameters())
        fractions |= {row.case: 6 * weights * row.ours / PEAK for row in compared}
        rows += compared
    return rows, fractions


def time_recall(folder: str) -> float:
    """Return the seconds of a search of recall with its verdict, from nothing."""
    return run_search(folder, "--space recall --confirm --top 1 --trials 12 --name recall")[0]


def time_seeds(folder: str) -> dict[str, float]:
    """Return the seconds of a verdict over seeds, the trainings of it, and the share of training."""
    data = make_pictures(
        Path(folder) / "small", train=20_000 if GPU else 200, test=1_000 if GPU else 40, side=32
    )
    options = (
        f"--data {data} --backbone xresnet18 --size 32 --epochs {10 if GPU else 1} --trials 2 --no-pruning "
        f"--concurrent 1 --confirm --top 1 --seeds {10 if GPU else 2} --name seeds"
    )
    seconds, result = run_search(folder, options)
    trained = [len(variant["scores"]) for variant in result["confirmation"]["variants"]]
    study = open_study(Path(folder, "searches/seeds/confirm"), name="seeds-confirm")
    histories = (read_history(trial.user_attrs) for trial in study.trials)
    training = sum(epoch["seconds"] for history in histories for epoch in history)
    verdict = seconds - result["seconds"]
    return {"verdict": verdict, "trainings": sum(trained), "share_of_training": training / verdict}


def run_search(folder: str, options: str) -> tuple[float, dict[str, Any]]:
    """Run a search, and return its seconds from command to end, and its result."""
    command = [sys.executable, "-m", "automl.search", *options.split(), "--json"]
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - begin, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        text = Path(scratch) / "source.txt"
        bench_language.write_text(text)
        folder = str(make_pictures(Path(scratch) / "pictures", train=2560 if GPU else 80, test=40))
        rows = compare_images(folder)
        decoders, fractions = compare_decoders(text)
        recall = time_recall(scratch) if GPU else 0.0
        seeds = time_seeds(scratch)
    rows += decoders
    for case, fraction in fractions.items():
        print(f"{case}: {fraction:.1%} of {PEAK / 1e12:.0f} TFLOP/s")
    print(f"verdict over seeds: {seeds}")
    if GPU:
        print(f"{device_name()}: recall from nothing to a verdict in {recall:.0f} s")
        values = {"rows": [asdict(row) for row in rows], "share_of_peak": fractions}
        write_values("gpu", {**values, "verdict_seconds": recall, "verdict_over_seeds": seeds})


if __name__ == "__main__":
    main()
