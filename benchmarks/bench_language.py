"""Compare the training speed of `gpt` with nanoGPT's loop, and with the same model in that loop.

All train at the same depth, width, number of heads, context, batch size and vocabulary on this project's
source code. This project runs its own training step on its own batches, in its default precision. nanoGPT
trains in float32 on a CPU by default; bfloat16 is measured, too. A second training of this project's own
shows the noise. Freed memory is kept for the next step, as in a trial, which helps the peers as well.

The step's share of the machine's peak counts three forward passes of matrix products, with those of attention
that a causal kernel leaves out. The peak is that of square matrices in the same precision, measured after
each shape.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import plain_gpt
import torch
from harness import Row, compare, seconds, write_values
from torch import Tensor

from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.task import LanguageModelling
from automl.training.loop import start
from automl.training.step import make_step
from backbones.cost import count_macs
from search.config import TrialConfig

DEVICE = find_device("cpu")
ROUNDS = 7
SIZES = {"depth": 4, "width": 128, "heads": 4}  # those of nanoGPT's instructions for a CPU
# Context [tokens], batch size, entries of the vocabulary (0: bytes), and steps of a measurement. nanoGPT's
# instructions for a CPU have the first context and batch size.
SHAPES = [(64, 12, 0, 12), (256, 16, 0, 3), (256, 16, 8192, 2)]
SIDE = 2048  # of the matrices that measure the peak


def write_text(file: Path) -> None:
    """Write this project's own source code into one file."""
    root = Path(__file__).parents[1]
    sources = sorted(
        p for name in ("attention", "backbones", "search", "automl") for p in (root / name).rglob("*.py")
    )
    file.write_text("".join(source.read_text() for source in sources))


def open_language(text: Path, context: int, batch: int, vocabulary: int) -> LanguageModelling:
    config = TrialConfig(
        task="language-modelling",
        data=LanguageData(path=str(text), context=context, vocabulary=vocabulary),
        model=LanguageModel(options=SIZES),
        training=LanguageTraining(batch_size=batch),
    )
    task = open_task(config, Runtime(device=DEVICE))
    assert isinstance(task, LanguageModelling)
    return task


def own_step(task: LanguageModelling) -> Callable[[], None]:
    """Return a function that trains on the next batch, as a trial does."""
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler)
    state.model.train()
    batches = (batch for epoch in count() for batch in task.batches(epoch))

    def train() -> None:
        step(next(batches), 1e-3)

    return train


def all_tokens(task: LanguageModelling) -> np.ndarray:
    """Return the training split as one text."""
    windows = task.windows.batch("train", np.arange(task.size("train")))[0]
    return windows[:, :-1].reshape(-1)


def measure_peak(dtype: torch.dtype) -> float:
    """Return the multiply-adds per second of a product of square matrices at its fastest."""
    x = torch.randn(SIDE, SIDE).to(dtype)
    return SIDE**3 / min(seconds(lambda: x @ x, DEVICE) for _ in range(8))


def compare_shape(
    text: Path, context: int, batch: int, vocabulary: int, repeat: int
) -> tuple[list[Row], dict[str, Any]]:
    task = open_language(text, context, batch, vocabulary)
    entries, tokens = task.windows.vocabulary, all_tokens(task)
    example = torch.zeros(1, context, dtype=torch.int64)

    def windows() -> Iterator[tuple[Tensor, Tensor]]:
        return plain_gpt.random_windows(tokens, context, batch)

    def nano() -> plain_gpt.GPT:
        return plain_gpt.GPT(entries, context, **SIZES)

    peers = {
        "itself": own_step(task),
        "nanoGPT's loop": plain_gpt.make_step(nano(), windows(), torch.float32),
        "nanoGPT's loop in bfloat16": plain_gpt.make_step(nano(), windows(), torch.bfloat16),
        "gpt in nanoGPT's loop in bfloat16": plain_gpt.make_step(task.plain(), windows(), torch.bfloat16),
    }
    ours = own_step(task)

    def rate(step: Callable[[], None]) -> Callable[[], float]:
        return lambda: batch * context / seconds(step, DEVICE, repeat)

    case = f"{batch} x {context} tokens, vocabulary {entries}"
    rows = [
        compare(case, peer, rate(ours), rate(step), unit="tokens/s", rounds=ROUNDS, higher_is_better=True)
        for peer, step in peers.items()
    ]
    models = {"gpt": task.plain(), "nanoGPT": nano()}
    macs = {name: count_macs(model, example) / context for name, model in models.items()}
    return rows, {
        "case": case,
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "macs_per_token": macs,
        "macs_per_second": {
            "gpt": 3 * macs["gpt"] * rows[1].ours,
            "nanoGPT": 3 * macs["nanoGPT"] * rows[1].theirs,
            "nanoGPT in bfloat16": 3 * macs["nanoGPT"] * rows[2].theirs,
        },
    }


def main() -> None:
    torch.set_num_threads(1)  # as in a search, which trains as many models at once as there are cores
    rows, shapes = [], []
    peaks = {"bfloat16": 0.0, "float32": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        text = Path(scratch) / "source.txt"
        write_text(text)
        for shape in SHAPES:
            measured, facts = compare_shape(text, *shape)
            rows += measured
            shapes.append(facts)
            peaks = {name: max(peak, measure_peak(getattr(torch, name))) for name, peak in peaks.items()}
    for facts in shapes:
        facts["share_of_peak"] = {
            name: done / peaks["float32" if name == "nanoGPT" else "bfloat16"]
            for name, done in facts["macs_per_second"].items()
        }
        print(facts["case"], facts["share_of_peak"])
    values = {"rows": [asdict(row) for row in rows], "shapes": shapes, "peak_macs_per_second": peaks}
    write_values("language", values)


if __name__ == "__main__":
    main()
