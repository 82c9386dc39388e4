"""The training of the built-in task, as a function of its own."""

import torch

from automl.task import open_task
from automl.training.loop import evaluate
from automl.training.optimiser import build_optimizer, compute_relative_rate
from tests.helpers.automl_cases import TINY

CONFIG = TINY.change(training={"epochs": 3}, data={"subset": 0.2})


def train(trial):
    task = open_task(CONFIG.change(seed=trial.seed), trial.runtime)
    model = trial.place(task.plain(), example=torch.zeros(32, 3, 24, 24))
    model.to(trial.device, memory_format=torch.channels_last)
    training = task.config.training
    optimizer = build_optimizer(model, training)
    trial.state(model=model, optimizer=optimizer)
    steps = task.steps()
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
        trial.report(**evaluate(task, model))
    if trial.tests:
        evaluator = task.evaluator("test")
        scores = evaluate(task, model, "test", evaluator)
        trial.test(**scores, per_example=evaluator.answers(trial.runtime).values)
