"""The Optuna study of a search: one file in its folder, the durable record of what was tried.

Everything else can be made again from it: the sampler's knowledge, the rungs, the runs in MLflow. A trial's
configuration, role, metrics of every epoch, costs and reason are attributes of its Optuna trial.

The file is Optuna's journal, to which each step is appended and flushed. That takes a small part of the
time of its SQLite storage, and works on the network file systems that a cluster's nodes share, which SQLite's
write-ahead log does not.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from attention import InputError
from search.config import TrialConfig
from search.journal import Journal, batch_writes, truncate_incomplete_line
from search.optuna_internals import identifier_of, storage_of
from search.record import Metrics, Role, State, TrialRecord
from search.serialise import read_value
from search.study_lines import StudyLines

if TYPE_CHECKING:
    from search.placement_sampler import GrowingModel

STUDY_FILE = "study.journal"

# User attributes of a trial. WARM_START marks trials of another search that this one learns from; of the
# study itself, it holds the parameters that are tried first.
CONFIG, ROLE, PROFILE, DEVICE, REASON = "config", "role", "profile", "device", "reason"
EPOCH = "epoch:"  # and its number: the metrics of an epoch
PRUNED, WARM_START, VARIANT = "pruned", "warm_start", "variant"
PLACEMENT_VERDICT = "decided"  # of the study: how placements were told apart as far as matters, once they are
CELLS = "cells"  # of the study of a grid: the parameters of its cells by label, in order
EXPECTED = "expected"  # of the study: its trials are ranked by a model of placements
PLACEMENT, MODEL = "placement", "model"  # in words, for those who read the study with Optuna's own tools

# Nothing is drawn on the study itself.
_NOBODY = optuna.samplers.RandomSampler()

ENQUEUED = "fixed_params"  # Optuna's system attribute of a trial that was given to `Study.enqueue_trial`

# The constraint of what no limit forbids but what cannot be trained: out of memory, diverged.
TRAINABLE = "trainable"


def create_study(
    folder: Path, *, name: str, directions: Sequence[StudyDirection], objectives: Sequence[str] = ()
) -> optuna.Study:
    """A new study called `name` in `folder`. objectives: their names, which optuna-dashboard shows."""
    study = optuna.create_study(
        study_name=name, storage=_storage(folder), directions=list(directions), sampler=_NOBODY
    )
    if objectives:
        study.set_metric_names(list(objectives))
    return study


def open_study(folder: Path, *, name: str) -> optuna.Study:
    """Return the study called `name` in `folder`, to read.

    The only study of a file is it, whatever its name: the search may have been renamed since.

    Raises KeyError when it has none yet, and InputError when its file is damaged.
    """
    return _open(folder, name)[0]


def _open(folder: Path, name: str) -> tuple[optuna.Study, StudyLines]:
    lines = StudyLines(folder / STUDY_FILE)
    if not lines.check():
        raise KeyError(name)
    try:
        study = optuna.load_study(study_name=lines.name, storage=_storage(folder), sampler=_NOBODY)
        study.get_trials(deepcopy=False)
    except InputError:
        raise
    except Exception as error:  # Optuna raises errors of every kind
        raise InputError(f"{folder / STUDY_FILE} is damaged ({type(error).__name__}: {error})") from error
    return study, lines


def resume_study(folder: Path, *, name: str, needed: Collection[str] = ()) -> optuna.Study:
    """Return the study called `name` in `folder`, to resume, by the one process that writes it.

    needed: metrics that each completed trial must have.
    Raises KeyError when it has none yet, and InputError when its file is damaged.
    """
    study, _ = open_records(folder, name=name, needed=needed)
    truncate_incomplete_line(folder / STUDY_FILE)
    return study


def open_records(
    folder: Path, *, name: str, needed: Collection[str] = ()
) -> tuple[optuna.Study, list[tuple[FrozenTrial, TrialRecord]]]:
    """Return the study called `name` in `folder`, and those of its trials that this search created.

    needed: metrics that each completed trial must have.
    Raises KeyError when there is no study yet, and InputError, with the line, when its file is damaged.
    """
    study, lines = _open(folder, name)
    pairs = []
    for trial in own_trials(study):
        try:
            record = read_record(trial)
            if record is not None and record.state is State.COMPLETE:
                _check_metrics(trial, record, needed)
        except _DamagedAttributeError as error:
            raise lines.damage(lines.line_of(trial.number, error.attribute), str(error)) from error
        if record is not None:
            pairs.append((trial, record))
    return study, pairs


def add_trial(study: optuna.Study, trial: FrozenTrial) -> optuna.Trial:
    """Put a trial into a study, whole and in one write, and return it open.

    `Study.add_trial` does not say which one it became, and a study that is asked for its trials reads every
    open one again: with 512 of them, a second for each new one.
    """
    storage, key = storage_of(study)
    return optuna.Trial(study, storage.create_new_trial(key, template_trial=trial))


def begin_waiting(study: optuna.Study, waiting: FrozenTrial, trial: FrozenTrial) -> optuna.Trial:
    """Give a waiting trial of a study the parameters and attributes of `trial`, and return it running."""
    (storage, _), identifier = storage_of(study), identifier_of(waiting)
    with batch_writes(study):
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            internal = distribution.to_internal_repr(value)
            storage.set_trial_param(identifier, name, internal, distribution)
        for key, value in trial.user_attrs.items():
            storage.set_trial_user_attr(identifier, key, value)
        storage.set_trial_state_values(identifier, TrialState.RUNNING)
    return optuna.Trial(study, identifier)


def open_trial(study: optuna.Study, number: int) -> optuna.Trial:
    """A running trial of a study."""
    storage, key = storage_of(study)
    return optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(key, number))


def _storage(folder: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(Journal(folder / STUDY_FILE))


def warm_start_study(study: optuna.Study, other: optuna.Study, *, name: str, comparable: bool) -> None:
    """Put what the search called `name` found into a new study of the same space.

    comparable: its scores mean the same here: they become trials that the sampler knows. Otherwise its best
    five configurations are tried first after the baseline.
    """
    found = [t for t in own_trials(other) if t.state.is_finished() and t.state is not TrialState.FAIL]
    if comparable:
        for trial in found:
            study.add_trial(
                optuna.trial.create_trial(
                    state=trial.state,
                    values=trial.values,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={**trial.user_attrs, WARM_START: name},
                    system_attrs=trial.system_attrs,
                    intermediate_values=trial.intermediate_values,
                )
            )
        return
    done = [trial for trial in found if trial.state is TrialState.COMPLETE]
    sign = -1 if other.directions[0] is StudyDirection.MAXIMIZE else 1
    best = sorted(done, key=lambda t: sign * t.values[0])[:5]
    study.set_user_attr(WARM_START, [trial.params for trial in best])


def own_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of this search that were asked for, in order."""
    return [trial for trial in study.get_trials(deepcopy=False) if WARM_START not in trial.user_attrs]


class _DamagedAttributeError(InputError):
    """A trial's attribute is not what a search writes."""

    def __init__(self, trial: FrozenTrial, attribute: str, reason: object) -> None:
        super().__init__(f"{attribute} of trial {trial.number}: {reason}")
        self.attribute = attribute


def read_record(trial: FrozenTrial) -> TrialRecord | None:
    """Convert a `FrozenTrial` to a `TrialRecord`. Return None if no search created it.

    Raises InputError when its attributes are damaged.
    """
    attributes = trial.user_attrs
    if CONFIG not in attributes and ROLE not in attributes:
        return None

    def read(attribute: str, kind: Any, default: Any = None) -> Any:
        value = attributes.get(attribute, default)
        problems: list[str] = []
        try:
            value = read_value(kind, value, "the value", problems)
        except InputError as error:
            problems.append(str(error))
        if problems:
            raise _DamagedAttributeError(trial, attribute, "; ".join(problems))
        return value

    for key in attributes:
        if key.startswith(EPOCH) and key not in _epochs(attributes):
            raise _DamagedAttributeError(trial, key, "it is not the epoch after the one before")
    record = TrialRecord(
        number=trial.number,
        config=read(CONFIG, TrialConfig),
        role=read(ROLE, Role),
        state=_state(trial),
        history=[{**read(key, dict[str, float]), **attributes[key]} for key in _epochs(attributes)],
        profile=read(PROFILE, dict[str, float], {}),
        reason=read(REASON, str | None),
        variant=read(VARIANT, str, ""),
        device=read(DEVICE, str, ""),
    )
    for number, metrics in enumerate(record.history, start=1):
        if not {"epoch", "resource"} <= metrics.keys():
            raise _DamagedAttributeError(trial, f"{EPOCH}{number}", "epoch or resource is missing")
    return record


def _check_metrics(trial: FrozenTrial, record: TrialRecord, needed: Collection[str]) -> None:
    """Raise InputError where a completed trial lacks a metric that its search ranks by."""
    if missing := [name for name in needed if not record.has(name)]:
        attribute = f"{EPOCH}{len(record.history)}"
        raise _DamagedAttributeError(trial, attribute, f"{', '.join(missing)} is missing")


def read_attribute(folder: Path, name: str, key: str) -> Any:
    """Return an attribute of the study called `name` in `folder`, or None where it has none, yet."""
    try:
        return open_study(folder, name=name).user_attrs.get(key)
    except KeyError:  # killed between the file and the study in it
        return None


def read_records(folder: Path, name: str, needed: Collection[str] = ()) -> list[TrialRecord]:
    """Return the trials of the study called `name` in `folder`, none where there is no study yet.

    needed: metrics that each completed trial must have. Raises InputError when the file is damaged.
    """
    return [record for _, record in read_trials(folder, name, needed)]


def read_trials(
    folder: Path, name: str, needed: Collection[str] = ()
) -> list[tuple[FrozenTrial, TrialRecord]]:
    """Return the same with what Optuna knows of each."""
    if not (folder / STUDY_FILE).exists():
        return []
    try:
        study, pairs = open_records(folder, name=name, needed=needed)
    except KeyError:  # killed between the file and the study in it
        return []
    try:
        update_expected(study, {record.number: record for _, record in pairs})
    except InputError:
        raise
    except Exception as error:  # of parameters that no space draws
        raise InputError(f"{folder / STUDY_FILE} is damaged ({type(error).__name__}: {error})") from error
    return pairs


def update_expected(
    study: optuna.Study, records: Mapping[int, TrialRecord], model: "GrowingModel | None" = None
) -> None:
    """Put what a model of a study's placements expects of its trials into their records.

    Only where the study is one whose trials are ranked so, and the model predicts their scores.
    model: which has seen some of them.
    """
    if not study.user_attrs.get(EXPECTED):
        return
    from search.placement_posterior import expected_scores  # and scipy, which takes half a second
    from search.placement_sampler import GrowingModel

    fitted = (model or GrowingModel())(study)
    values = {} if fitted is None else expected_scores(study, fitted)
    for number, record in records.items():
        record.expected = values.get(number)


def score_noise(folder: Path, name: str) -> float | None:
    """Return the standard deviation of a trial's score over seeds, as the model of placements estimates it.

    Returns None for a study without such a model.
    """
    study = open_study(folder, name=name)
    if not study.user_attrs.get(EXPECTED):
        return None
    from search.placement_sampler import GrowingModel  # and scipy, which takes half a second

    model = GrowingModel()(study)
    return None if model is None else model.noise


def read_history(attributes: Mapping[str, Any]) -> list[Metrics]:
    """Return the metrics of each epoch among a trial's attributes, the first one first."""
    return [attributes[key] for key in _epochs(attributes)]


def _epochs(attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of the attributes that hold the metrics of each epoch, the first epoch first."""
    count = sum(key.startswith(EPOCH) for key in attributes)
    return [f"{EPOCH}{number}" for number in range(1, count + 1)]


def _state(trial: FrozenTrial) -> State:
    if trial.state is TrialState.COMPLETE:
        return State.COMPLETE
    if trial.state is TrialState.FAIL:
        return State.ERROR
    if trial.state is TrialState.PRUNED:
        violated = any(value > 0 for value in trial.constraints.values())
        return State.INFEASIBLE if violated else State.PRUNED
    return State.RUNNING
