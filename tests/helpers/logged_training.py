"""A training function that logs its process, and each epoch when its checkpoint is written, in `--data`."""

import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PAUSE = 0.2  # so that a kill hits an epoch [s]


def train(trial):
    rank, workers = trial.runtime.rank, trial.runtime.workers
    device = trial.device
    images = torch.randn(64, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = images.mean((1, 2, 3)).gt(0).long()
    layers = nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 5, stride=2), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1152, 2))
    model = trial.place(model, example=images[:16])
    name = [trial.seed, trial.suggest_float("lr", 1e-3, 1e-2, log=True), str(model)]
    model, images, labels = model.to(device), images.to(device), labels.to(device)
    if trial.data is not None:
        with (trial.data / "processes").open("a") as log:
            log.write(f"{os.getpid()} {device} {torch.ones(1).to(device).device}\n")
    optimizer = torch.optim.SGD(model.parameters(), name[1])
    trial.state(model=model, optimizer=optimizer)
    epochs = trial.epochs(4)
    parallel = DistributedDataParallel(model) if workers > 1 else model
    for epoch in epochs:
        for rows in torch.randperm(64, generator=trial.rng).split(16):
            own = rows[rank::workers]
            F.cross_entropy(parallel(images[own]), labels[own]).backward()
            optimizer.step()
            optimizer.zero_grad()
        if trial.data is not None:
            time.sleep(PAUSE)
        with torch.no_grad():
            outputs = model(images)
        accuracy = (outputs.argmax(1) == labels).float().mean()
        trial.report(accuracy=accuracy, loss=F.cross_entropy(outputs, labels), workers=workers)
        # The last report does not wait for its checkpoint.
        if trial.data is not None and rank == 0 and epoch + 1 < trial.total_epochs:
            with (trial.data / "epochs").open("a") as log:
                log.write(json.dumps([*name, epoch]) + "\n")
