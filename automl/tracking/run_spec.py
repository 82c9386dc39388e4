"""What is tracked: which run is whose, and what it is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from automl.confirm.protocol import Confirmation
from automl.storage.folder import About
from automl.config.settings import short_name
from automl.storage.storage import Storage
from automl.tracking.tags import CONFIRMS, SEARCH
from search.record import TrialRecord


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What trials belong to. It can be sent to another process if `checkpoint` can.

    experiment: the name of MLflow's experiment.
    checkpoint: the folder of a trial's checkpoint.
    name: of the run above those of the trials, such as the search's; without one they are on their own.
    tags: of that run. identity: tells it from others of its name, so that it is found and continued.
    above: the identity of the run that it is a child of.
    about: its parameters. settings: an artifact of it.
    """

    experiment: str
    checkpoint: Callable[[TrialRecord], Storage]
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    above: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def search_subject(kept: Storage, about: About) -> Subject:
    """The search kept at `kept`."""
    settings, plan = about.settings, about.plan
    return Subject(
        name=about.name,
        tags={SEARCH: about.name},
        identity=about.identity,
        experiment=short_name(settings.space),
        checkpoint=partial(below, kept),
        about={
            "space": settings.space,
            "trials": plan["trials"],
            "epochs": f"{plan['budget']:g}",
            "equal": settings.equal,
            "sampler": settings.sampler,
            "objective": ",".join(plan["objectives"]),
            "seed": settings.seed,
            "data": about.data[:16],
        },
        settings=about.to_json(),
    )


def confirmation_subject(kept: Storage, about: About, confirmation: Confirmation) -> Subject:
    """A search's confirmation kept at `kept`, below the search's run."""
    number = confirmation.number
    return Subject(
        name=f"{about.name} confirm" + (f" {number}" if number > 1 else ""),
        tags={CONFIRMS: about.name},
        identity=f"{about.identity}-confirm-{number}",
        above=about.identity,
        experiment=short_name(about.settings.space),
        checkpoint=partial(below, kept),
        about={**vars(confirmation.options), "first_seed": confirmation.seeds[0]},
        settings=confirmation.to_json(),
    )


def below(kept: Storage, trial: TrialRecord) -> Storage:
    """The folder of a trial's checkpoint, of what is kept at `kept`."""
    return kept / trial.folder
