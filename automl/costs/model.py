"""What a model of images costs, without a dataset: parameters, MACs, activations, time of a training step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.costs.profile import kept_for_backward
from automl.training.clock import quick_quarters
from backbones.macs import count_macs

STEPS = 16  # that a time is measured by


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """parameters: that are learned. macs: multiply-adds of a forward pass of one image.

    activations: bytes that a forward pass keeps for the backward pass, for one image. step: seconds of a
    forward and backward pass, for one image of the batch: processor time on a CPU.
    """

    parameters: int
    macs: int
    activations: int
    step: float


def costs_of(models: Mapping[str, nn.Module], images: Tensor, runtime: Runtime) -> dict[str, ModelCost]:
    """The costs of models whose outputs are one tensor, on a batch of images, with their steps timed in turn.

    Leaves them in training mode.
    """
    images = images.to(runtime.device)
    found, steps = {}, []
    for name, model in models.items():
        macs = count_macs(model.to(runtime.device).eval(), images[:1])
        model.train()
        activations = kept_for_backward(model, partial(_loss, model, images, runtime))
        found[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "macs": macs,
            "activations": activations // len(images),
        }
        steps.append(partial(_step, model, images, runtime))
    times = quick_quarters(steps, runtime, STEPS)
    return {
        name: ModelCost(**counted, step=time / len(images))
        for (name, counted), time in zip(found.items(), times, strict=True)
    }


def _loss(model: nn.Module, images: Tensor, runtime: Runtime) -> Tensor:
    with runtime.autocast():
        total: Tensor = model(images).float().sum()
    return total


def _step(model: nn.Module, images: Tensor, runtime: Runtime) -> None:
    _loss(model, images, runtime).backward()
    model.zero_grad(set_to_none=True)
