"""Costs of a model and of modules at its sites in a file, measured on one machine and read on another.

A module's latency is that of the model with it alone minus that of the plain model, which runs in turn with
it. The latency of a placement is predicted as the sum of the model's and the modules'. Writing needs torch,
but neither Ray nor MLflow.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import CategoricalDistribution

from attention import Spec
from automl.base import loading
from automl.base.errors import InputError
from automl.base.serialise import read_json, write_json
from search import choices
from search.config import TrialConfig
from search.placement_effects import IndexedModule
from search.solver import AdditiveCost
from search.space import memory_study

if TYPE_CHECKING:
    from torch import nn

    from automl.config.runtime import Runtime
    from automl.tasks.subject import Subject
    from backbones import Site

FORMAT = 2
MILLISECONDS = 200  # that the passes of a measurement should take
LEAST_PASSES, MOST_PASSES = 10, 40  # numbers of passes of a measurement
DISTURBED = 1.1  # a measurement is repeated if the plain model took that many times as long as usual
MOST_REPEATS = 5
BYTES = 4  # of a value in float32
COPIES = 4  # of a parameter in a step: itself, its gradient and two states of AdamW


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a model, or what a module adds to them.

    Attributes:
        params: Parameters.
        macs: Multiply-accumulates of one input.
        memory: Memory of a training step in float32 with AdamW [bytes].
        latency: Time of the forward pass of one input [ms].

    Raises:
        InputError: A cost is below 0, or not a number.
    """

    params: int
    macs: int
    memory: int
    latency: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (isfinite(value) and value >= 0):
                raise InputError(f"{name} must be 0 or more; got {value}")


@dataclass(frozen=True, kw_only=True)
class ModuleCosts:
    """Costs that one module adds to those of a model. Its type is without the folder of its file."""

    site: str
    type: str
    options: dict[str, Any]
    costs: Costs


@dataclass(frozen=True, kw_only=True)
class ExportedCosts:
    """The content of a file of costs.

    Attributes:
        backbone: The backbone.
        options: The options of the backbone.
        shapes: The shape of each tensor of one input.
        batch: The number of inputs of the training step.
        device: The name of the device.
        versions: Versions of Python and torch.
        plain: The costs of the model without a placement.
        modules: The costs of each module at each site.

    Raises:
        InputError: A shape is empty.
    """

    backbone: str
    options: dict[str, Any]
    shapes: list[list[int]]
    batch: int
    device: str
    versions: dict[str, str]
    plain: Costs
    modules: list[ModuleCosts]

    def __post_init__(self) -> None:
        if not all(self.shapes) or not self.shapes:
            raise InputError(f"shapes must name the size of each dimension; got {self.shapes}")


def export_costs(
    subject: "Subject",
    options: Mapping[str, Any],
    file: Path,
    *,
    types: Sequence[str],
    batch: int,
    runtime: "Runtime",
) -> ExportedCosts:
    """Measure a model and modules at its sites on this machine, and write their costs to a file.

    Args:
        file: The file. InputError is raised if it cannot be written.
        types: The attention types. Each is measured with all options that a search may choose.
        batch: The number of inputs of the training step.
    """
    from automl.config.device import device_name
    from automl.costs.profile import measure_costs
    from backbones.torch_internals import tree_leaves

    model, example = subject.build().to(runtime.device), subject.example(1)
    (total,) = measure_costs({"plain": model}, subject, batch, runtime).values()
    latency = _Latency(model, example, runtime)
    modules = _measure_modules(subject, types, batch, latency)
    exported = ExportedCosts(
        backbone=loading.short_name(subject.name),
        options=dict(options),
        shapes=[list(leaf.shape[1:]) for leaf in tree_leaves(example)],
        batch=batch,
        device=device_name(runtime.device),
        versions={"python": platform.python_version(), "torch": version("torch")},
        plain=Costs(
            params=total.parameters,
            macs=total.macs,
            memory=BYTES * COPIES * total.parameters + batch * total.activations,
            latency=latency.plain,
        ),
        modules=modules,
    )
    try:
        write_json(file, exported, format=FORMAT)
    except OSError as error:
        raise InputError(f"--export-costs {file} cannot be written ({error.strerror or error})") from error
    return exported


def _measure_modules(
    subject: "Subject", types: Sequence[str], batch: int, latency: "_Latency"
) -> list[ModuleCosts]:
    """Return the costs of each type with each combination of options at each site that it suits."""
    from automl.base.terminal import progress
    from backbones import insert, sites
    from backbones.cost import attention_cost

    example = subject.example(2)
    listed = [site for site in sites(subject.build(), example) if not site.replaces]
    drawn = (
        (site, _draw(params, site.channels))
        for kind in types
        for params in _option_params(kind, listed)
        for site in listed
    )
    specs = {(site.name, str(spec)): (site, spec) for site, spec in drawn if _fits(spec, site)}
    modules = []
    with progress("modules measured", len(specs)) as advance:
        for site, spec in specs.values():
            cost = attention_cost(spec, site)
            costs = Costs(
                params=cost.parameters,
                macs=cost.macs,
                memory=BYTES * (COPIES * cost.parameters + batch * cost.memory),
                latency=latency.measure_added(insert(subject.build(), {site.name: spec}, example)),
            )
            options = dict(spec.options)
            modules.append(ModuleCosts(site=site.name, type=spec.name, options=options, costs=costs))
            advance(1)
    return modules


def _option_params(kind: str, listed: Sequence["Site"]) -> list[dict[str, Any]]:
    """Return the parameters of each combination of options of a type that a search may choose."""
    trial = memory_study(optuna.samplers.RandomSampler(0)).ask()
    choices.attention(trial, 1, listed[0].channels, [kind])
    values = [
        # Of an option of the user's type with a range of numbers, only one value is measured.
        each.choices if isinstance(each, CategoricalDistribution) else [trial.params[name]]
        for name, each in trial.distributions.items()
    ]
    return [dict(zip(trial.distributions, chosen, strict=True), kind=kind) for chosen in product(*values)]


def _draw(params: Mapping[str, Any], channels: int) -> Spec:
    trial: Any = optuna.trial.FixedTrial(dict(params))
    return choices.attention(trial, 1, channels, [params["kind"]])


def _fits(spec: Spec, site: "Site") -> bool:
    from backbones.insertion import build_module

    try:
        build_module(spec, site)
    except InputError:
        return False
    return True


class _Latency:
    """Latencies [ms] of a plain model and of others, which run in turn with it."""

    def __init__(self, plain: "nn.Module", example: Any, runtime: "Runtime") -> None:
        from torch import Tensor

        from automl.costs.profile import measure_latency
        from backbones.torch_internals import tree_map_only

        self._model, self._runtime = plain.eval(), runtime
        self._inputs = tree_map_only(Tensor, lambda tensor: tensor.to(runtime.device), example)
        first = measure_latency(self._serve(plain), runtime)
        self._times = min(MOST_PASSES, max(LEAST_PASSES, round(MILLISECONDS / first)))
        self._plain: list[float] = [first]

    def _serve(self, model: "nn.Module") -> Callable[[], object]:
        from backbones import call

        return partial(call, model, self._inputs)

    def measure_added(self, model: "nn.Module") -> float:
        """Return by how much the latency of a model is above that of the plain one.

        Of measurements that are disturbed, the one with the fastest plain model counts.
        """
        from automl.costs.profile import measure_latencies

        models = [self._model, model.to(self._runtime.device).eval()]
        measured: list[list[float]] = []
        while len(measured) < MOST_REPEATS:
            measured.append(measure_latencies(list(map(self._serve, models)), self._runtime, self._times))
            self._plain.append(measured[-1][0])
            if measured[-1][0] < DISTURBED * self.plain:
                break
        plain, placed = min(measured)
        return max(0.0, placed - plain)

    @property
    def plain(self) -> float:
        """Return the median latency of the plain model."""
        return median(self._plain)


def read_latencies(
    file: Path, plain: TrialConfig, configs: Mapping[IndexedModule, TrialConfig]
) -> AdditiveCost:
    """Read latencies [ms] from a file of costs.

    `configs` holds, for each module, the configuration with it alone. Raises `InputError` if the file is
    damaged, is of another model, or lacks a module.
    """
    exported = read_json(ExportedCosts, file, format=FORMAT)
    model, size = plain.model, getattr(plain.data, "size", None)
    for what, value, wanted in (
        ("backbone", exported.backbone, loading.short_name(model.backbone)),
        ("options of the backbone", exported.options, dict(model.options)),
        ("size of an input", exported.shapes[0][-1:], exported.shapes[0][-1:] if size is None else [size]),
    ):
        if value != wanted:
            raise InputError(
                f"--costs {file} has another {what}, {value}; the search has {wanted}. Write it again: "
                f"automl cost {_arguments(plain)} --export-costs FILE"
            )
    latencies = {_key(each.site, each.type, each.options): each.costs.latency for each in exported.modules}
    added = {}
    for module, config in configs.items():
        ((site, spec),) = config.model.placement.items()
        key = _key(site, spec.name, spec.options)
        if key not in latencies:
            raise InputError(
                f"--costs {file} lacks {spec} at site {site}; write it again with --attention {spec.type}"
            )
        added[module] = latencies[key]
    return AdditiveCost(plain=exported.plain.latency, modules=added)


def _key(site: str, kind: str, options: Mapping[str, Any]) -> tuple[str, str, str]:
    return site, kind, json.dumps(dict(options), sort_keys=True)


def _arguments(config: TrialConfig) -> str:
    """Return the arguments of `automl cost` for the model of a configuration."""
    size = getattr(config.data, "size", None)
    options = [f" --option {name}={value}" for name, value in config.model.options.items()]
    return f"{config.model.backbone}{'' if size is None else f' --size {size}'}{''.join(options)}"
