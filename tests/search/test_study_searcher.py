"""What the sampler is told of each way a trial can end."""

import optuna
import pytest
from optuna.trial import TrialState

from search.config import TrialConfig
from search.record import State
from search.searcher import FINISHED, INFEASIBLE, StudySearcher
from search.spaces import SPACES
from search.study import FILE, create_study

SPACE = SPACES["digits"]


@pytest.fixture
def searcher(tmp_path):
    study = create_study(tmp_path, name="a-search", direction=optuna.study.StudyDirection.MAXIMIZE, seed=0)
    study.enqueue_trial(dict(SPACE.baseline))
    return StudySearcher(
        study,
        SPACE,
        metric="accuracy",
        time_attr="epoch",
        adjust=lambda config: config.change(seed=7),
    )


def epoch(number, accuracy, **more):
    return {"epoch": number, "accuracy": accuracy, **more}


def told(searcher, number):
    return searcher.study.get_trials(deepcopy=False)[number]


def test_a_suggestion_is_the_adjusted_configuration_as_json(searcher):
    suggestion = searcher.suggest("a")
    config = TrialConfig.from_json(suggestion["trial"])
    assert suggestion["number"] == 0
    assert config.seed == 7
    assert config.model.placement == {}, "trial 0 is the plain backbone"
    assert told(searcher, 0).user_attrs["config"] == config.to_json()


def test_a_finished_trial_is_complete_with_its_last_value(searcher):
    searcher.suggest("a")
    searcher.on_trial_result("a", epoch(1, 0.9))
    searcher.on_trial_complete("a", epoch(2, 0.5, **{FINISHED: True}))
    trial = told(searcher, 0)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.5), "the last epoch, not the best"
    assert trial.intermediate_values == {1: 0.9, 2: 0.5}
    assert searcher.records["a"].state is State.COMPLETE


def test_a_cut_trial_is_pruned_with_its_intermediate_values(searcher):
    searcher.suggest("a")
    searcher.on_trial_result("a", epoch(1, 0.3))
    searcher.on_trial_complete("a", epoch(2, 0.4, **{FINISHED: False}))
    trial = told(searcher, 0)
    assert trial.state is TrialState.PRUNED
    assert trial.intermediate_values == {1: 0.3, 2: 0.4}
    assert searcher.records["a"].state is State.PRUNED


def test_what_cannot_be_trained_violates_a_constraint(searcher):
    for name in ("a", "b"):
        searcher.suggest(name)
    searcher.on_trial_complete("a", {INFEASIBLE: "out of memory"})
    searcher.on_trial_complete("b", epoch(1, 0.4, **{FINISHED: True}))
    assert told(searcher, 0).state is TrialState.PRUNED
    assert told(searcher, 0).constraints == {"trainable": 1.0}
    assert told(searcher, 1).constraints == {"trainable": 0.0}
    record = searcher.records["a"]
    assert (record.state, record.reason) == (State.INFEASIBLE, "out of memory")


def test_a_crash_is_a_failure(searcher):
    searcher.suggest("a")
    searcher.on_trial_result("a", epoch(1, 0.3))
    searcher.on_trial_complete("a", error=True)
    assert told(searcher, 0).state is TrialState.FAIL
    assert searcher.records["a"].state is State.ERROR


def test_the_sampler_goes_on_after_every_kind_of_end(searcher):
    ends = [
        epoch(2, 0.5, **{FINISHED: True}),
        epoch(1, 0.2, **{FINISHED: False}),
        {INFEASIBLE: "out of memory"},
        None,
    ]
    for i in range(24):
        searcher.suggest(str(i))
        searcher.on_trial_complete(str(i), ends[i % 4], error=ends[i % 4] is None)
    states = [trial.state for trial in searcher.study.trials]
    assert len(states) == 24
    assert TrialState.RUNNING not in states


def test_the_study_is_one_file_that_optuna_opens(searcher, tmp_path):
    searcher.suggest("a")
    searcher.on_trial_complete("a", epoch(1, 0.4, **{FINISHED: True}))
    study = optuna.load_study(study_name="a-search", storage=f"sqlite:///{tmp_path / FILE}")
    assert study.best_value == 0.4
