"""Compare the two starts of `automl search --data PHOTOS`: a pretrained backbone, and random weights.

Two small datasets: 500 photographs of five classes of Imagenette, and the drawn faces of `bench_faces` (239
to train on). Each is learned by the first trial of a search, the baseline of the space `folder`, in these ways:

- `random`: xresnet18 with random weights, as it is chosen if no weights can be had.
- `pretrained`: torchvision's resnet18 with trained weights, and the recipe for them.
- `old recipe`: the same with the recipe for random weights.

ImageNet's weights are not at hand, so the script trains resnet18 on the other five classes of Imagenette first.
Weights of ImageNet have seen a hundred times as many photographs. All ways have the same number of epochs.
Scores are those of the test split, for the same seeds.

    python benchmarks/bench_pretrained.py

It runs on one core, for about 15 minutes, and writes the table into docs/how-to/pretrained-weights.md. The archive of
Imagenette must be in the folder AUTOML_TEST_DATA or in ../shared/data.
"""

import argparse
import json
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from drawn_faces import make_faces
from harness import file_of, write_values
from safetensors.torch import save_file

from automl.config.nouns import Question
from automl.config.runtime import Runtime
from automl.judge.statistics import paired
from automl.task import open_task
from automl.task.initial import choose_weights
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig

DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "pretrained-weights.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SIZE = 48  # pixels
EACH = 100  # photographs of a class to learn from
EPOCHS = {"photographs": 12, "faces": 20}  # 72 and 60 steps of 64
TITLES = {"photographs": "500 photographs", "faces": "faces"}
PRETRAINING = 6  # epochs
SEEDS = 6
WAYS: Mapping[str, dict[str, Any]] = {
    "random": {},
    "pretrained": {},
    "old recipe": {"learning_rate": 3e-3, "layer_decay": 1.0, "frozen_norms_below": 0},
}


def extract(folder: Path) -> None:
    """Write the photographs: `source` of five classes, and `photographs` with some of the five others."""
    with tarfile.open(DATA / "imagenette2-128.tgz") as archive:
        files = [member for member in archive.getmembers() if member.isfile() and "/n0" in member.name]
        classes = sorted({member.name.split("/")[2] for member in files})
        chosen: set[str] = set()
        for name in classes[5:]:
            own = sorted(m.name for m in files if m.name.split("/")[1:3] == ["train", name])
            chosen |= set(random.Random(0).sample(own, EACH))
        for member in files:
            _, split, name, file = member.name.split("/")
            is_source = name in classes[:5]
            if not is_source and split == "train" and member.name not in chosen:
                continue
            target = (
                folder
                / ("source" if is_source else "photographs")
                / split.replace("val", "test")
                / name
                / file
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            target.write_bytes(content.read())


def train(config: TrialConfig) -> tuple[torch.nn.Module, float]:
    """Train a configuration. Return the model and its accuracy on the test split."""
    task = open_task(config, Runtime(device=torch.device("cpu")))
    state = start(task)
    for _ in fit(task, state):
        pass
    return state.scored, evaluate(task, state.scored, "test")["accuracy"].item()


def question(folder: Path, dataset: str, **options: Any) -> Question:
    """Return the question of a search of a dataset."""
    flip = {"flip": False} if dataset == "faces" else {}
    return Question(space="folder", data=str(folder / dataset), size=SIZE, **flip, **options)


def pretrain(folder: Path, epochs: int) -> tuple[dict[str, Any], float]:
    """Train resnet18 on five classes. Return the settings of its weights, and its accuracy."""
    options = {"backbone": "torchvision:resnet18", "epochs": epochs}
    model, accuracy = train(question(folder, "source", **options).open().baseline)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()}, folder / "weights.safetensors"
    )
    file, digest = choose_weights(str(folder / "weights.safetensors"))
    return {"weights": file, "weights_digest": digest}, accuracy


def table(record: Mapping[str, Any]) -> str:
    """Return the table of the page in Markdown."""
    lines = [
        BEGIN,
        "| | random weights | pretrained | difference | pretrained, recipe for random weights |",
        "|---|---|---|---|---|",
    ]
    for dataset, title in TITLES.items():
        ways, against = record["accuracy"][dataset], record["differences"][dataset]["pretrained - random"]
        low, high = against["interval"]
        cells = [f"{ways[way]['mean']:.1f} %" for way in WAYS]
        cells.insert(2, f"{against['mean']:+.1f} points ({low:.1f} to {high:.1f})")
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
        extract(folder)
        make_faces(folder / "faces")
        weights, source = pretrain(folder, PRETRAINING)
        print(f"pretrained: {source:.1%} on its own classes, {time.process_time():.0f} s", flush=True)
        scores: dict[str, dict[str, list[float]]] = {d: {way: [] for way in WAYS} for d in EPOCHS}
        for seed in range(options.seeds):
            for dataset, epochs in EPOCHS.items():
                for way, changes in WAYS.items():
                    model = (
                        {"backbone": "xresnet18"}
                        if way == "random"
                        else {"backbone": "torchvision:resnet18", **weights}
                    )
                    config = question(folder, dataset, epochs=epochs, seed=seed, **model).open().baseline
                    scores[dataset][way].append(100 * train(config.change(training=changes))[1])
                    print(
                        dataset,
                        way,
                        seed,
                        f"{scores[dataset][way][-1]:.1f} %, {time.process_time():.0f} s",
                        flush=True,
                    )
    accuracy = {
        dataset: {
            way: {"mean": round(sum(own) / len(own), 2), "seeds": [round(x, 2) for x in own]}
            for way, own in ways.items()
        }
        for dataset, ways in scores.items()
    }
    differences: dict[str, Any] = {}
    for dataset, ways in scores.items():
        differences[dataset] = {}
        for first, second in (
            ("pretrained", "random"),
            ("pretrained", "old recipe"),
        ):
            result = paired([a - b for a, b in zip(ways[first], ways[second], strict=True)], margin=0.0)
            differences[dataset][f"{first} - {second}"] = {
                "mean": round(result.mean, 2),
                "interval": [round(end, 2) for end in result.bounds or ()],
                "p": round(result.p, 4),
            }
    values = {
        "settings": {"size": SIZE, "epochs": EPOCHS, "pretraining": PRETRAINING, "seeds": options.seeds},
        "weights": {"accuracy": round(100 * source, 2)},
        "processor_minutes": round(time.process_time() / 60, 1),
        "accuracy": accuracy,
        "differences": differences,
    }
    write_values("pretrained", values)
    write_page(json.loads(file_of("pretrained").read_text()))


if __name__ == "__main__":
    main()
