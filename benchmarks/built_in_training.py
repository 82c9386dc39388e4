"""The training of a built-in task, as a function of its own."""

from typing import Any

import torch

from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification.task import ImageClassification
from automl.training.loop import evaluate
from automl.training.optimiser import build_optimizer, compute_relative_rate
from search.config import Model, TrialConfig


def config(seed: int, rate: float = 1e-3) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.05),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=1, batch_size=16, learning_rate=rate),
        seed=seed,
    )


def train(trial: Any) -> None:
    """Train as the built-in task does."""
    task = open_task(config(trial.seed), trial.runtime)
    assert isinstance(task, ImageClassification)
    model = trial.place(task.plain(), example=torch.zeros(16, 3, 32, 32))
    model.to(trial.device).to(memory_format=torch.channels_last)
    training, steps = task.config.training, task.steps()
    optimizer = build_optimizer(model, training)
    trial.state(model=model, optimizer=optimizer)
    for epoch in trial.epochs(training.epochs):
        model.train()
        for step, batch in enumerate(task.batches(epoch)):
            progress = (epoch * steps + step) / (trial.total_epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate * compute_relative_rate(training, progress)
            with trial.runtime.autocast():
                loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        trial.report(**{name: float(value) for name, value in evaluate(task, model).items()})
