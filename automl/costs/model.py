"""What a model of images costs, without a dataset: parameters, MACs, activations, time of a training step."""

from dataclasses import dataclass

from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.costs.profile import kept_for_backward
from automl.training.clock import quick_quarter
from backbones.macs import count_macs

STEPS = 8  # that a time is measured by


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


def cost_of(model: nn.Module, images: Tensor, runtime: Runtime) -> ModelCost:
    """The cost of `model`, whose output is one tensor, on a batch of images. Leaves it in training mode."""
    model, images = model.to(runtime.device), images.to(runtime.device)
    macs = count_macs(model.eval(), images[:1])
    model.train()

    def loss() -> Tensor:
        with runtime.autocast():
            total: Tensor = model(images).float().sum()
        return total

    def step() -> None:
        loss().backward()
        model.zero_grad(set_to_none=True)

    activations = kept_for_backward(model, loss)
    step()
    return ModelCost(
        parameters=sum(p.numel() for p in model.parameters()),
        macs=macs,
        activations=activations // len(images),
        step=quick_quarter(step, runtime, STEPS) / len(images),
    )
