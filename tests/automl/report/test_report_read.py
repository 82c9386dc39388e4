"""Reading of a search for a report: its choice, its state and its faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

from automl.report.curves import costs, pareto
from automl.report.grid_table import grid, read_grid
from automl.report.module_effects import parts
from automl.report.per_class import per_class
from automl.report.read import SearchData, answered, read_search
from automl.report.run_report import write_page
from automl.storage.folder import old_folder
from automl.storage.trial_files import Answers
from automl.tasks.detection import BOX_AP
from search.config import TrialConfig
from search.grid import grid_cells
from search.metric import Metric
from search.record import State
from search.space import load_space
from search.study import CELLS, STUDY_FILE, read_history, resume_study
from tests.helpers.report_cases import frozen, made_up, plan_of, save_search, save_verdict, verdict_of

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def few() -> list[FrozenTrial]:
    return made_up(20, running=2)


def test_searches_are_read_whatever_their_state(tmp_path: Path, few: list[FrozenTrial]) -> None:
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
    folder = tmp_path / "made-up"
    for number, verdict in ((10, "worse"), (2, "better"), (1, "undecided")):
        save_verdict(folder, verdict_of(verdict), number)
    verdicts = read_search("made-up", str(tmp_path)).verdicts
    assert [(v.confirmation, v.final) for v in verdicts] == [(1, "undecided"), (2, "better"), (10, "worse")]
    assert verdicts[0].comparisons[0].difference.bounds == pytest.approx((-0.1, 0.7))
    with old_folder("made-up", str(tmp_path)):  # as the process that runs it has it
        with open(folder / STUDY_FILE, "ab") as study:
            study.write(b'{"op_code":4,"worker_')  # half of a write
        assert len(read_search("made-up", str(tmp_path)).trials) == len(few)


def test_scores_may_be_small_or_better_if_less(tmp_path: Path) -> None:
    plan = plan_of(metric=Metric(name="error", maximize=False))
    trials = made_up(20, plan=plan)
    save_search(tmp_path, trials, plan=plan)
    search = read_search("made-up", str(tmp_path))
    assert search.best is not None
    assert search.score(search.best) == min(trial.values[0] for trial in trials if trial.values)
    assert (search.plan.metric.sign, search.plan.metric.scale) == (-1, 1)
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


@pytest.fixture
def storage_folder(tmp_path: Path, few: list[FrozenTrial], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with searches of which some have nothing to report."""
    monkeypatch.chdir(tmp_path)
    (save_search(tmp_path / "searches", [], name="bare") / STUDY_FILE).unlink()
    (save_search(tmp_path / "searches", few[:3], name="damaged") / "search.json").write_text("{")
    torn = save_search(tmp_path / "searches", few[:3], name="torn")
    save_verdict(torn, verdict_of()).write_text("{}")
    return tmp_path


@pytest.mark.usefixtures("storage_folder")
@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--search", "bare"), ["search 'bare'", "has no trials yet", "--resume"]),
        (("--search", "damaged"), ["search.json is corrupt"]),
        (("--search", "torn"), ["confirm/verdict.json is corrupt", "automl confirm"]),
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
    assert not Path("searches", "bare", STUDY_FILE).exists(), "no study is made by looking for one"


PLAN = plan_of(metric=BOX_AP)


OVER = "memory 5.1GB exceeds the limit of 4GB"


NAN = "the training loss became nan in epoch 1, step 2"


def saved(
    folder: Path,
    space: str,
    trials_of_cells: list[tuple[dict[str, Any], int, State, list[float], str | None]],
) -> SearchData:
    """A grid's search with these trials: parameters, seed, state, box AP by epoch and reason."""
    trials = []
    for params, seed, state, scores, reason in trials_of_cells:
        trial = optuna.trial.FixedTrial(params)
        config = load_space(space).draw(trial).change(seed=seed)  # type: ignore[arg-type]
        history = [
            {"epoch": i, "resource": i, "box_ap": score, "mask_ap": score / 2}
            for i, score in enumerate(scores, start=1)
        ]
        label = ", ".join(f"{key}={value}" for key, value in params.items())
        kinds = trial.distributions
        trials.append(
            frozen(params, kinds, config, PLAN, state, history, {"memory": 2e9}, reason, variant=label)
        )
    saved_folder = save_search(folder, trials, plan=PLAN, space=space, sampler="grid")
    cells = {cell.label: dict(cell.params) for cell in grid_cells(load_space(space))}
    resume_study(saved_folder, name="made-up").set_user_attr(CELLS, cells)
    return read_search("made-up", str(folder))


def test_every_cell_has_its_row_in_the_order_of_the_space(tmp_path: Path) -> None:
    complete = State.COMPLETE
    search = saved(
        tmp_path,
        "da-conventional",
        [
            ({"attention": "decomposed", "modules": 7}, 0, complete, [0.2, 0.42, 0.40], None),
            ({"attention": "decomposed", "modules": 7}, 1, complete, [0.2, 0.38, 0.44], None),
            ({"attention": "decomposed", "modules": 1}, 0, complete, [0.41], None),
            ({"attention": "decomposed", "modules": 1}, 1, State.INFEASIBLE, [], NAN),
            ({"attention": "conventional", "modules": 5}, 0, State.INFEASIBLE, [], OVER),
            ({"attention": "conventional", "modules": 7}, 0, State.ERROR, [], "RuntimeError: no"),
        ],
    )
    (section,) = grid(search)
    assert write_page(search, None, [section])
    table = section.plots[0].table
    rows = {(row[0], row[1]): list(row[2:]) for row in table.rows}
    kinds = [*["decomposed"] * 3, *["conventional"] * 3]
    assert [row[:2] for row in table.rows] == [
        [kind, count] for kind, count in zip(kinds, ["1", "5", "7", "1", "5", "7"], strict=True)
    ]
    assert rows["decomposed", "7"][:2] == [2, "trained"]
    assert rows["decomposed", "7"][2:6] == pytest.approx([42, 2.828427, 43, 1.414214])
    assert rows["decomposed", "7"][6:8] == pytest.approx([21, 1.414214])
    assert rows["decomposed", "1"][:2] == [1, "1 trained, 1 diverged"]
    assert rows["decomposed", "1"][3] is None, "one run has no deviation"
    assert rows["conventional", "5"][:3] == [0, "over a limit (memory)", "over a limit (memory)"]
    assert rows["conventional", "7"][:3] == [0, "error", "error"]
    assert [cell.outcome for cell in read_grid(search)].count("not started") == 2
    assert "not started" in section.plots[0].says


@pytest.fixture(scope="module")
def trials() -> list[FrozenTrial]:
    return made_up(120)


@pytest.fixture(scope="module")
def search(trials: list[FrozenTrial], tmp_path_factory: pytest.TempPathFactory) -> SearchData:
    storage = tmp_path_factory.mktemp("storage")
    save_search(storage, trials)
    return read_search("made-up", str(storage))


def make_search(storage: Path, trials: list[FrozenTrial], **plan: Any) -> SearchData:
    save_search(storage, trials, plan=plan_of(**plan))
    return read_search("made-up", str(storage))


def test_the_front_is_what_nobody_beats(tmp_path: Path) -> None:
    trials = made_up(40)
    search = make_search(tmp_path, trials)
    done = {
        i: (read_history(t.user_attrs)[-1]["accuracy"], t.user_attrs["profile"]["latency"])
        for i, t in enumerate(trials)
        if t.state is TrialState.COMPLETE
    }
    expected = {
        i
        for i, (score, cost) in done.items()
        if not any(
            s >= score and c <= cost and (s > score or cost - c > 0.02 * cost) for s, c in done.values()
        )
    }
    front = pareto(search, "latency")
    assert {trial.number for trial in front} == expected
    costs = [trial.profile["latency"] for trial in front]
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("cost", "other", "numbers"),
    [("latency", 10.1, [0, 1]), ("latency", 10.3, [0]), ("macs", 10.1, [0]), ("latency", 10.0, [0, 1])],
)
def test_noise_pushes_nobody_off_the_front(
    cost: str, other: float, numbers: list[int], tmp_path: Path
) -> None:
    for score, expected in ((0.9, numbers), (0.89, [0])):
        trials = [
            frozen(
                {},
                {},
                TrialConfig(),
                plan_of(),
                State.COMPLETE,
                [{"epoch": 6, "resource": 6.0, "accuracy": s}],
                {cost: c},
            )
            for s, c in ((0.9, 10.0), (score, other))
        ]
        search = make_search(tmp_path / f"{score}", trials)
        assert [trial.number for trial in pareto(search, cost)] == expected


def test_models_at_chance_are_on_no_front(tmp_path: Path) -> None:
    profile = [{"latency": 1.0}, {"latency": 2.0}, {"latency": 2.03}]
    histories = [[{"epoch": 6, "resource": 6.0, "accuracy": score}] for score in (0.1, 0.5, 0.5)]
    trials = [
        frozen({}, {}, TrialConfig(), plan_of(), State.COMPLETE, history, facts)
        for history, facts in zip(histories, profile, strict=True)
    ]
    search = make_search(tmp_path / "one", trials, guessing=0.15)
    assert [trial.number for trial in pareto(search, "latency")] == [1, 2], "and 1.5 % is noise"
    none = make_search(tmp_path / "other", trials, guessing=0.6)
    assert pareto(none, "latency") == []
    assert "no trial beats chance" in costs(none).says


def test_results_by_class_are_those_of_the_best_and_the_baseline(
    trials: list[FrozenTrial], tmp_path: Path
) -> None:
    search = make_search(tmp_path, trials)
    assert per_class(search) == [], "no trial has left its answers"
    generator = np.random.default_rng(0)
    assert search.baseline is not None
    kept = {}
    for trial in (search.best, search.baseline):
        true = generator.integers(0, 3, 90)
        answered = np.where(generator.random(90) < 0.7, true, generator.integers(0, 3, 90))
        labels = ["cat", "dog", "eel", "yak"]
        answers = Answers(
            labels=labels, true=true, answered=answered, values=(true == answered).astype(float)
        )
        answers.save(search.metadata.location / trial.folder)
        kept[trial.number] = true, answered
    (section,) = per_class(search)
    assert "on the validation split" in section.lead
    classes, confusions = section.plots
    rows = {row[0]: row[1:] for row in classes.table.rows}
    assert rows.keys() == {"cat", "dog", "eel"}, "what no input is of has no result"
    assert "no inputs of yak" in classes.note
    true, answered = kept[search.best.number]
    for i, values in enumerate(zip(*precision_recall_fscore_support(true, answered), strict=True)):
        precision, recall, f1, count = values
        (baseline,) = f1_score(*kept[search.baseline.number], labels=[i], average=None)
        assert rows[labels[i]] == pytest.approx([count, recall, precision, f1, baseline])
    matrix = confusion_matrix(true, answered)
    np.fill_diagonal(matrix, 0)
    assert confusions.table.rows[0][2] == matrix.max()
    assert classes.figure is not None
    assert confusions.figure is not None


def test_parts_are_what_was_planted_in_words(search: SearchData) -> None:
    """Points of `report_cases.EFFECTS` for each module, under whatever the hyperparameters do."""
    plot = parts(search)
    assert plot.figure is not None
    rows = {row[0]: row[1:] for row in plot.table.rows}
    assert rows["ssa"][0] > rows["decomposed"][0]  # type: ignore[operator]
    assert {"each module", "sagan"} < rows.keys()
    assert any(str(name).startswith("stage1.") for name in rows)
    assert any(" at stage" in str(name) for name in rows)
    assert all(low < mean < high for mean, low, high, _ in rows.values())  # type: ignore[operator]
    assert "Highest expectation: " in plot.says
    assert "0.5 points" in plot.says


def test_where_scores_are_noise_one_seed_ranks_nothing(tmp_path: Path) -> None:
    trials, chance = made_up(60, pruning=False), np.random.default_rng(0)
    for trial in trials:
        if trial.values:
            trial.values = [0.9 + 0.01 * float(chance.standard_normal())]
    (warning,) = parts(make_search(tmp_path, trials)).warnings
    assert "One seed cannot rank these placements" in warning


def test_worst_ten_of_many_classes_are_shown(trials: list[FrozenTrial], tmp_path: Path) -> None:
    search = make_search(tmp_path, trials)
    true = np.repeat(np.arange(30), 20)
    answered = np.where(np.arange(600) % 20 < true // 2, (true + 1) % 30, true)  # the later, the worse
    names = [f"class {i}" for i in range(30)]
    answers = Answers(labels=names, true=true, answered=answered, values=np.zeros(600))
    answers.save(search.metadata.location / search.best.folder)
    (section,) = per_class(search)
    classes, confusions = section.plots
    assert len(classes.table.rows) == 10
    f1 = f1_score(true, answered, average=None)
    assert [row[4] for row in classes.table.rows] == pytest.approx(sorted(f1)[:10])
    assert confusions.figure is None
    assert len(confusions.table.rows) == 10
