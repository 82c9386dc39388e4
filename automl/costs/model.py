"""Costs of a model, without a dataset: parameters, MACs, activations, time of a training step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.costs.profile import measure_kept_memory
from automl.tasks.subject import Subject
from automl.training.clock import time_lower_quartiles
from backbones import Example
from backbones.cost import count_macs
from backbones.torch_internals import tree_map_only

STEPS = 16  # maximum number of steps of a measurement


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Measured cost of a model.

    Attributes:
        parameters: Number of trained parameters.
        macs: Multiply-adds of the forward pass of one input.
        activations: Memory kept for the backward pass, for one input [bytes].
        step: Time of a forward and backward pass, for one input of the batch [s]. Processor time on a CPU.
    """

    parameters: int
    macs: int
    activations: int
    step: float


def measure_costs(
    models: Mapping[str, nn.Module], subject: Subject, batch: int, runtime: Runtime
) -> dict[str, ModelCost]:
    """Measure the costs of models of `subject`, by name. Their steps of `batch` inputs are timed in turn.

    Leaves the models in training mode.
    """

    def inputs(count: int) -> Example:
        on_device: Example = tree_map_only(
            Tensor, lambda tensor: tensor.to(runtime.device), subject.example(count)
        )
        return on_device

    example, many = inputs(1), inputs(batch)
    counts, steps = {}, []
    for name, model in models.items():
        macs = count_macs(model.to(runtime.device).eval(), example)
        model.train()
        activations = measure_kept_memory(model, partial(_loss, model, subject, many, runtime))
        counts[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "macs": macs,
            "activations": activations // batch,
        }
        steps.append(partial(_step, model, subject, many, runtime))
    times = time_lower_quartiles(steps, runtime, STEPS)
    return {
        name: ModelCost(**count, step=time / batch)
        for (name, count), time in zip(counts.items(), times, strict=True)
    }


def _loss(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> Tensor:
    with runtime.autocast():
        return subject.loss(model, inputs)


def _step(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> None:
    _loss(model, subject, inputs, runtime).backward()
    model.zero_grad(set_to_none=True)
