"""Resources of a trial, and how many trials fit, as pure functions of the cluster's resources."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from automl.base.errors import InputError

STANDARD = ("CPU", "GPU", "memory", "object_store_memory")  # Ray's names of the resources of every node.
NAMED = 5  # maximum number of nodes that a message names


def joins_cluster() -> bool:
    """Return whether `cluster.connect.connect` joins a cluster, so that trials may run on other machines."""
    return bool(os.environ.get("RAY_ADDRESS"))


@dataclass(frozen=True, kw_only=True)
class TrialResources:
    """Resources of one trial.

    Attributes:
        cpus: CPU cores of each worker.
        gpus: GPUs of each worker. A fraction shares a GPU with other trials.
        workers: Number of workers.
        custom: Custom resources of each worker, by the names that the cluster's owner chose.
        labels: Labels that a node must have.
    """

    cpus: float = 1
    gpus: float = 0
    workers: int = 1
    custom: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isfinite(self.cpus) and self.cpus > 0):
            raise InputError(f"--cpus-per-trial must be above 0; got {self.cpus:g}")
        if not (isfinite(self.gpus) and self.gpus >= 0):
            raise InputError(f"--gpus-per-trial must be 0 or more; got {self.gpus:g}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise InputError(
                f"--gpus-per-trial must be a fraction below 1 or a whole number; got {self.gpus:g}"
            )

        for name, amount in self.custom.items():
            if name in STANDARD:
                raise InputError(f"--resource is for custom Ray resources; {name} is a built-in one")
            if not (isfinite(amount) and amount > 0) or (amount > 1 and amount != int(amount)):
                raise InputError(
                    f"--resource {name} must be a fraction below 1 or a whole number above 0; got {amount:g}"
                )
        if self.workers < 1:
            raise InputError(f"--workers-per-trial must be 1 or more; got {self.workers}")

    def __str__(self) -> str:
        worker = _join_list([f"{amount:g} {_resource_noun(name)}" for name, amount in self.bundle.items()])
        condition = (
            f" with {_join_list([f'{key}={value}' for key, value in self.labels.items()])}"
            if self.labels
            else ""
        )
        if self.workers > 1:
            return f"{self.workers} workers of {worker} each" + (f" on nodes{condition}" if condition else "")
        return f"{worker} on one node{condition}"

    @property
    def bundle(self) -> dict[str, float]:
        """Return the resources of one worker, by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, **self.custom}

    @property
    def remote_options(self) -> dict[str, Any]:
        """Return the options of `ray.remote` for a task or an actor with the resources of one worker."""
        requested = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        return {**requested, "resources": dict(self.custom), "label_selector": dict(self.labels)}


def count_slots(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> int:
    """Return how many trials run at once on `nodes`, given as each node's resources by Ray's names.

    Raises `InputError` with the requested and the existing resources if none fits.
    """
    total = count_fitting(trial, nodes)
    if total == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hides = trial.gpus and visible in ("", "-1") and not any(node.get("GPU") for node in nodes)
        hint = f" CUDA_VISIBLE_DEVICES={visible!r} hides the GPUs of this machine; unset it." if hides else ""
        raise InputError(
            f"{describe_shortage(trial, nodes)}. Lower --cpus-per-trial, --gpus-per-trial or "
            f"--workers-per-trial, or add a node; on an autoscaling cluster, --concurrent N requests "
            f"capacity for N trials and waits.{hint}"
        )
    return total


def count_fitting(trial: TrialResources, nodes: Iterable[Mapping[str, float]]) -> int:
    """Return how many trials fit on `nodes`, given as the total or the free resources of each node.

    A worker runs on one node. The workers of a trial may run on several. Ray does not report to which of a
    node's GPUs a free fraction belongs, so the fraction is assumed to belong to one GPU.
    """
    return sum(_on_node(trial, node) for node in nodes) // trial.workers


def describe_free(trial: TrialResources, nodes: Mapping[str, Mapping[str, float]]) -> str:
    """Describe what is free on each node, by node name. The nodes closest to a trial come first."""

    def satisfied_fraction(name: str) -> float:
        return min(nodes[name].get(what, 0) / amount for what, amount in trial.bundle.items() if amount)

    nearest = sorted(nodes, key=satisfied_fraction, reverse=True)
    descriptions = [f"{describe_amounts(trial, nodes[name])} on {name}" for name in nearest[:NAMED]]
    rest = [f"less on {len(nodes) - NAMED} more"] if len(nodes) > NAMED else []
    return "; ".join(descriptions + rest)


def describe_shortage(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> str:
    """Describe the requested and the existing resources."""
    total = {name: sum(node.get(name, 0) for node in nodes) for name in trial.bundle}
    noun = "such node(s)" if trial.labels else "node(s)"
    return (
        f"a trial asks for {trial}; the cluster has {describe_amounts(trial, total)} on {len(nodes)} {noun}"
    )


def describe_amounts(trial: TrialResources, resources: Mapping[str, float]) -> str:
    """Describe the amounts of the resources that a trial needs."""
    return _join_list([f"{resources.get(name, 0):g} {_resource_noun(name)}" for name in trial.bundle])


def _resource_noun(name: str) -> str:
    return f"{name}s" if name in ("CPU", "GPU") else name


def _join_list(items: Sequence[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def _on_node(trial: TrialResources, node: Mapping[str, float]) -> int:
    limits = [
        int(node.get(name, 0) / amount + 1e-9) for name, amount in trial.bundle.items() if name != "GPU"
    ]
    if trial.gpus:
        cards, fraction = divmod(node.get("GPU", 0) + 1e-9, 1)
        on_fractions = int(cards) * int(1 / trial.gpus + 1e-9) + int(fraction / trial.gpus + 1e-9)
        limits.append(on_fractions if trial.gpus < 1 else int(cards / trial.gpus))
    return min(limits)
