"""Choose the trial of a search to export: the confirmed winner, or else the best one.

It is read from the search's storage, so MLflow is not needed.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow.exceptions import MlflowException

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.units import format_duration, pluralize
from automl.judge.protocol import Confirmation, best_of_variant, study_name
from automl.judge.scheduler import latest_verdict
from automl.judge.verdict import CONFIRM_FOLDER, Verdict
from automl.storage.folder import check_not_lost, exists, find_model_search
from automl.storage.metadata import SearchMetadata
from automl.storage.storage import Storage, is_address
from automl.storage.trial_files import describe_original
from automl.tracking.client import find_runs, open_client
from automl.tracking.run_spec import CHECKPOINT, CONFIRMED, FIGURES, VERDICT
from search.record import CHECKPOINT_FILE, TRIALS_FOLDER, Role, TrialRecord
from search.study import STUDY_FILE, read_records
from search.trial_scheduler import rank_trials


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Trained trial, and the reason of its choice.

    Attributes:
        what: Description of the trial, such as `confirmed winner`.
        search: Name of its search. None for an MLflow run.
        verdict: Headline of the latest confirmation. None without a confirmation.
        figures: How sure the verdict is, and what the model costs.
        confirmed: True if it is the winner of the confirmation.
        warning: Advice to export the baseline instead, or an empty text.
        spent: Of a free answer, what the search took beside it. Otherwise an empty text.
        identity: Identity of its search or confirmation in MLflow.
        number: Number of the trial there.
        original: Trained model that its search started from. Empty without one.
        run_id: ID of its MLflow run. None if there is none, or it was not looked up.
    """

    name: str
    checkpoint: Storage
    what: str
    search: str | None = None
    verdict: str | None = None
    figures: str = ""
    confirmed: bool = False
    warning: str = ""
    spent: str = ""
    identity: str = ""
    number: int = 0
    original: str = ""
    run_id: str | None = None

    @property
    def choice(self) -> str:
        """Return the trial and the reason of its choice."""
        if self.verdict is None:
            return self.what if self.confirmed else f"{self.what}; not confirmed"
        return f"{self.what}{'; confirmation found no winner' if self.warning else ''}: {self.verdict}"

    @property
    def short_name(self) -> str:
        """Name of the search or of the training's folder. `mine-0003` for a trial of a search."""
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
        if self.search is None:
            return f"training {self.name}"
        return f"trial {self.name} of search {self.search}"


def choose(search: str, storage: str, *, baseline: bool = False) -> Chosen:
    """Choose the confirmed winner of a search, or else its best trial with a checkpoint.

    With `baseline`, choose the tuned baseline of the confirmation, or else the best trial without attention.
    It only reads, so it can be called while the search runs.

    Raise InputError if the search does not exist, has no suitable trial, or is damaged.
    """
    folder, metadata = find_model_search(search, storage)
    verdict_folder, verdict = latest_verdict(folder, metadata) or (folder, None)
    if verdict is not None and not verdict.complete:
        verdict = None
    plan = metadata.plan
    if verdict is not None and (chosen := _confirmed(metadata, verdict_folder, verdict, baseline=baseline)):
        is_free = not baseline and verdict.winner is not None and verdict.winner.is_free
        # Only then, since the export of a confirmed winner survives damage to the records of the search.
        return replace(chosen, spent=_spent(read_records(folder, metadata.name)) if is_free else "")
    records = read_records(folder, metadata.name, plan.needed)
    check_not_lost(folder, metadata.location)
    done = rank_trials(records, plan)
    if baseline:
        done = [record for record in done if record.role is Role.BASELINE]
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
            f"no trial of search {metadata.name!r} has a checkpoint in {metadata.location}; check whether "
            f"they were deleted, or written on another machine"
        )
    return Chosen(
        name=best.name,
        checkpoint=metadata.location / best.folder,
        what="the search's best"
        + (" without attention" if baseline else "")
        + ("" if best is done[0] else " that still has a checkpoint"),
        search=metadata.name,
        verdict=verdict.headline if verdict is not None and verdict.winner is None else None,
        figures=verdict.details if verdict is not None and verdict.winner is None else "",
        warning="" if verdict is None or baseline else _warning(verdict, metadata.name, storage),
        spent=_spent(records) if best.role is Role.FREE else "",
        original=describe_original(folder, plan.metric, best),
        identity=metadata.identity,
        number=best.number,
    )


def _spent(records: Sequence[TrialRecord]) -> str:
    """Return what free answers took of a search, and what all other placements did."""
    counts, seconds = Counter[Role](), defaultdict[Role, float](float)
    for record in records:
        counts[record.role] += 1
        seconds[record.role] += sum(epoch.get("seconds", 0) for epoch in record.history)
    free, drawn = (format_duration(seconds[role]) for role in (Role.FREE, Role.CANDIDATE))
    answers = pluralize(counts[Role.FREE], "free answers")
    trials = pluralize(counts[Role.CANDIDATE], "drawn trials")
    return f"its model is a free answer: {answers} took {free} of training, and {trials} {drawn} beside them"


def _confirmed(metadata: SearchMetadata, folder: Path, verdict: Verdict, *, baseline: bool) -> Chosen | None:
    """Return the best validated training of a confirmation's winner or tuned baseline."""
    # Return None without a winner, or if the baseline has no checkpoint.
    variant = verdict.variants[0] if baseline else verdict.winner
    if variant is None:
        return None
    confirmation, metric = Confirmation.read(folder), metadata.plan.metric
    records = read_records(folder, study_name(folder, metadata.name), [metric.name])
    best = best_of_variant(records, variant.name, verdict.design)
    location = metadata.location / folder.name
    if baseline and (best is None or not (location / best.folder).exists(CHECKPOINT_FILE)):
        return None
    if best is None:
        raise InputError(
            f"{folder} names the winner {variant.name!r}, but {folder / STUDY_FILE} has no training of it; "
            f"restore these files from a backup"
        )
    return Chosen(
        name=best.name,
        checkpoint=location / best.folder,
        what="the tuned baseline of the confirmation" if baseline else "confirmed winner",
        search=metadata.name,
        verdict=verdict.headline,
        figures=verdict.details,
        confirmed=not baseline,
        original=describe_original(folder, metric, best),
        identity=confirmation.run_spec(location, metadata).identity,
        number=best.number,
    )


def choose_run(run_id: str) -> Chosen:
    """Return the trial of an MLflow run. Raise InputError if the run or its checkpoint does not exist."""
    client = open_client()
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {run_id!r}; `mlflow ui` shows the runs there are") from error
    folder = run.data.tags.get(CHECKPOINT)
    if not folder:
        raise InputError(
            f"run {run_id} ({run.info.run_name}) has no checkpoint: it was not trained, or its search kept "
            f"only the best (--keep). Choose another run."
        )
    parent = next(find_runs(client, None, {CONFIRMED: run_id}), None)
    tags = {} if parent is None else parent.data.tags
    return Chosen(
        name=run.info.run_name,
        checkpoint=Storage(folder),
        what="the run that was named" if parent is None else "confirmed winner",
        verdict=tags.get(VERDICT),
        figures=tags.get(FIGURES, ""),
        confirmed=parent is not None,
        run_id=run_id,
    )


def choose_training(name: str, storage: str) -> Chosen | None:
    """Return the training of this name. Return None if there is a search of the name, or no checkpoint."""
    if is_address(storage) or Path(name).name != name or exists(name, storage):
        return None
    folder = Storage(str(Path(storage).resolve() / name))
    if not folder.exists(CHECKPOINT_FILE):
        return None
    return Chosen(name=name, checkpoint=folder, what="the training that was named")


def _warning(verdict: Verdict, search: str, storage: str) -> str:
    """Return what to do instead of exporting the best trial of a search whose confirmation has no winner."""
    worse = ", and the best of them worse" if verdict.final == "worse" else ""
    return (
        f"export the baseline instead, with {format_command('export --baseline --search', search, storage)}: "
        f"the confirmation found no finalist better{worse}"
    )
