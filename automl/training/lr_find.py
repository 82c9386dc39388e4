"""A learning-rate range test.

The rate grows with each step, and the loss shows which rates help and which harm.

Source: L. Smith, Cyclical Learning Rates for Training Neural Networks (2015), arXiv 1506.01186, section 3.3.
The suggestion is the rate of the steepest descent, as in fastai's first finder.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, log10
from pathlib import Path

from automl.base.errors import InputError
from automl.task import Task
from automl.training.loop import endless_batches, start
from automl.training.step import make_step


@dataclass(frozen=True)
class RangeTest:
    """Learning rates, the smoothed loss at each, and the rate at which the loss fell fastest."""

    rates: list[float]
    losses: list[float]
    suggestion: float


def find_learning_rate(
    task: Task, *, lowest: float = 1e-6, highest: float = 10.0, steps: int = 100
) -> RangeTest:
    """Train a new model for `steps` steps while the rate grows from `lowest` to `highest`.

    Raises InputError if the loss is not finite from the start.
    """
    state = start(task)
    task.set_training(state.model)
    step_at = make_step(task, state.model, state.optimizer, state.scaler)
    batches = endless_batches(task)
    rates: list[float] = []
    losses: list[float] = []
    average, least = 0.0, float("inf")
    for step in range(steps):
        rate = lowest * (highest / lowest) ** (step / (steps - 1))
        average = 0.9 * average + 0.1 * step_at(next(batches), rate)[0].item()
        smooth = average / (1 - 0.9 ** (step + 1))
        least = min(least, smooth)
        if not isfinite(smooth) or smooth > 4 * least:
            break
        rates.append(rate)
        losses.append(smooth)
    if len(losses) < 2:
        raise InputError(f"the loss is not finite at a learning rate of {lowest:g}; there is none to suggest")
    # The average of the first steps is over few losses and falls by chance.
    slopes = [b - a for a, b in pairwise(losses)]
    begin = min(5, len(slopes) - 1)
    steepest = min(range(begin, len(slopes)), key=slopes.__getitem__)
    return RangeTest(rates, losses, float(f"{rates[steepest]:.1e}"))


def plot(test: RangeTest, file: Path) -> None:
    """Write a plot of loss over rate, with the suggestion marked, to an image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(test.rates, test.losses)
    axes.axvline(test.suggestion, linestyle="--", color="grey", label=f"suggestion {test.suggestion:g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss (smoothed)")
    axes.set_xlim(10 ** int(log10(test.rates[0])), max(test.rates))
    axes.legend()
    figure.savefig(file)
