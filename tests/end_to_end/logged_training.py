"""A training function that logs each epoch when its checkpoint is written, in the folder of `--data`."""

import json
import time

import torch
import torch.nn.functional as F
from torch import nn

PAUSE = 0.2  # so that a kill hits an epoch [s]


def train(trial):
    images = torch.randn(64, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = images.mean((1, 2, 3)).gt(0).long()
    layers = (
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5, stride=2),
        nn.ReLU(),
        nn.Dropout(0.1),
    )
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1152, 2))
    model = trial.place(model, example=images[:16])
    name = [trial.seed, trial.suggest_float("lr", 1e-3, 1e-2, log=True), str(model)]
    optimizer = torch.optim.SGD(model.parameters(), name[1])
    trial.state(model=model, optimizer=optimizer)
    for epoch in trial.epochs(4):
        for rows in torch.randperm(64, generator=trial.rng).split(16):
            F.cross_entropy(model.train()(images[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        if trial.data is not None:
            time.sleep(PAUSE)
        with torch.no_grad():
            outputs = model.eval()(images)
        trial.report(
            accuracy=(outputs.argmax(1) == labels).float().mean(), loss=F.cross_entropy(outputs, labels)
        )
        if trial.data is not None and epoch + 1 < trial.total_epochs:  # the last report does not wait
            with (trial.data / "epochs").open("a") as log:
                log.write(json.dumps([*name, epoch]) + "\n")
