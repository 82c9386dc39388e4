"""Training functions of the tests that declare different models for the export."""

from collections import OrderedDict

import torch
from torch import nn


class Both(nn.Module):
    """Takes an image and a mask, and returns several tensors."""

    def __init__(self, returns):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head, self.returns = nn.Linear(4, 3), returns

    def forward(self, image, rows=None, *, mask=None):
        features = self.body(image if mask is None else image * mask)
        logits = self.head(features.mean((2, 3)) if rows is None else features.mean((2, 3)) + rows[:, None])
        return self.returns(logits, features)


class Variadic(Both):
    """Takes any number of inputs."""

    def forward(self, *inputs):
        return super().forward(*inputs)


IMAGE, MASK = torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8)
LOGITS, NESTED = (lambda logits, features: logits), (lambda logits, features: (logits, [features]))
NAMED = lambda logits, features: OrderedDict(logits=logits, loss=None, mask=features)  # noqa: E731


def run(trial, model, example, **export):
    model = trial.place(model, example)
    if export.pop("export", True):
        trial.export(model, **export)
    trial.epochs(1)
    trial.report(score=1)


def tensor(trial):
    run(trial, Both(LOGITS), IMAGE, labels="abc")


def positional(trial):
    run(trial, Both(NESTED), (IMAGE, torch.arange(2)))


def keywords(trial):
    run(trial, Both(NAMED), {"mask": MASK, "image": IMAGE})


def variadic(trial):
    run(trial, Variadic(LOGITS), IMAGE)


def undeclared(trial):
    run(trial, Both(LOGITS), IMAGE, export=False)


def scalar(trial):
    run(trial, Both(lambda logits, features: logits.sum()), IMAGE)


def fails(trial):
    trial.export(trial.place(Both(LOGITS), IMAGE), torch.zeros(2, 3, 8, 8))
    trial.epochs(1)


def branches(trial):
    run(trial, Both(lambda logits, features: logits if logits.sum() > 0 else -logits), IMAGE)
