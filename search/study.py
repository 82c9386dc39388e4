"""The Optuna study of a search: one file in its folder, the durable record of what was tried.

Everything else can be made again from it: the sampler's knowledge, the rungs, the runs in MLflow. A trial's
configuration, role, metrics of every epoch, costs and reason are attributes of its Optuna trial.

The file is Optuna's journal, to which each step is appended and flushed. That takes a small part of the
time of its SQLite storage, and works on the network file systems that a cluster's nodes share, which SQLite's
write-ahead log does not.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.config import TrialConfig
from search.journal import Journal, at_once, mend
from search.record import Metrics, Role, State, TrialRecord

if TYPE_CHECKING:
    from search.placement_sampler import GrowingModel

STUDY_FILE = "study.journal"

# User attributes of a trial. WARM_START marks trials of another search that this one learns from; of the
# study itself, it holds the parameters that are tried first.
CONFIG, ROLE, PROFILE, DEVICE, REASON = "config", "role", "profile", "device", "reason"
EPOCH = "epoch:"  # and its number: the metrics of an epoch
PRUNED, WARM_START, ARM = "pruned", "warm_start", "arm"
DECIDED = "decided"  # of the study: how placements were told apart as far as matters, once they are
EXPECTED = "expected"  # of the study: its trials are ranked by a model of placements
PLACEMENT = "placement"  # in words, for those who read the study with Optuna's own tools

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
    """The study called `name` in `folder`, to read. Raises KeyError when the file has none.

    The only study of a file is it, whatever its name: the search may have been renamed since.
    """
    storage = _storage(folder)
    names = [study.study_name for study in storage.get_all_studies()]
    return optuna.load_study(
        study_name=names[0] if len(names) == 1 else name, storage=storage, sampler=_NOBODY
    )


def resume_study(folder: Path, *, name: str) -> optuna.Study:
    """The study called `name` in `folder`, to resume, by the one process that writes it.

    Raises KeyError when the file has none.
    """
    mend(folder / STUDY_FILE)
    return open_study(folder, name=name)


def drawing_study(study: optuna.Study, sampler: BaseSampler) -> optuna.Study:
    """An empty study in memory with the same directions, where `sampler` draws."""
    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study in memory is no news
    try:
        return optuna.create_study(directions=study.directions, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(loud)


def add_trial(study: optuna.Study, trial: FrozenTrial) -> optuna.Trial:
    """Put a trial into a study, whole and in one write, and return it open.

    `Study.add_trial` does not say which one it became, and a study that is asked for its trials reads every
    open one again: with 512 of them, a second for each new one.
    """
    return optuna.Trial(study, study._storage.create_new_trial(study._study_id, template_trial=trial))


def begin_waiting(study: optuna.Study, waiting: FrozenTrial, trial: FrozenTrial) -> optuna.Trial:
    """Give a waiting trial of a study the parameters and attributes of `trial`, and return it running."""
    storage, identifier = study._storage, waiting._trial_id
    with at_once(study):
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
    identifier = study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)
    return optuna.Trial(study, identifier)


def _storage(folder: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(Journal(folder / STUDY_FILE))


def learn(study: optuna.Study, other: optuna.Study, *, name: str, comparable: bool) -> None:
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


def read_record(trial: FrozenTrial) -> TrialRecord | None:
    """What the study knows of a trial; None of one that is none of ours."""
    attributes = trial.user_attrs
    if CONFIG not in attributes:
        return None
    return TrialRecord(
        number=trial.number,
        config=TrialConfig.from_json(attributes[CONFIG]),
        role=Role(attributes[ROLE]),
        state=_state(trial),
        history=read_history(attributes),
        profile=dict(attributes.get(PROFILE, {})),
        reason=attributes.get(REASON),
        arm=attributes.get(ARM, ""),
        device=attributes.get(DEVICE, ""),
    )


def read_decided(folder: Path, name: str) -> str:
    """How the study called `name` in `folder` has told its placements apart; empty where it has not, yet."""
    try:
        return str(open_study(folder, name=name).user_attrs.get(DECIDED, ""))
    except KeyError:  # killed between the file and the study in it
        return ""


def read_records(folder: Path, name: str) -> list[TrialRecord]:
    """The trials of the study called `name` in `folder`, none where there is no study yet."""
    if not (folder / STUDY_FILE).exists():
        return []
    try:
        study = open_study(folder, name=name)
    except KeyError:  # killed between the file and the study in it
        return []
    found = [read_record(trial) for trial in own_trials(study)]
    records = [record for record in found if record is not None]
    expect(study, {record.number: record for record in records})
    return records


def expect(
    study: optuna.Study, records: Mapping[int, TrialRecord], model: "GrowingModel | None" = None
) -> None:
    """Put what a model of a study's placements expects of its trials into their records.

    Only where the study is one whose trials are ranked so. model: which has seen some of them.
    """
    if not study.user_attrs.get(EXPECTED):
        return
    from search.placement_posterior import expected  # and scipy, which takes half a second
    from search.placement_sampler import GrowingModel

    fitted = (model or GrowingModel())(study)
    for number, value in expected(study, fitted).items() if fitted is not None else ():
        if number in records:
            records[number].expected = value


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
    """The metrics of each epoch among a trial's attributes, the first one first."""
    numbers = sorted(int(key.removeprefix(EPOCH)) for key in attributes if key.startswith(EPOCH))
    return [attributes[f"{EPOCH}{number}"] for number in numbers]


def _state(trial: FrozenTrial) -> State:
    if trial.state is TrialState.COMPLETE:
        return State.COMPLETE
    if trial.state is TrialState.FAIL:
        return State.ERROR
    if trial.state is TrialState.PRUNED:
        violated = any(value > 0 for value in trial.constraints.values())
        return State.INFEASIBLE if violated else State.PRUNED
    return State.RUNNING
