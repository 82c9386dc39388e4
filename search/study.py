"""The Optuna study of a search: one file in its folder, which records every trial durably.

Everything else can be rebuilt from it: the sampler's knowledge, the rungs, the runs in MLflow. A trial's
configuration, role, metrics of every epoch, costs and reason are attributes of its Optuna trial.

The file is Optuna's journal, to which each step is appended and flushed. That is much faster than its SQLite
storage. It also works on the network file systems that a cluster's nodes share, where SQLite's write-ahead
log does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.base.errors import InputError
from automl.base.lazy import later
from automl.base.serialise import read_value
from search.config import TrialConfig
from search.journal import StoredTrial, StudyLines, TrialState, damaged_line, truncate_incomplete_line
from search.record import Metrics, Role, State, TrialRecord, chosen_options, model_name, placement_key

if TYPE_CHECKING:
    import optuna
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial

    from search import optuna_internals
    from search.placement_sampler import GrowingModel
else:  # `automl status` reads records without Optuna
    optuna, optuna_internals = later("optuna"), later("search.optuna_internals")

STUDY_FILE = "study.journal"

# User attributes of a trial.
CONFIG, ROLE, PROFILE, DEVICE, REASON = "config", "role", "profile", "device", "reason"
EPOCH = "epoch:"  # followed by the number of the epoch: its metrics
PRUNED, VARIANT = "pruned", "variant"
WARM_START = "warm_start"  # of the study: parameters to try after the baseline
CELLS = "cells"  # of a grid's study: the parameters of its cells by label, in order
EXPECTED = "expected"  # of the study: True if a model of placements ranks its trials
PLACEMENT, MODEL = "placement", "model"  # as text, for users of Optuna's own tools

ENQUEUED = "fixed_params"  # Optuna's system attribute of an enqueued trial

# Constraint of a trial whose training fails (out of memory, divergence).
TRAINABLE = "trainable"


def create_study(
    folder: Path, *, name: str, direction: StudyDirection, metric: str | None = None
) -> optuna.Study:
    """Create a study in `folder`. optuna-dashboard shows the name of the metric."""
    sampler = optuna.samplers.RandomSampler()  # it is never used: nothing is drawn on the study itself
    study = optuna.create_study(
        study_name=name, storage=_storage(folder), direction=direction, sampler=sampler
    )
    if metric is not None:
        study.set_metric_names([metric])
    return study


def open_study(folder: Path, *, name: str) -> optuna.Study:
    """Open the study in `folder` to read it.

    A file has one study. Its name may be an old one, if the search was renamed.

    Raises KeyError if there is no study yet, and InputError if the file is damaged.
    """
    return _open(folder, name)[0]


def _open(folder: Path, name: str) -> tuple[optuna.Study, StudyLines]:
    lines = StudyLines(folder / STUDY_FILE)
    if not lines.check():
        raise KeyError(name)
    try:
        sampler = optuna.samplers.RandomSampler()
        study = optuna.load_study(study_name=lines.name, storage=_storage(folder), sampler=sampler)
        study.get_trials(deepcopy=False)
    except InputError:
        raise
    except Exception as error:  # Optuna raises errors of many types
        raise InputError(f"{folder / STUDY_FILE} is damaged ({type(error).__name__}: {error})") from error
    return study, lines


def resume_study(folder: Path, *, name: str, needed: Collection[str] = ()) -> optuna.Study:
    """Open the study in `folder` to resume it. Only one process may write it.

    Each completed trial must have the metrics `needed`. Raises KeyError if there is no study yet, and
    InputError if the file is damaged.
    """
    study, lines = _open(folder, name)
    _read_records(lines, needed)
    truncate_incomplete_line(folder / STUDY_FILE)
    return study


def _read_records(lines: StudyLines, needed: Collection[str], *, configs: bool = True) -> list[TrialRecord]:
    """Return the trials that this search created. Raises InputError for a damaged line, which it names."""
    records = []
    for trial in lines.trials:
        try:
            record = read_record(trial, configs=configs)
            if record is None:
                continue
            missing = [name for name in needed if not record.has(name)]
            if record.state is State.COMPLETE and missing:
                attribute = f"{EPOCH}{len(record.history)}"
                raise _DamagedAttributeError(trial, attribute, f"{', '.join(missing)} is missing")
        except _DamagedAttributeError as error:
            line = lines.line_of(trial.number, error.attribute)
            raise damaged_line(lines.file, line, str(error)) from error
        records.append(record)
    return records


def add_trial(study: optuna.Study, trial: FrozenTrial) -> optuna.Trial:
    """Add a complete trial to a study in one write, and return it open.

    `Study.add_trial` does not return the trial, and `get_trials` reads every open trial again, which takes a
    second with 512 of them.
    """
    storage, key = optuna_internals.storage_of(study)
    return optuna.Trial(study, storage.create_new_trial(key, template_trial=trial))


def begin_waiting(study: optuna.Study, waiting: FrozenTrial, trial: FrozenTrial) -> optuna.Trial:
    """Start a waiting trial with the parameters and attributes of `trial`. Return it running."""
    storage, identifier = optuna_internals.storage_of(study)[0], optuna_internals.identifier_of(waiting)
    with batch_writes(study):
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            internal = distribution.to_internal_repr(value)
            storage.set_trial_param(identifier, name, internal, distribution)
        for key, value in trial.user_attrs.items():
            storage.set_trial_user_attr(identifier, key, value)
        storage.set_trial_state_values(identifier, optuna.trial.TrialState.RUNNING)
    return optuna.Trial(study, identifier)


def batch_writes(study: optuna.Study) -> AbstractContextManager[None]:
    """Write all changes to a study in the block at once, if it has a `Journal`. Raises OSError."""
    return optuna_internals.batch_writes(study)


def open_trial(study: optuna.Study, number: int) -> optuna.Trial:
    """Return a running trial of a study."""
    storage, key = optuna_internals.storage_of(study)
    return optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(key, number))


def _storage(folder: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna_internals.Journal(folder / STUDY_FILE))


def warm_start_study(study: optuna.Study, other: optuna.Study) -> None:
    """Let a new study try the best five configurations of an earlier one after the baseline."""
    complete = other.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    best = sorted(complete, key=lambda t: t.values[0], reverse=other.direction.name == "MAXIMIZE")[:5]
    study.set_user_attr(WARM_START, [trial.params for trial in best])


def trial_attributes(role: Role, config: TrialConfig, variant: str) -> dict[str, Any]:
    """Return the attributes of a new trial, which `read_record` reads."""
    return {
        ROLE: str(role),
        PLACEMENT: placement_key(config),
        MODEL: model_name(config),
        **chosen_options(config),
        CONFIG: config.to_json(),
        **({VARIANT: variant} if variant else {}),
    }


class _DamagedAttributeError(InputError):
    """Error of a trial's attribute that no search writes."""

    def __init__(self, trial: FrozenTrial | StoredTrial, attribute: str, reason: object) -> None:
        super().__init__(f"{attribute} of trial {trial.number}: {reason}")
        self.attribute = attribute


def read_record(trial: FrozenTrial | StoredTrial, *, configs: bool = True) -> TrialRecord | None:
    """Convert a trial of a search, or return None. Raises InputError if it is damaged."""
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
            if attribute == CONFIG:  # its keys and the names of this program's tables differ between versions
                problems.append("if another version of automl wrote it, read it with that version")
            raise _DamagedAttributeError(trial, attribute, "; ".join(problems))
        return value

    for key in attributes:
        if key.startswith(EPOCH) and key not in _epochs(attributes):
            raise _DamagedAttributeError(trial, key, "the epoch before it is missing")
    record = TrialRecord(
        number=trial.number,
        config=read(CONFIG, TrialConfig) if configs else None,  # type: ignore[arg-type]
        role=read(ROLE, Role),
        state=_state(trial),
        history=[{**read(key, dict[str, float]), **attributes[key]} for key in _epochs(attributes)],
        profile=read(PROFILE, dict[str, float], {}),
        params=dict(trial.params),
        reason=read(REASON, str | None),
        variant=read(VARIANT, str, ""),
        device=read(DEVICE, str, ""),
    )
    for number, metrics in enumerate(record.history, start=1):
        if not {"epoch", "resource"} <= metrics.keys():
            raise _DamagedAttributeError(trial, f"{EPOCH}{number}", "epoch or resource is missing")
    return record


def read_attribute(folder: Path, name: str, key: str) -> Any:
    """Return an attribute of the study in `folder`, or None if it does not exist yet."""
    lines = StudyLines(folder / STUDY_FILE)
    if lines.file.exists():
        lines.check()  # False if the search was killed between the file and the study in it
    return lines.user_attrs.get(key)


def read_records(
    folder: Path, name: str, needed: Collection[str] = (), *, configs: bool = True
) -> list[TrialRecord]:
    """Return the trials of the study in `folder`, or an empty list if there is no study yet.

    Each completed trial must have the metrics `needed`. Without `configs`, that of records is
    None, because to check a configuration needs torch. Raises InputError if the file is damaged.
    """
    lines = StudyLines(folder / STUDY_FILE)
    if not lines.file.exists() or not lines.check():  # killed between the file and the study in it
        return []
    records = _read_records(lines, needed, configs=configs)
    if not lines.user_attrs.get(EXPECTED):
        return records
    try:
        update_expected(open_study(folder, name=name), {record.number: record for record in records})
    except InputError:
        raise
    except Exception as error:  # raised for parameters that no space draws
        raise InputError(f"{folder / STUDY_FILE} is damaged ({type(error).__name__}: {error})") from error
    return records


def update_expected(
    study: optuna.Study, records: Mapping[int, TrialRecord], model: GrowingModel | None = None
) -> None:
    """Set `expected` of the records to the predictions of a model of the study's placements.

    Does nothing if the study is not ranked by such a model. `expected` is None if the model does not predict
    the scores. `model` may have been fitted to some of the trials before.
    """
    if not study.user_attrs.get(EXPECTED):
        return
    from search.placement_sampler import GrowingModel  # and scipy, which takes half a second

    values = (model or GrowingModel()).expected_scores(study)
    for number, record in records.items():
        record.expected = values.get(number)


def score_noise(folder: Path, name: str) -> float | None:
    """Return the standard deviation of a score over seeds by the model of placements, None without one."""
    study = open_study(folder, name=name)
    if not study.user_attrs.get(EXPECTED):
        return None
    from search.placement_sampler import GrowingModel  # and scipy, which takes half a second

    model = GrowingModel()(study)
    return None if model is None else model.noise


def read_history(attributes: Mapping[str, Any]) -> list[Metrics]:
    """Return the metrics of each epoch from a trial's attributes, in order."""
    return [attributes[key] for key in _epochs(attributes)]


def _epochs(attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of the attributes with the metrics of each epoch, in order."""
    count = sum(key.startswith(EPOCH) for key in attributes)
    return [f"{EPOCH}{number}" for number in range(1, count + 1)]


def _state(trial: FrozenTrial | StoredTrial) -> State:
    if trial.state == TrialState.COMPLETE:
        return State.COMPLETE
    if trial.state == TrialState.FAIL:
        return State.ERROR
    if trial.state == TrialState.PRUNED:
        violated = any(value > 0 for value in trial.constraints.values())
        return State.INFEASIBLE if violated else State.PRUNED
    return State.RUNNING
