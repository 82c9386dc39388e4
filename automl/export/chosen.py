"""The trial of a search that is exported: the confirmed winner, or else the best one.

It is found in the search's storage; MLflow is a mirror, and need not know of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attention import InputError
from automl.confirm.protocol import Confirmation, best_of_arm, latest_verdict, study_name
from automl.storage.folder import About, find_search
from automl.config.settings import command
from automl.storage.storage import Storage
from automl.tasks import TASKS
from automl.tracking.run_spec import confirmation_subject
from search.ledger import Plan
from search.record import CHECKPOINT, State, TrialRecord
from search.study import read_records


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trained trial, and why it is this one.

    name: of the trial. checkpoint: the folder of its file. what: which trial it is, in words.
    search: that it is of; None where a run of MLflow's was named.
    verdict: what the latest confirmation found, in a sentence; None before there is one.
    confirmed: it is the winner that the verdict speaks of.
    identity, number: of what it is a trial of, and its number there, by which MLflow has it.
    run_id: of its run in MLflow; None where there is none, or nobody has looked.
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


def choose(search: str, storage: str) -> Chosen:
    """The confirmed winner of the search called `search`, or else its best trial that has a checkpoint.

    Reads alone, so that it can be asked while the search runs.

    Raises InputError when there is no such search, when it has nothing to choose from, or when it is damaged.
    """
    folder, about = find_search(search, storage)
    found = latest_verdict(folder)
    if found is not None and found[1]["complete"] and found[1]["winner"] is not None:
        return _winner(about, *found)
    plan = Plan(**about.plan)
    done = [record for record in read_records(folder, about.name) if record.state is State.COMPLETE]
    done.sort(key=lambda record: -plan.score(record)[0])  # of equals the first, as `leaders` has it
    if not done:
        raise InputError(
            f"search {about.name!r} has no trial that was trained to its end; go on with it, "
            f"{command('search --resume', about.name, storage)}, or export a run of MLflow's by --run ID"
        )
    best = _first_kept(about.kept, done)
    if best is None:
        raise InputError(
            f"no trial of search {about.name!r} has a checkpoint in {about.kept}; were they deleted, or "
            f"written on another machine?"
        )
    return Chosen(
        name=best.name,
        checkpoint=about.kept / best.folder,
        what="the search's best" + ("" if best is done[0] else " that still has a checkpoint"),
        search=about.name,
        verdict=found[1]["sentence"] if found is not None and found[1]["complete"] else None,
        identity=about.identity,
        number=best.number,
    )


def _winner(about: About, place: Path, verdict: dict[str, str]) -> Chosen:
    """The training of the winning arm with the best validation, of the confirmation in `place`."""
    confirmation = Confirmation.read(place)
    task = TASKS[confirmation.field.arms[0].config.task]
    records = read_records(place, study_name(place, about))
    best = best_of_arm(records, verdict["winner"], confirmation.question(task, about.settings.equal))
    if best is None:
        raise InputError(
            f"{place} tells of the winner {verdict['winner']!r}, and its study has no training of that; is a "
            f"file of it damaged or lost?"
        )
    kept = about.kept / place.name
    return Chosen(
        name=best.name,
        checkpoint=kept / best.folder,
        what="confirmed winner",
        search=about.name,
        verdict=verdict["sentence"],
        confirmed=True,
        identity=confirmation_subject(kept, about, confirmation).identity,
        number=best.number,
    )


def _first_kept(kept: Storage, records: Iterable[TrialRecord]) -> TrialRecord | None:
    return next((record for record in records if (kept / record.folder).exists(CHECKPOINT)), None)
