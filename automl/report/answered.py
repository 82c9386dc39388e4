"""Select the answers for a report: of the best trial and the baseline, or of a confirmation's variants."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.confirm.protocol import study_name
from automl.confirm.verdict import WrittenVerdict, confirm_folder
from automl.report.read import SearchData
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers, read_answers
from search.record import State, TrialRecord
from search.study import STUDY_FILE, read_records


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Answers of one configuration, from one or several trainings with the same inputs.

    Attributes:
        what: The name of the configuration in words.
        trainings: The answers of each training.
    """

    what: str
    trainings: Sequence[Answers]


@dataclass(frozen=True, kw_only=True)
class AnsweredSplit:
    """Answers that a report uses.

    Attributes:
        split: `validation` or `test`.
        of: The best configuration, then the baseline if it is another one.
    """

    split: str
    of: Sequence[Answered]

    @property
    def lead(self) -> str:
        """Introduction of a section: the configurations and the split."""
        many = (
            "; all trainings of a configuration count" if any(len(o.trainings) > 1 for o in self.of) else ""
        )
        return f"Of {' and '.join(group.what for group in self.of)}, on the {self.split} split{many}."


def answered(search: SearchData) -> AnsweredSplit:
    """Return the answers of the latest confirmation on the test split, or else of the search on validation.

    `of` is empty where there are no answers to go by: before a trial is done, or of a task that keeps none.
    """
    trainings = _confirmed(search, search.verdicts[-1]) if search.verdicts else []
    if trainings:
        return AnsweredSplit(split="test", of=trainings)
    return AnsweredSplit(split="validation", of=_searched(search))


def _searched(search: SearchData) -> list[Answered]:
    """Return answers of the best trial and the best baseline, with trials that differ only in the seed."""
    groups = []
    for what, trial in (("best", search.best), ("best baseline", search.baseline)):
        if trial is None or (what != "best" and trial is search.best):
            continue
        if own := _of([_folder(search, trial)]):
            own += [answers for other in _alike(search, trial) for answers in _of([_folder(search, other)])]
            name = f"the {what} trial, {trial.number}: {search.where(trial)}"
            groups.append(Answered(what=name, trainings=own))
    return groups


def _alike(search: SearchData, trial: TrialRecord) -> list[TrialRecord]:
    """Return the finished trials that differ from this one only in the seed."""
    config = trial.config.change(seed=0)
    return [t for t in search.done if t is not trial and t.config.change(seed=0) == config]


def _folder(search: SearchData, trial: TrialRecord) -> Storage:
    return search.metadata.location / trial.folder


def finalist_folders(search: SearchData, verdict: WrittenVerdict) -> list[Storage]:
    """Return the folders of the complete trainings of a confirmation's leading finalist."""
    return _folders(search, verdict, verdict.finalist) if verdict.finalist else []


def _confirmed(search: SearchData, verdict: WrittenVerdict) -> list[Answered]:
    """Return the answers of a confirmation's leading finalist and baseline."""
    baseline = next((variant.name for variant in verdict.variants if variant.role == "baseline"), "")
    groups = []
    for what, variant in (("the leading finalist", verdict.finalist), ("the tuned baseline", baseline)):
        trainings = _of(_folders(search, verdict, variant)) if variant else []
        if trainings:
            groups.append(Answered(what=f"{what}, {variant}", trainings=trainings))
    return groups


def _folders(search: SearchData, verdict: WrittenVerdict, variant: str) -> list[Storage]:
    """Return the folders of a variant's complete trainings that the verdict counts."""
    number = verdict.confirmation
    folder = search.folder / confirm_folder(number)
    if not (folder / STUDY_FILE).exists():
        return []
    seeds = next((set(other.scores) for other in verdict.variants if other.name == variant), set())
    return [
        search.metadata.location / folder.name / record.folder
        for record in read_records(folder, study_name(folder, search.metadata))
        if record.variant == variant and record.state is State.COMPLETE and str(record.config.seed) in seeds
    ]


def _of(folders: Sequence[Storage]) -> list[Answers]:
    """Return the answers in these folders, or none if one folder has none."""
    answers = [read for folder in folders if (read := read_answers(folder)) is not None]
    return answers if len(answers) == len(folders) else []
