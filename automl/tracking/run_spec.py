"""What is tracked: experiment, names, tags and parameters of the runs."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from automl.storage.folder import SearchMetadata
from automl.storage.storage import Storage
from automl.tracking.tags import COMMIT, SEARCH, SOURCE
from search.record import TrialRecord
from search.serialise import to_json


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What trials belong to. It can be sent to another process if `checkpoint` can.

    experiment: the name of MLflow's experiment.
    checkpoint: the folder of a trial's checkpoint.
    name: of the run above those of the trials, such as the search's; without one they are on their own.
    tags: of that run. identity: tells it from others of its name, so that it is found and continued.
    above: the identity of the run that it is a child of.
    note: what MLflow shows as its description, in Markdown.
    metric: what the trials are sorted by in MLflow's table; without it, the table is as MLflow has it.
    params: its parameters. settings: an artifact of it.
    """

    experiment: str
    checkpoint: Callable[[TrialRecord], Storage]
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    above: str = ""
    note: str = ""
    metric: str = ""
    maximize: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def search_run_spec(location: Storage, metadata: SearchMetadata) -> RunSpec:
    """The search that is kept at `location`."""
    settings, plan = metadata.settings, metadata.plan
    return RunSpec(
        name=metadata.name,
        tags={SEARCH: metadata.name, **source(metadata)},
        identity=metadata.identity,
        experiment=settings.title,
        metric=plan.metric.name,
        maximize=plan.metric.maximize,
        checkpoint=partial(below, location),
        note=f"`{shlex.join(metadata.provenance.get('command', []))}`",
        params={
            "space": settings.space,
            "trials": plan.trials,
            "epochs": f"{plan.budget:g}",
            "equal": settings.equal,
            "sampler": settings.sampler,
            "objective": ",".join(plan.objectives),
            "seed": settings.seed,
            "data": metadata.data[:16],
        },
        settings=to_json(metadata),
    )


def source(metadata: SearchMetadata) -> dict[str, str]:
    """MLflow's tags of the command and of the code's commit, where these are known."""
    command, commit = (metadata.provenance.get(key) for key in ("command", "commit"))
    tags = {SOURCE: shlex.join(command)} if command else {}
    return {**tags, COMMIT: commit} if commit else tags


def below(location: Storage, trial: TrialRecord) -> Storage:
    """The folder of a trial's checkpoint, of what is kept at `location`."""
    return location / trial.folder
