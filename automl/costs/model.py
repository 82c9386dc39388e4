"""What a model costs, without a dataset: parameters, MACs, activations, time of a training step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.costs.profile import kept_for_backward
from automl.costs.subject import Subject
from automl.training.clock import quick_quarters, seconds
from backbones import Example
from backbones.macs import count_macs
from backbones.torch_internals import tree_map_only

STEPS = 16  # that a time is measured by
SLOW = 0.5  # seconds of a step, from which a single one is the measurement


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """parameters: that are learned. macs: multiply-adds of a forward pass of one input.

    activations: bytes that a forward pass keeps for the backward pass, for one input. step: seconds of a
    forward and backward pass, for one input of the batch: processor time on a CPU.
    """

    parameters: int
    macs: int
    activations: int
    step: float


def costs_of(
    models: Mapping[str, nn.Module], subject: Subject, batch: int, runtime: Runtime
) -> dict[str, ModelCost]:
    """The costs of models of `subject`, on a batch of so many inputs, with their steps timed in turn.

    Leaves them in training mode.
    """

    def inputs(count: int) -> Example:
        on_device: Example = tree_map_only(
            Tensor, lambda tensor: tensor.to(runtime.device), subject.example(count)
        )
        return on_device

    one, many = inputs(1), inputs(batch)
    found, steps = {}, []
    for name, model in models.items():
        macs = count_macs(model.to(runtime.device).eval(), one)
        model.train()
        activations = kept_for_backward(model, partial(_loss, model, subject, many, runtime))
        found[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "macs": macs,
            "activations": activations // batch,
        }
        steps.append(partial(_step, model, subject, many, runtime))
    first = [seconds(step, runtime) for step in steps]
    times = first if max(first) > SLOW else quick_quarters(steps, runtime, STEPS)
    return {
        name: ModelCost(**counted, step=time / batch)
        for (name, counted), time in zip(found.items(), times, strict=True)
    }


def _loss(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> Tensor:
    with runtime.autocast():
        return subject.loss(model, inputs)


def _step(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> None:
    _loss(model, subject, inputs, runtime).backward()
    model.zero_grad(set_to_none=True)
