"""The trackers of a search and of its confirmation: which run is whose, and what it is called."""

from automl.confirmation import Confirmation
from automl.folder import About
from automl.settings import short_name
from automl.storage import Storage
from automl.tracking.client import CONFIRMS, SEARCH
from automl.tracking.tracker import Tracker


def open_tracker(kept: Storage, about: About) -> Tracker:
    """The tracker of the search kept at `kept`, with the runs that MLflow has of it."""
    settings, plan = about.settings, about.plan
    return Tracker(
        name=about.name,
        tags={SEARCH: about.name},
        identity=about.identity,
        experiment=short_name(settings.space),
        checkpoint=lambda trial: kept / trial.folder,
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


def open_confirmation(kept: Storage, about: About, confirmation: Confirmation) -> Tracker:
    """The tracker of a search's confirmation kept at `kept`, below the search's run."""
    number = confirmation.number
    return Tracker(
        name=f"{about.name} confirm" + (f" {number}" if number > 1 else ""),
        tags={CONFIRMS: about.name},
        identity=f"{about.identity}-confirm-{number}",
        above=about.identity,
        experiment=short_name(about.settings.space),
        checkpoint=lambda trial: kept / trial.folder,
        about={**vars(confirmation.options), "first_seed": confirmation.seeds[0]},
        settings=confirmation.to_json(),
    )
