"""A training function of the tests: four classes of noise with a mark, and a network of three layers."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn


@cache
def examples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randn(count, 1, 8, 8, generator=generator)
    images[torch.arange(count), 0, labels * 2, labels] += 3
    return images, labels


def network(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(128, 4),
    )


@torch.no_grad()
def hits(model, images, labels):
    return (model.eval()(images).argmax(1) == labels).float()


def train(trial):
    width = trial.suggest_int("width", 4, 8, step=4)
    model = trial.place(network(width), example=torch.zeros(32, 1, 8, 8))
    rate = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    if trial.suggest_categorical("optimizer", ["adam", "sgd"]) == "sgd":
        momentum = trial.suggest_float("momentum", 0.0, 0.9)
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), rate)
    trial.state(model=model, optimizer=optimizer)
    trial.export(nn.Sequential(model, nn.Softmax(1)), labels="abcd")
    images, labels = examples(0, 128)
    for _ in trial.epochs(4, partial=True):
        model.train()
        for rows in trial.batches(torch.randperm(len(labels), generator=trial.rng).split(32)):
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        trial.report(accuracy=hits(model, *examples(1, 64)).mean())
    if trial.tests:
        right = hits(model, *examples(2, 64))
        trial.test(accuracy=right.mean(), per_example=right)


train.baseline = {"lr": 1e-2}
