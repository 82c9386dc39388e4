"""What a trial takes and how many fit, as pure functions of the cluster's resources."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from attention import InputError


@dataclass(frozen=True, kw_only=True)
class TrialResources:
    """The shape of one trial: workers, and the CPU cores and GPUs of each.

    A fraction of a GPU shares it with other trials.
    """

    cpus: float = 1
    gpus: float = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (isfinite(self.cpus) and self.cpus > 0):
            raise InputError(f"--cpus-per-trial must be above 0; got {self.cpus:g}")
        if not (isfinite(self.gpus) and self.gpus >= 0):
            raise InputError(f"--gpus-per-trial must be 0 or more; got {self.gpus:g}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise InputError(
                f"--gpus-per-trial must be a fraction below 1 or a whole number; got {self.gpus:g}"
            )

        if self.workers < 1:
            raise InputError(f"--workers-per-trial must be 1 or more; got {self.workers}")

    def __str__(self) -> str:
        one = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        return f"{self.workers} workers of {one} each" if self.workers > 1 else f"{one} on one node"


def slots(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> int:
    """How many trials run at once on `nodes`, each node's resources in Ray's names.

    Raises InputError with what was asked and what exists when none fits.
    """
    total = fitting(trial, nodes)
    if total == 0:
        raise InputError(
            f"{shortage(trial, nodes)}. Lower --cpus-per-trial, --gpus-per-trial or --workers-per-trial, or "
            f"add a node; where nodes come when asked for, --concurrent N asks for N trials' and waits."
        )
    return total


def fitting(trial: TrialResources, nodes: Iterable[Mapping[str, float]]) -> int:
    """How many trials fit on `nodes`, 0 or more.

    A worker lies on one node; the workers of a trial may lie on several.
    """
    return sum(_on_node(trial, node) for node in nodes) // trial.workers


def shortage(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> str:
    """What is asked for and what there is."""
    cpus = sum(node.get("CPU", 0) for node in nodes)
    gpus = sum(node.get("GPU", 0) for node in nodes)
    return (
        f"a trial asks for {trial}; the cluster has {cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} node(s)"
    )


def _on_node(trial: TrialResources, node: Mapping[str, float]) -> int:
    by_cpu = int(node.get("CPU", 0) / trial.cpus + 1e-9)
    if trial.gpus == 0:
        return by_cpu
    gpus = int(node.get("GPU", 0))
    by_gpu = gpus * int(1 / trial.gpus + 1e-9) if trial.gpus < 1 else int(gpus / trial.gpus)
    return min(by_cpu, by_gpu)
