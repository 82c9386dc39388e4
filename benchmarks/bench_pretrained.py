"""Compare the two starts of `automl search --data PHOTOS`: a pretrained backbone, and random weights.

The data are 500 photographs of Imagenette's validation split, and the drawn faces of `bench_faces`. The first
trial of a search, the baseline of the space `folder`, learns each in two ways:

- `random`: xresnet18 with random weights, as it is chosen if no weights can be had.
- `pretrained`: torchvision's resnet18 with trained weights, and the recipe for them.

ImageNet's weights are not at hand, so the script first trains resnet18 for minutes on the training split of
Imagenette, which has the same classes. Its head is not used. Both have the same number of epochs, and the
same seeds. Scores are of the test split.

    python benchmarks/bench_pretrained.py

It runs on one core, for about 15 minutes, and writes the table into docs/how-to/pretrained-weights.md. The
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
SIZE = 48  # pixels
EACH, TESTED = 50, 100  # photographs of a class to learn from, and to test on
BATCH = 32
EPOCHS = {"photographs": 6, "faces": 8}  # 72 and 56 steps
TITLES = {"photographs": "500 photographs", "faces": "faces"}
PRETRAINING = 4  # epochs
SEEDS = 5
METHODS: Mapping[str, dict[str, str]] = {
    "random": {"backbone": "xresnet18"},
    "pretrained": {"backbone": "torchvision:resnet18"},
}


def extract(folder: Path) -> None:
    """Write the photographs: `source` of the training split, and `photographs` of the validation split."""
    with tarfile.open(DATA / "imagenette2-128.tgz") as archive:
        archive.extractall(folder, filter="data")  # in its order, since seeking backwards reads it again
    for group in (folder / "imagenette2-128").glob("*/n*"):
        files = sorted(group.iterdir())
        drawn = random.Random(0).sample(files, EACH + TESTED)
        chosen = {"photographs/train": drawn[:EACH], "photographs/test": drawn[EACH:]}
        if group.parent.name == "train":
            chosen = {"source/train": files[TESTED:], "source/test": files[:TESTED]}
        for path, part in chosen.items():
            target = folder / path / group.name
            target.mkdir(parents=True, exist_ok=True)
            for file in part:
                file.replace(target / file.name)


def train(config: TrialConfig) -> tuple[torch.nn.Module, float]:
    """Train a configuration. Return the model and its accuracy on the test split."""
    task = open_task(config, Runtime(device=torch.device("cpu")))
    state = start(task)
    for _ in fit(task, state):
        pass
    return state.scored, evaluate(task, state.scored, "test")["accuracy"].item()


def question(folder: Path, dataset: str, **options: Any) -> Question:
    """Return the question of a search of a dataset."""
    flip = False if dataset == "faces" else None
    batch = None if dataset == "source" else BATCH
    return Question(
        space="folder", data=str(folder / dataset), size=SIZE, batch_size=batch, flip=flip, **options
    )


def pretrain(folder: Path) -> dict[str, Any]:
    """Train resnet18 on the source, once in `folder`. Return its accuracy and the seconds it took."""
    about = folder / "weights.json"
    if not about.exists():
        options = {"backbone": "torchvision:resnet18", "epochs": PRETRAINING}
        model, accuracy = train(question(folder, "source", **options).open().baseline)
        weights = {key: value.contiguous() for key, value in model.state_dict().items()}
        weights["fc.weight"], weights["fc.bias"] = torch.zeros(1, 512), torch.zeros(1)  # no head
        save_file(weights, folder / "weights.safetensors")
        about.write_text(json.dumps({"accuracy": round(100 * accuracy, 1), "seconds": time.process_time()}))
    result: dict[str, Any] = json.loads(about.read_text())
    return result


def table(record: Mapping[str, Any]) -> str:
    """Return the table of the page in Markdown."""
    lines = [BEGIN, "| | random weights | pretrained | difference |", "|---|---|---|---|"]
    for dataset, title in TITLES.items():
        random, pretrained = (record["accuracy"][dataset][method]["mean"] for method in METHODS)
        against = record["differences"][dataset]
        low, high = against["interval"]
        lines.append(
            f"| {title} | {random:.1f} % | {pretrained:.1f} % | {against['mean']:+.1f} points "
            f"({low:.1f} to {high:.1f}) |"
        )
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
        source = pretrain(folder)
        file, digest = choose_weights(str(folder / "weights.safetensors"))
        kept = folder / "scores.json"  # of an interrupted run
        rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
        done = {(row["dataset"], row["method"], row["seed"]) for row in rows}
        for seed, dataset, method in itertools.product(range(options.seeds), EPOCHS, METHODS):
            if (dataset, method, seed) in done:
                continue
            started = time.process_time()
            weights = {"weights": file, "weights_digest": digest} if method == "pretrained" else {}
            asked = question(folder, dataset, epochs=EPOCHS[dataset], seed=seed, **METHODS[method], **weights)
            score = round(100 * train(asked.open().baseline)[1], 1)
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
    differences: dict[str, Any] = {}
    for dataset, methods in scores.items():
        pairs = zip(methods["pretrained"], methods["random"], strict=True)
        test = ttest_1samp([pretrained - random for pretrained, random in pairs], 0.0)
        low, high = test.confidence_interval()
        mean = accuracy[dataset]["pretrained"]["mean"] - accuracy[dataset]["random"]["mean"]
        differences[dataset] = {"mean": round(mean, 2), "interval": [round(low, 2), round(high, 2)]}
    settings = {"size": SIZE, "batch": BATCH, "epochs": EPOCHS, "pretraining": PRETRAINING}
    values = {
        "settings": {**settings, "seeds": options.seeds},
        "weights": source,
        "processor_minutes": round((source["seconds"] + sum(row["seconds"] for row in rows)) / 60, 1),
        "accuracy": accuracy,
        "differences": differences,
    }
    write_values("pretrained", values)
    write_page(json.loads(file_of("pretrained").read_text()))


if __name__ == "__main__":
    main()
