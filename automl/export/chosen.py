"""Chooses the trial of a search to export: the confirmed winner, or else the best one.

It is found in the search's storage; MLflow need not have it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from attention import InputError
from automl.config.command_line import format_command
from automl.confirm.confirmation_run import confirmation_run_spec
from automl.confirm.protocol import CONFIRM_FOLDER, Confirmation, best_of_variant, latest_verdict, study_name
from automl.confirm.written import WrittenVerdict
from automl.storage.folder import SearchMetadata, check_not_lost, find_search
from automl.storage.storage import Storage
from automl.tracking.runs import find_run
from search.record import CHECKPOINT_FILE, TRIALS_FOLDER, Role, State
from search.study import STUDY_FILE, read_records


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trained trial, and why it is this one.

    name: of the trial. checkpoint: the folder of its file. what: which trial it is, in words.
    search: that it is of; None where a run of MLflow's was named.
    verdict: the headline of the latest confirmation; None before there is one. figures: the line below it.
    confirmed: it is the winner that the verdict speaks of.
    warning: that the confirmation prefers the baseline; empty where it does not.
    identity, number: of what it is a trial of, and its number there, by which MLflow has it.
    run_id: of its run in MLflow; None where there is none, or it was not looked up.
    """

    name: str
    checkpoint: Storage
    what: str
    search: str | None = None
    verdict: str | None = None
    figures: str = ""
    confirmed: bool = False
    warning: str = ""
    identity: str = ""
    number: int = 0
    run_id: str | None = None

    @property
    def choice(self) -> str:
        """Return the trial and the reason of its choice."""
        if self.verdict is None:
            return self.what if self.confirmed else f"{self.what}; not confirmed"
        return f"{self.what}{'; confirmation found no winner' if self.warning else ''}: {self.verdict}"

    @property
    def short_name(self) -> str:
        """The search's name, or that of the training's folder; `mine-0003` for a trial of a search."""
        if self.search is not None:
            return self.search
        *above, owner, trials, number = ["", "", *str(self.checkpoint).rstrip("/").split("/")]
        if trials != TRIALS_FOLDER:
            return number
        return f"{above[-1]}-{owner}-{number}" if owner.startswith(CONFIRM_FOLDER) else f"{owner}-{number}"

    @property
    def origin(self) -> str:
        """Return the search and the trial."""
        if self.run_id is not None:
            return f"MLflow run {self.run_id}"
        return f"trial {self.name} of search {self.search}"


def choose(search: str, storage: str, *, baseline: bool = False) -> Chosen:
    """The confirmed winner of the search called `search`, or else its best trial that has a checkpoint.

    baseline: the tuned baseline of the confirmation instead, or else the best trial without attention.

    Reads alone, so that it can be asked while the search runs.

    Raises InputError when there is no such search, when it has nothing to choose from, or when it is damaged.
    """
    folder, metadata = find_search(search, storage)
    latest = latest_verdict(folder)
    verdict_folder, verdict = latest if latest is not None and latest[1].complete else (None, None)
    if verdict_folder is not None and verdict is not None:
        tuned = _trained(metadata, verdict_folder, verdict.variants[0].name) if baseline else None
        if tuned is not None and tuned.checkpoint.exists(CHECKPOINT_FILE):
            return replace(
                tuned,
                what="the tuned baseline of the confirmation",
                verdict=verdict.headline,
                figures=verdict.figures,
            )
        if verdict.winner is not None and not baseline:
            won = _trained(metadata, verdict_folder, verdict.winner)
            if won is None:
                raise InputError(
                    f"{verdict_folder} names the winner {verdict.winner!r}, and "
                    f"{verdict_folder / STUDY_FILE} has no training of that; is one of these damaged or lost?"
                )
            return replace(
                won,
                what="confirmed winner",
                verdict=verdict.headline,
                figures=verdict.figures,
                confirmed=True,
            )
    plan = metadata.plan
    records = read_records(folder, metadata.name, plan.needed)
    check_not_lost(folder, metadata)
    done = [record for record in records if record.state is State.COMPLETE]
    if baseline:
        done = [record for record in done if record.role is Role.BASELINE]
    done.sort(
        key=lambda record: -plan.signed_value(record)
    )  # of equals the first, as `select_leaders` has it
    if not done:
        raise InputError(
            f"search {metadata.name!r} has no completed trial{' without attention' if baseline else ''}. "
            f"Resume it: {format_command('search --resume', metadata.name, storage)}. "
            f"Or export an MLflow run: automl export --run ID"
        )
    kept = (record for record in done if (metadata.location / record.folder).exists(CHECKPOINT_FILE))
    best = next(kept, None)
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
        verdict=verdict.headline if verdict is not None and verdict.winner is None else None,
        figures=verdict.figures if verdict is not None and verdict.winner is None else "",
        warning="" if verdict is None or baseline else _warning(verdict, metadata.name, storage),
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
        figures=run.figures,
        confirmed=run.confirmed,
        run_id=run_id,
    )


def _warning(verdict: WrittenVerdict, search: str, storage: str) -> str:
    """Return what to do instead of exporting the best trial of a search whose confirmation has no winner."""
    worse = ", and the best of them worse" if verdict.verdict == "worse" else ""
    return (
        f"export the baseline instead, with {format_command('export --baseline --search', search, storage)}: "
        f"the confirmation found no finalist better{worse}"
    )


def _trained(metadata: SearchMetadata, verdict_folder: Path, variant: str) -> Chosen | None:
    """Return a variant's training with the best validation, of the confirmation in `place`; None without
    one.
    """
    confirmation = Confirmation.read(verdict_folder)
    metric = metadata.plan.metric
    records = read_records(verdict_folder, study_name(verdict_folder, metadata), [metric.name])
    best = best_of_variant(records, variant, confirmation.design(metric, metadata.settings.equal))
    if best is None:
        return None
    location = metadata.location / verdict_folder.name
    return Chosen(
        name=best.name,
        checkpoint=location / best.folder,
        what="",
        search=metadata.name,
        identity=confirmation_run_spec(location, metadata, confirmation).identity,
        number=best.number,
    )
