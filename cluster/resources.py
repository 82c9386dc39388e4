"""The resources of a trial and how many trials fit, as pure functions of the cluster's resources."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from attention import InputError

STANDARD = ("CPU", "GPU", "memory", "object_store_memory")  # of every node, as Ray calls them
TOLD = 5  # nodes that a message names


@dataclass(frozen=True, kw_only=True)
class TrialResources:
    """The shape of one trial: workers, and the CPU cores and GPUs of each.

    A fraction of a GPU shares it with other trials.
    custom: of each worker too, by the names that the cluster's owner gave them. labels: of its node.
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
        one = _listed([f"{amount:g} {_called(name)}" for name, amount in self.bundle.items()])
        on = (
            f" with {_listed([f'{key}={value}' for key, value in self.labels.items()])}"
            if self.labels
            else ""
        )
        if self.workers > 1:
            return f"{self.workers} workers of {one} each" + (f" on nodes{on}" if on else "")
        return f"{one} on one node{on}"

    @property
    def bundle(self) -> dict[str, float]:
        """What one worker takes, in Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, **self.custom}


def slots(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> int:
    """How many trials run at once on `nodes`, each node's resources in Ray's names.

    Raises InputError with what was asked and what exists when none fits.
    """
    total = fitting(trial, nodes)
    if total == 0:
        raise InputError(
            f"{shortage(trial, nodes)}. Lower --cpus-per-trial, --gpus-per-trial or --workers-per-trial, or "
            f"add a node; on an autoscaling cluster, --concurrent N requests capacity for N trials and waits."
        )
    return total


def fitting(trial: TrialResources, nodes: Iterable[Mapping[str, float]]) -> int:
    """How many trials fit on `nodes`, each with what it has in all or what is free of it; 0 or more.

    A worker runs on one node; the workers of a trial may run on several. Ray does not report which of a
    node's GPUs a free fraction belongs to, so it is taken for one GPU's.
    """
    return sum(_on_node(trial, node) for node in nodes) // trial.workers


def free_on(trial: TrialResources, nodes: Mapping[str, Mapping[str, float]]) -> str:
    """How much of what a trial takes is free on each node, by the nodes' names: those with most first."""

    def enough(name: str) -> float:
        return min(nodes[name].get(what, 0) / amount for what, amount in trial.bundle.items() if amount)

    nearest = sorted(nodes, key=enough, reverse=True)
    told = [f"{amounts(trial, nodes[name])} on {name}" for name in nearest[:TOLD]]
    rest = [f"less on {len(nodes) - TOLD} more"] if len(nodes) > TOLD else []
    return "; ".join(told + rest)


def shortage(trial: TrialResources, nodes: Collection[Mapping[str, float]]) -> str:
    """What is asked for and what there is."""
    total = {name: sum(node.get(name, 0) for node in nodes) for name in trial.bundle}
    such = "such node(s)" if trial.labels else "node(s)"
    return f"a trial asks for {trial}; the cluster has {amounts(trial, total)} on {len(nodes)} {such}"


def amounts(trial: TrialResources, there: Mapping[str, float]) -> str:
    """How much there is of what a trial takes."""
    return _listed([f"{there.get(name, 0):g} {_called(name)}" for name in trial.bundle])


def _called(name: str) -> str:
    return f"{name}s" if name in ("CPU", "GPU") else name


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _on_node(trial: TrialResources, node: Mapping[str, float]) -> int:
    most = [int(node.get(name, 0) / amount + 1e-9) for name, amount in trial.bundle.items() if name != "GPU"]
    if trial.gpus:
        cards, part = divmod(node.get("GPU", 0) + 1e-9, 1)
        on_parts = int(cards) * int(1 / trial.gpus + 1e-9) + int(part / trial.gpus + 1e-9)
        most.append(on_parts if trial.gpus < 1 else int(cards / trial.gpus))
    return min(most)
