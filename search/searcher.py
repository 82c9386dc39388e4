"""Between Ray Tune and Optuna: asks the study for configurations and tells it what became of them.

Ray's own OptunaSearch tells a trial that ASHA cut as complete, with the score it had then, and the
sampler then compares epoch 3 with epoch 50. Here a cut trial is PRUNED with its intermediate values,
one that could not be trained violates a constraint, and a crash is FAIL.
"""

from collections.abc import Callable, Mapping
from typing import Any

import optuna
from ray import tune

from search.config import TrialConfig
from search.record import State, TrialRecord
from search.spaces import Space

FINISHED = "finished"  # in a result: the trial reached the end of its budget
INFEASIBLE = "infeasible"  # in a result: why the configuration cannot be trained


class StudySearcher(tune.search.Searcher):
    """Tune's searcher over an Optuna study.

    adjust: applied to every configuration the space draws, for what the command line overrides.
    time_attr: the metric that counts a trial's progress.
    extra: goes to every trial beside its configuration.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        *,
        metric: str,
        time_attr: str,
        adjust: Callable[[TrialConfig], TrialConfig],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        mode = "max" if study.direction is optuna.study.StudyDirection.MAXIMIZE else "min"
        super().__init__(metric=metric, mode=mode)
        self.study, self.space, self.adjust, self.time_attr = study, space, adjust, time_attr
        self.extra = dict(extra or {})
        self.records: dict[str, TrialRecord] = {}
        self._asked: dict[str, optuna.Trial] = {}
        self._last: dict[str, int] = {}  # the last step that was reported of each trial

    def suggest(self, trial_id: str) -> dict[str, Any]:
        trial = self.study.ask()
        config = self.adjust(self.space(trial))
        trial.set_user_attr("config", config.to_json())
        self._asked[trial_id] = trial
        self.records[trial_id] = TrialRecord(trial.number, config)
        return {"number": trial.number, "trial": config.to_json(), **self.extra}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        trial = self._asked.get(trial_id)
        if trial is not None and self.metric in result:
            step = int(result[self.time_attr])
            if step > self._last.get(trial_id, 0):  # Tune passes the last result of some trials twice
                self._last[trial_id] = step
                trial.report(result[self.metric], step=step)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.on_trial_result(trial_id, result or {})  # Tune passes a trial's last result here alone
        trial = self._asked.pop(trial_id, None)
        if trial is None:
            return
        record = self.records[trial_id]
        record.state, record.reason = _outcome(result, error)
        if record.state is State.ERROR:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        trial.set_constraint("trainable", 1.0 if record.state is State.INFEASIBLE else 0.0)
        if record.state is State.COMPLETE:
            assert result is not None
            self.study.tell(trial, result[self.metric])
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)

    # The study is on disk; Tune, which pickles what it is given, gets no second copy of it.
    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


def _outcome(result: dict[str, Any] | None, error: bool) -> tuple[State, str | None]:
    if error or not result:
        return State.ERROR, None
    if result.get(INFEASIBLE):
        return State.INFEASIBLE, result[INFEASIBLE]
    return (State.COMPLETE if result.get(FINISHED) else State.PRUNED), None
