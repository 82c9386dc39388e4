"""Chooses the trial of a search to export: the confirmed winner, or else the best one.

It is found in the search's storage; MLflow need not have it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attention import InputError
from automl.config.settings import command
from automl.confirm.protocol import Confirmation, best_of_arm, latest_verdict, study_name
from automl.confirm.run_spec import confirmation_run_spec
from automl.confirm.written import WrittenVerdict
from automl.storage.folder import SearchMetadata, check_not_lost, find_search
from automl.storage.storage import Storage
from automl.tracking.runs import find_run
from search.record import CHECKPOINT_FILE, Role, State, TrialRecord
from search.study import STUDY_FILE, read_records


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trained trial, and why it is this one.

    name: of the trial. checkpoint: the folder of its file. what: which trial it is, in words.
    search: that it is of; None where a run of MLflow's was named.
    verdict: what the latest confirmation found, in a sentence; None before there is one.
    confirmed: it is the winner that the verdict speaks of.
    identity, number: of what it is a trial of, and its number there, by which MLflow has it.
    run_id: of its run in MLflow; None where there is none, or it was not looked up.
    """

    name: str
    checkpoint: Storage
    what: str
    search: str | None = None
    verdict: str | None = None
    confirmed: bool = False
    identity: str = ""
    number: int = 0
    run_id: str | None = None

    @property
    def choice(self) -> str:
        """Which trial it is, and why this one."""
        if self.confirmed:
            return f"{self.what}: {self.verdict}" if self.verdict else self.what
        found = f"confirmation found no winner: {self.verdict}" if self.verdict else "not confirmed"
        return f"{self.what}; {found}"

    @property
    def origin(self) -> str:
        """Where it is found again."""
        if self.run_id is not None:
            return f"MLflow run {self.run_id}"
        return f"trial {self.name} of search {self.search}"


def choose(search: str, storage: str, *, baseline: bool = False) -> Chosen:
    """The confirmed winner of the search called `search`, or else its best trial that has a checkpoint.

    baseline: the best trial without attention instead.

    Reads alone, so that it can be asked while the search runs.

    Raises InputError when there is no such search, when it has nothing to choose from, or when it is damaged.
    """
    folder, metadata = find_search(search, storage)
    found = latest_verdict(folder)
    won = found is not None and found[1].complete and found[1].winner is not None
    if found is not None and won and not baseline:
        return _winner(metadata, *found)
    plan = metadata.plan
    records = read_records(folder, metadata.name, plan.needed)
    check_not_lost(folder, metadata)
    done = [record for record in records if record.state is State.COMPLETE]
    if baseline:
        done = [record for record in done if record.role is Role.BASELINE]
    done.sort(key=lambda record: -plan.worth(record))  # of equals the first, as `leaders` has it
    if not done:
        raise InputError(
            f"search {metadata.name!r} has no completed trial"
            f"{' without attention' if baseline else ''}; resume it, "
            f"{command('search --resume', metadata.name, storage)}, or export a run of MLflow's by --run ID"
        )
    best = _first_kept(metadata.location, done)
    if best is None:
        raise InputError(
            f"no trial of search {metadata.name!r} has a checkpoint in {metadata.location}; were they "
            f"deleted, or written on another machine?"
        )
    return Chosen(
        name=best.name,
        checkpoint=metadata.location / best.folder,
        what="the search's best"
        + (" without attention" if baseline else "")
        + ("" if best is done[0] else " that still has a checkpoint"),
        search=metadata.name,
        verdict=found[1].sentence if found is not None and found[1].complete and not won else None,
        identity=metadata.identity,
        number=best.number,
    )


def choose_run(run_id: str) -> Chosen:
    """The trial of a run of MLflow's. Raises InputError when there is no such run or it has no checkpoint."""
    run = find_run(run_id)
    return Chosen(
        name=run.name,
        checkpoint=run.checkpoint,
        what="confirmed winner" if run.confirmed else "the run that was named",
        verdict=run.verdict,
        confirmed=run.confirmed,
        run_id=run_id,
    )


def _winner(metadata: SearchMetadata, place: Path, verdict: WrittenVerdict) -> Chosen:
    """The training of the winning arm with the best validation, of the confirmation in `place`."""
    confirmation = Confirmation.read(place)
    metric = metadata.plan.metric
    records = read_records(place, study_name(place, metadata), [metric.name])
    best = best_of_arm(records, str(verdict.winner), confirmation.question(metric, metadata.settings.equal))
    if best is None:
        raise InputError(
            f"{place} names the winner {verdict.winner!r}, and {place / STUDY_FILE} has no training of that; "
            f"is one of these damaged or lost?"
        )
    location = metadata.location / place.name
    return Chosen(
        name=best.name,
        checkpoint=location / best.folder,
        what="confirmed winner",
        search=metadata.name,
        verdict=verdict.sentence,
        confirmed=True,
        identity=confirmation_run_spec(location, metadata, confirmation).identity,
        number=best.number,
    )


def _first_kept(location: Storage, records: Iterable[TrialRecord]) -> TrialRecord | None:
    return next((record for record in records if (location / record.folder).exists(CHECKPOINT_FILE)), None)
