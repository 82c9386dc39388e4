"""Print learning curves of LARNN, a bidirectional LSTM and a 1-D CNN on windows of UCI HAR by epoch.

    python scripts/sensor_curves.py --data FILE.npz --epochs 25 --seeds 3

LARNN has the best configuration of its author's second search, trial 1 of the space `ucihar`, with other
epochs. The LSTM has the same hyperparameters. The CNN is the baseline of the space `sensors`. Accuracies are
those of the test split after each epoch, as the author measured them, so the peak is chosen on the test
split. Without --data, UCI HAR is downloaded.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from optuna.trial import FixedTrial

from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.sequence_classification import space as sensor_spaces
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig
from search.space import SPACES

SHOWN = (1, 2, 5, 10, 15, 20, 25, 50, 75, 100)  # epochs of the table, beside the last


class Epoch(NamedTuple):
    """Accuracies after one epoch [%], and seconds of training so far, without the test split."""

    model: str
    seed: int
    epoch: int
    train: float
    validation: float
    test: float
    seconds: float


def draw(space: str, parameters: Mapping[str, Any]) -> TrialConfig:
    return SPACES[space].draw(FixedTrial(dict(parameters)))  # type: ignore[arg-type]


def configurations() -> dict[str, TrialConfig]:
    larnn = draw("ucihar", sensor_spaces.ROUNDS["ucihar"].best)
    return {
        "LARNN": larnn,
        "BiLSTM": sensor_spaces.as_lstm(larnn),
        "1-D CNN": draw("sensors", sensor_spaces.PLAIN),
    }


def train(model: str, config: TrialConfig) -> Iterator[Epoch]:
    task = open_task(config, Runtime(device=torch.device("cpu")))
    state = start(task)
    parameters = sum(p.numel() for p in state.model.parameters())
    print(
        f"{model}, seed {config.seed}: {parameters:,} parameters, {task.steps()} steps an epoch", flush=True
    )
    seconds, start_time = 0.0, time.perf_counter()
    for metrics in fit(task, state):
        seconds += time.perf_counter() - start_time
        test = evaluate(task, state.scored, "test")["accuracy"].item()
        row = Epoch(
            model,
            config.seed,
            int(metrics["epoch"]),
            100 * metrics["train_accuracy"],
            100 * metrics["accuracy"],
            100 * test,
            seconds,
        )
        print(f"  epoch {row.epoch}: train {row.train:.1f}, test {row.test:.1f}, {seconds:.0f} s", flush=True)
        yield row
        start_time = time.perf_counter()


def table(rows: list[Epoch]) -> str:
    """Return mean and standard deviation of the test accuracy over seeds, a Markdown row per model."""
    last = max(row.epoch for row in rows)
    shown = sorted({epoch for epoch in SHOWN if epoch < last} | {last})
    lines = [
        "| model | runs | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " | peak | train | minutes |",
        "|---" * (len(shown) + 5) + "|",
    ]
    for model in dict.fromkeys(row.model for row in rows):
        rows_of_model = [row for row in rows if row.model == model]
        seeds = sorted({row.seed for row in rows_of_model})
        runs = [[row for row in rows_of_model if row.seed == seed] for seed in seeds]
        cells = [
            *([row.test for row in rows_of_model if row.epoch == epoch] for epoch in shown),
            [max(row.test for row in run) for run in runs],
            [run[-1].train for run in runs],
        ]
        minutes = statistics.mean(run[-1].seconds for run in runs) / 60
        texts = [model, str(len(runs)), *map(mean_and_sd, cells), f"{minutes:.1f}"]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def mean_and_sd(values: list[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def main(arguments: list[str] | None = None) -> None:
    known = configurations()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", help="as in automl search")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=known, default=list(known))
    parser.add_argument("--batch-size", type=int, help="instead of the published ones")
    parser.add_argument("--out", type=Path, help="a CSV file of all epochs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[Epoch] = []
    for model in options.models:
        for seed in range(options.seeds):
            config = known[model].change(seed=seed, training={"epochs": options.epochs})
            if options.data:
                config = config.change(data={"source": "series", "path": str(Path(options.data).absolute())})
            if options.batch_size:
                config = config.change(training={"batch_size": options.batch_size})
            rows.extend(train(model, config))
            if options.out:
                with options.out.open("w", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(Epoch._fields)
                    writer.writerows(rows)
    print(f"\nTest accuracy in percent, torch {torch.__version__}:\n\n{table(rows)}")


if __name__ == "__main__":
    main()
