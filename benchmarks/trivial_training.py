"""One trivial training as a function of this project, of Ray Tune and of Optuna. Imports only torch."""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LOW, HIGH = 1e-3, 1e-2  # learning rates


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2))


def train_network(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Train an epoch of 512 made-up images, and return the metrics with the seconds that it took."""
    start_time = time.perf_counter()
    images = torch.randn(512, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = images.mean((1, 2, 3)).gt(0).long()
    for rows in torch.randperm(len(labels)).split(32):
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    return {"accuracy": accuracy, "training": time.perf_counter() - start_time, "end": time.time()}


def train(trial: Any) -> None:
    """Train as a function of this project."""
    model = trial.place(network(), example=torch.zeros(32, 1, 32, 32))
    optimizer = torch.optim.Adam(model.parameters(), trial.suggest_float("lr", LOW, HIGH, log=True))
    trial.state(model=model, optimizer=optimizer)
    for _ in trial.epochs(1):
        trial.report(**train_network(model, optimizer))


def train_plain(rate: float) -> dict[str, float]:
    """Train once, as users of Ray Tune and Optuna write it."""
    model = network()
    return train_network(model, torch.optim.Adam(model.parameters(), rate))
