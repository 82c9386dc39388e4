"""Reading of a search for a report: its choice, its state and its faults."""

import webbrowser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ray
from optuna.trial import FrozenTrial

from automl.base.errors import InputError
from automl.report.forest import forest
from automl.report.read import answered, read_search
from automl.report.run_report import run_report
from automl.storage.folder import old_folder
from automl.storage.trial_files import Answers
from automl.tasks.code_retrieval.config import MRR
from search.metric import Metric
from search.record import State
from search.study import STUDY_FILE, read_history
from tests.helpers.report_cases import frozen, made_up, plan_of, save_search, save_verdict, verdict_of

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def few() -> list[FrozenTrial]:
    return made_up(20, running=2)


def test_a_search_is_read_as_its_study_has_it(tmp_path: Path, few: list[FrozenTrial]) -> None:
    save_search(tmp_path, few)
    search = read_search("made-up", str(tmp_path))
    assert [trial.params for trial in search.trials] == [trial.params for trial in few]
    states = [trial.user_attrs["config"] for trial in few]
    assert [trial.config.to_json() for trial in search.trials] == states
    assert search.unfinished == search.counts[State.RUNNING] == 2
    assert {State.COMPLETE, State.PRUNED, State.INFEASIBLE, State.ERROR} <= set(search.counts)
    assert search.milestones == [2.0]
    assert all(trial.state is State.COMPLETE for trial in search.done)
    assert search.best.history[-1]["accuracy"] == max(
        read_history(trial.user_attrs)[-1]["accuracy"] for trial in few if trial.values
    )


def test_less_can_be_better(tmp_path: Path) -> None:
    plan = plan_of(metric=Metric(name="error", maximize=False), objectives=["error"])
    trials = made_up(20, plan=plan)
    save_search(tmp_path, trials, plan=plan)
    search = read_search("made-up", str(tmp_path))
    assert search.best is not None
    assert search.score(search.best) == min(trial.values[0] for trial in trials if trial.values)
    assert (search.plan.metric.sign, search.plan.metric.scale) == (-1, 1)


def test_confirmations_are_read_in_their_order(tmp_path: Path, few: list[FrozenTrial]) -> None:
    folder = save_search(tmp_path, few)
    for number, verdict in ((10, "worse"), (2, "better"), (1, "undecided")):
        save_verdict(folder, verdict_of(verdict), number)
    verdicts = read_search("made-up", str(tmp_path)).verdicts
    assert [(v.confirmation, v.verdict) for v in verdicts] == [(1, "undecided"), (2, "better"), (10, "worse")]
    assert verdicts[0].comparisons[0].interval == pytest.approx((-0.1, 0.7))


def test_a_search_that_is_being_written_is_read(tmp_path: Path, few: list[FrozenTrial]) -> None:
    folder = save_search(tmp_path, few)
    with old_folder("made-up", str(tmp_path)):  # as the process that runs it has it
        with open(folder / STUDY_FILE, "ab") as study:
            study.write(b'{"op_code":4,"worker_')  # half of a write
        assert len(read_search("made-up", str(tmp_path)).trials) == len(few)


@pytest.fixture
def storage_folder(tmp_path: Path, few: list[FrozenTrial], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with searches of which some have nothing to report."""
    monkeypatch.chdir(tmp_path)
    save_search(tmp_path / "searches", few[:3], name="good")
    save_search(tmp_path / "searches", [], name="empty")
    (save_search(tmp_path / "searches", [], name="bare") / STUDY_FILE).unlink()
    (save_search(tmp_path / "searches", [], name="hollow") / STUDY_FILE).write_bytes(b"")
    (save_search(tmp_path / "searches", few[:3], name="damaged") / "search.json").write_text("{")
    save_verdict(save_search(tmp_path / "searches", few[:3], name="torn"), {})
    (tmp_path / "file").write_text("text")
    (tmp_path / "none").mkdir()
    return tmp_path


NO_TRIALS = ["has no trials yet", "--resume"]


@pytest.mark.usefixtures("storage_folder")
@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--search", "empty"), ["search 'empty'", *NO_TRIALS]),
        (("--search", "bare"), ["search 'bare'", *NO_TRIALS]),
        (("--search", "damaged"), ["search.json is corrupt"]),
        (("--search", "torn"), ["confirm/verdict.json is corrupt", "automl confirm"]),
        (("--search", "good", "--out", "file"), ["--out file cannot be written", "name a folder"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_is_reported_once(arguments: tuple[str, ...], fragments: list[str], cli: Cli) -> None:
    code, out, err = cli("report", *arguments)
    assert (code, out) == (2, "")
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    for fragment in fragments:
        assert fragment in err
    assert "Traceback" not in err


def test_no_study_is_made_by_looking_for_one(storage_folder: Path) -> None:
    with pytest.raises(InputError):
        run_report("bare")
    assert not (storage_folder / "searches" / "bare" / STUDY_FILE).exists()


def test_the_command_says_where_the_report_is(
    storage_folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    code, out, err = cli("report", "--search", "good", "--out", "pages/one", "--open")
    assert code == 0
    assert "report    pages/one/index.html (" in out
    assert "automl confirm --search good" in out, "there is no verdict yet"
    assert opened == [(storage_folder / "pages/one/index.html").as_uri()]
    assert (storage_folder / "pages" / "one" / "index.html").is_file()
    assert err.count("warning:") == 1  # this search was never in MLflow
    assert not ray.is_initialized()


def test_trials_that_differ_by_the_seed_alone_count_together(tmp_path: Path) -> None:
    trials = made_up(40)
    save_search(tmp_path / "one", trials)
    best = read_search("made-up", str(tmp_path / "one")).best
    lower = [{**metrics, "accuracy": metrics["accuracy"] - 0.01} for metrics in best.history]
    again = frozen({}, {}, best.config.change(seed=77), plan_of(), best.state, lower)
    save_search(tmp_path / "two", [*trials, again])
    search = read_search("made-up", str(tmp_path / "two"))
    assert search.best.number == best.number
    for trial in (search.best, search.trials[-1]):
        Answers(values=np.ones(3)).save(search.metadata.location / trial.folder)
    (group,) = answered(search).of
    assert len(group.trainings) == 2


def test_the_verdict_of_mrr_is_not_rounded_away(tmp_path: Path) -> None:
    plan = plan_of(metric=MRR, objectives=["mrr"])
    folder = save_search(tmp_path, made_up(8, plan=plan), plan=plan)
    value = verdict_of(metric="mrr", unit="mrr", margin=0.01)
    for comparison in value["comparisons"]:
        comparison["difference"], comparison["interval"] = 0.0123, [0.0021, 0.0225]
    save_verdict(folder, value)
    search = read_search("made-up", str(tmp_path))
    assert "+0.012 mrr, +0.002 to +0.022" in forest(search.verdicts[0], search.plan.metric).says
