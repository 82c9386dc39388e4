"""Read everything that a report needs once: the search's folder, its study, its confirmations, answers.

A running search may write the study at the same time. The report has its state at `made`. Answers are those
of the best trial and the baseline, or of a confirmation's variants.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

from automl.base.errors import InputError
from automl.base.options import advise_weights, format_command
from automl.judge.protocol import study_name, trials_of
from automl.judge.scheduler import read_verdicts
from automl.judge.verdict import Verdict, confirm_folder
from automl.storage.folder import NamedSearch, check_not_lost, find_search, resolve_search
from automl.storage.metadata import SearchMetadata, read_metadata
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers, describe_original, read_answers
from automl.task.task_data import Split
from search.choices import AUGMENT
from search.record import Role, State, TrialRecord, describe_placement, format_options, model_options
from search.study import STUDY_FILE, read_records
from search.trial_scheduler import Plan


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """A search that is read from its folder, with what the report shows of it.

    Attributes:
        folder: The folder of the search on this machine, with its study, checkpoints and log.
        metadata: The content of `search.json`.
        trials: The trials, sorted by number.
        verdicts: The confirmations, the latest last.
        links: The address of each trial's run in MLflow, by its number, once a report has asked for it.
        read_at: Time of reading, in seconds since 1970.
    """

    folder: Path
    metadata: SearchMetadata
    trials: Sequence[TrialRecord]
    verdicts: Sequence[Verdict] = ()
    links: Mapping[int, str] = field(default_factory=dict)
    read_at: float = field(default_factory=time.time)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan of the search."""
        return self.metadata.plan

    @property
    def search(self) -> str:
        """Name of the search, for functions that take a search or its result."""
        return self.metadata.name

    @property
    def storage(self) -> str:
        """Folder or object store of the search."""
        return self.metadata.storage

    @property
    def metric(self) -> str:
        """Return the name of the metric."""
        return self.plan.metric.name

    def show(self, trial: TrialRecord) -> str:
        """Return the final score of a completed trial, with its unit."""
        return self.plan.metric.show(trial.value(self.metric))

    @cached_property
    def counts(self) -> Counter[State]:
        """Return the number of trials in each state."""
        return Counter(trial.state for trial in self.trials)

    @cached_property
    def done(self) -> list[TrialRecord]:
        """Completed trials with a finite score."""
        finals = ((trial, self.final(trial)) for trial in self.trials if trial.state is State.COMPLETE)
        return [trial for trial, score in finals if score is not None and math.isfinite(score)]

    @property
    def at_chance(self) -> bool:
        """True if no completed trial is better than guessing."""
        return bool(self.done) and all(map(self.plan.guesses, self.done))

    @property
    def warnings(self) -> list[str]:
        """Return reasons to doubt the result."""
        done, metric, plan, show = self.done, self.metric, self.plan, self.plan.metric.show
        if not self.at_chance:
            return []
        best = max((trial.value(metric) for trial in done), key=lambda value: self.plan.metric.sign * value)
        of_training = f"train_{metric}"
        learned = max((trial.value(of_training) for trial in done if trial.has(of_training)), default=0.0)
        if plan.metric.maximize and learned > (1 + (plan.guessing or 0.0)) / 2:  # of a loss, more is worse
            config = done[0].config
            can_augment = all(hasattr(config.training, name) for name in AUGMENT["strong"])
            return [
                f"the training data are memorised: {metric} is {show(learned)} on them and at most "
                f"{show(best)} in validation, which guessing may reach. Use more data"
                f"{', --augment strong' * can_augment}, or pretrained weights "
                f"({advise_weights(config.model.backbone)})"
            ]
        return [
            f"train longer (--epochs) or validate on more data: no trial beats chance. The best validation "
            f"{metric} is {show(best)}, and guessing may reach {show(plan.guessing or 0.0)}"
        ]

    @cached_property
    def pruned(self) -> list[TrialRecord]:
        """Return the pruned trials that completed an epoch."""
        return [trial for trial in self.trials if trial.state is State.PRUNED and trial.history]

    @cached_property
    def _leaders(self) -> tuple[TrialRecord | None, TrialRecord | None]:
        return self.metadata.leaders(self.done, self.plan)

    @property
    def best(self) -> TrialRecord | None:
        """Best completed trial by the metric."""
        return self._leaders[0]

    @property
    def baseline(self) -> TrialRecord | None:
        """Best completed trial without attention."""
        return self._leaders[1]

    @property
    def original(self) -> str:
        """Trained model that the search starts from, and what the best trial saves. Empty without one."""
        return describe_original(self.folder, self.plan.metric, self.best)

    @cached_property
    def milestones(self) -> list[float]:
        """Return the resources at which the rungs lie."""
        return self.plan.rungs().milestones

    @cached_property
    def _varied(self) -> set[str]:
        """Return the options of each backbone that differ between its trials."""
        models = [(trial.config.model.backbone, model_options(trial.config)) for trial in self.trials]
        options = {(backbone, key) for backbone, values in models for key in values}
        return {
            key
            for backbone, key in options
            if len({repr(values.get(key)) for other, values in models if other == backbone}) > 1
        }

    def where(self, trial: TrialRecord) -> str:
        """Return the placement of a trial in words, and the options in which the trials differ."""
        sites = describe_placement(trial.config)
        options = model_options(trial.config)
        varied = {key: value for key, value in options.items() if key in self._varied}
        return f"{sites}, {format_options(varied)}" if varied else sites

    @property
    def unfinished(self) -> int:
        """Return the number of trials that were running."""
        return self.counts[State.RUNNING]

    def gap(self, difference: float) -> str:
        """Return a difference of the metric with its sign and unit."""
        digits = ".2f" if self.plan.metric.unit == "%" else ".3g"
        return f"{difference:+{digits}} {self.plan.metric.gap_unit}"

    def final(self, trial: TrialRecord) -> float | None:
        """Return the metric after the last epoch as it is shown, or None if there is none."""
        history = trial.history
        return (
            self.plan.metric.scale * history[-1][self.metric]
            if history and self.metric in history[-1]
            else None
        )

    def score(self, trial: TrialRecord) -> float:
        """Return `final` of a completed trial."""
        value = self.final(trial)
        assert value is not None
        return value


def read_search(
    search: str | NamedSearch | None = None, storage: str | PathLike[str] | None = None
) -> SearchData:
    """Read a search for its report, by default the latest. Raise InputError if it has no trials yet."""
    name, storage = resolve_search(search, storage)
    folder, metadata = find_search(name, storage)
    data = read_folder(folder, storage)
    if not data.trials:
        check_not_lost(folder, metadata.location)
        resume = metadata.resume_command
        raise InputError(
            f"search {metadata.name!r} has no trials yet, so there is nothing to report; wait for its first "
            f"one, or resume it: {format_command(resume, metadata.name, storage)}"
        )
    return data


def read_folder(folder: Path, storage: str | None = None) -> SearchData:
    """Read the search in a folder, by default stored in the one above. Raise InputError if it is damaged."""
    metadata = read_metadata(folder, storage or str(folder.parent))
    trials_folder, name, plan = trials_of(folder, metadata)
    trials = read_records(trials_folder, name, plan.needed)
    verdicts = [verdict for _, verdict in read_verdicts(folder, metadata)]
    return SearchData(folder=folder, metadata=metadata, trials=trials, verdicts=verdicts)


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

    split: Split
    of: Sequence[Answered]

    @property
    def lead(self) -> str:
        """Introduction of a section: the configurations and the split."""
        many = (
            "; all trainings of a configuration count" if any(len(o.trainings) > 1 for o in self.of) else ""
        )
        return f"Of {' and '.join(group.what for group in self.of)}, on the {self.split} split{many}."


def answered(search: SearchData) -> AnsweredSplit:
    """Return the answers of the latest confirmation on the test split, or else of the search on its split.

    `of` is empty where there are no answers to go by: before a trial is done, or of a task that keeps none.
    """
    trainings = _confirmed(search, search.verdicts[-1]) if search.verdicts else []
    if trainings:
        return AnsweredSplit(split="test", of=trainings)
    return AnsweredSplit(
        split="test" if search.metadata.settings.terms.test else "validation", of=_searched(search)
    )


def _searched(search: SearchData) -> list[Answered]:
    """Return answers of the best trial and the best baseline, with trials that differ only in the seed."""
    groups = []
    for what, trial in (("best", search.best), ("best baseline", search.baseline)):
        if trial is None or (what != "best" and trial is search.best):
            continue
        if own := _of([_folder(search, trial)]):
            config = trial.config.change(seed=0)
            alike = [t for t in search.done if t is not trial and t.config.change(seed=0) == config]
            own += [answers for other in alike for answers in _of([_folder(search, other)])]
            name = f"the {what} trial, {trial.number}: {search.where(trial)}"
            groups.append(Answered(what=name, trainings=own))
    return groups


def _folder(search: SearchData, trial: TrialRecord) -> Storage:
    return search.metadata.location / trial.folder


def _confirmed(search: SearchData, verdict: Verdict) -> list[Answered]:
    """Return the answers of a confirmation's leading finalist and baseline."""
    baseline = next((variant.name for variant in verdict.variants if variant.role is Role.BASELINE), "")
    groups = []
    for what, variant in (("the leading finalist", verdict.finalist), ("the tuned baseline", baseline)):
        trainings = _of(variant_folders(search, verdict, variant))
        if trainings:
            groups.append(Answered(what=f"{what}, {variant}", trainings=trainings))
    return groups


def variant_folders(search: SearchData, verdict: Verdict, variant: str | None) -> list[Storage]:
    """Return the folders of a variant's complete trainings that the verdict counts, none without a name."""
    location = search.metadata.location / confirm_folder(verdict.confirmation)
    return [location / record.folder for record in variant_trainings(search, verdict, variant)]


def variant_trainings(search: SearchData, verdict: Verdict, variant: str | None) -> list[TrialRecord]:
    """Return a variant's complete trainings that the verdict counts, none without a name."""
    folder = search.folder / confirm_folder(verdict.confirmation)
    if not variant or not (folder / STUDY_FILE).exists():
        return []
    seeds = next((set(other.scores) for other in verdict.variants if other.name == variant), set())
    return [
        record
        for record in read_records(folder, study_name(folder, search.search))
        if record.variant == variant and record.state is State.COMPLETE and record.config.seed in seeds
    ]


def _of(folders: Sequence[Storage]) -> list[Answers]:
    """Return the answers in these folders, or none if one folder has none."""
    answers = [read for folder in folders if (read := read_answers(folder)) is not None]
    return answers if len(answers) == len(folders) else []
