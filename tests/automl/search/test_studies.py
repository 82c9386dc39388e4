"""Studies: grids with published tables, one row for each cell."""

import csv
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

import automl.search.studies as run_study_module
from automl.base.errors import InputError
from automl.base.escape import markdown
from automl.cli.main import app
from automl.config.nouns import Question
from automl.config.settings import ParsedSettings, Settings
from automl.report.grid_table import FILES, write_grid
from automl.report.read import SearchData, read_search
from automl.report.run_report import write_page
from automl.search.prepare import may_fit_epochs
from automl.search.run_search import load
from automl.search.studies import compare, list_studies, run_study, scale_line, write_tables
from automl.task import task_of
from automl.task.published_study import UNPRINTED
from automl.tasks.detection import BOX_AP
from automl.tasks.image_classification.equal_time import best_rate, comparison_tables, sweep_table
from automl.tasks.image_classification.study import RATES
from automl.tracking.run_spec import SCALE, VERSION, search_run_spec
from search.class_metrics import ACCURACY
from search.grid import SMALL, Cell, grid_cells
from search.record import State
from search.space import draw_randomly, load_space
from search.study import CELLS, resume_study
from tests.helpers import others_slow
from tests.helpers.report_cases import frozen, plan_of, save_search

GRIDS = [name for name, study in list_studies().items() if study.rows]
LARGE = ("da-backbones", "da-modules", "da-imagenet", "reality-check")  # whose models take seconds
NAN = "the training loss became nan in epoch 1, step 2"


OVER = "memory 61MB exceeds the limit of 55MB"


Runs = dict[tuple[int, int], list[dict[str, float]] | str]  # by cell and seed: epochs, or why there are none


@cache
def cells_of(space: str) -> list[Cell]:
    """Return the cells of a grid, whose models take seconds."""
    return grid_cells(load_space(space))


def saved(storage: Path, space: str, runs: Runs, metric: Any = BOX_AP) -> SearchData:
    cells = cells_of(space)
    plan = plan_of(metric=metric)
    trials = []
    for (index, seed), scores_of_run in runs.items():
        cell, epochs = cells[index], [] if isinstance(scores_of_run, str) else scores_of_run
        history = [{"epoch": i, "resource": i, "steps": 10 * i, **epoch} for i, epoch in enumerate(epochs, 1)]
        state = State.INFEASIBLE if isinstance(scores_of_run, str) else State.COMPLETE
        reason = scores_of_run if isinstance(scores_of_run, str) else None
        trials.append(
            frozen(
                cell.params,
                cell.distributions,
                cell.config.change(seed=seed),
                plan,
                state,
                history,
                {"memory": 5e7},
                reason,
                variant=cell.label,
            )
        )
    folder = save_search(storage, trials, name=space, plan=plan, space=space, sampler="grid")
    resume_study(folder, name=space).set_user_attr(CELLS, {c.label: dict(c.params) for c in cells})
    return read_search(space, str(storage))


@pytest.mark.parametrize("name", others_slow(GRIDS, *(name for name in GRIDS if name not in LARGE)))
def test_each_cell_has_a_published_row(name: str) -> None:
    for form in ("", SMALL):
        assert len(cells_of(f"{name}{form}")) == len(list_studies()[name].rows)
    known = {
        key.removesuffix(" max").removesuffix(" gain")
        for row in list_studies()[name].rows
        for key in row.figures
    }
    assert known <= set(list_studies()[name].columns)
    counts = [len(cell.config.model.placement) for cell in cells_of(name)]
    if name == "da-backbones":
        assert counts == [7 if row.plain else 0 for row in list_studies()[name].rows]


def test_published_improvements_are_sums_of_published_figures() -> None:
    improved = [(study, row) for study in list_studies().values() for row in study.rows if row.plain]
    assert len(improved) >= 6
    for study, row in improved:
        plain = next(other for other in study.rows if other.name == row.plain)
        for metric in study.columns:
            gain = float(row.figures[metric]) - float(plain.figures[metric])
            assert float(row.figures[f"{metric} gain"]) == pytest.approx(gain)
    seven = list_studies()["da-modules"].rows[2].figures
    resnet50 = next(row for _, row in improved if row.name == "ResNet-50 + DA").figures
    assert {metric: resnet50[metric] for metric in seven} == dict(seven)


def test_rows_have_gains_runs_and_maxima_beside_the_published(tmp_path: Path) -> None:
    def top1(*scores: float) -> list[dict[str, float]]:
        return [{"accuracy": score} for score in scores]

    runs: Runs = {(0, 0): top1(0.9, 0.7), (0, 1): top1(0.8), (1, 0): top1(0.8), (2, 0): NAN}
    table = compare(list_studies()["da-imagenet"], saved(tmp_path, "da-imagenet-small", runs, ACCURACY)).table
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["top-1 accuracy, %, gain, published"] for row in rows] == ["0.000", "0.880", "1.260"]
    assert [row["top-1 accuracy, %, gain"] for row in rows] == [0, pytest.approx(5), None]
    search = saved(tmp_path, "ssa-lr-sweep-small", {(0, 0): [{"accuracy": 0.5}]}, ACCURACY)
    table = compare(list_studies()["ssa-lr-sweep"], search).table
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["runs, published"] for row in rows] == ["10", "30", "10", "20", "20", "20", "20"]
    assert rows[3]["accuracy, %, max, published"] == "85.0"
    assert "accuracy, %, published" not in table.columns


def test_failed_trainings_are_listed_beside_the_published_figure(tmp_path: Path) -> None:
    def ap(box: float) -> list[dict[str, float]]:
        return [{"box_ap": box + 0.01, "mask_ap": box / 2}, {"box_ap": box, "mask_ap": box / 2}]

    search = saved(
        tmp_path,
        "da-conventional-small",
        {(0, 0): ap(0.4), (0, 1): ap(0.42), (1, 0): ap(0.5), (2, 0): ap(0.5), (3, 0): ap(0.3)}
        | {(4, 0): OVER, (5, 0): OVER},
    )
    comparisons = compare(list_studies()["da-conventional"], search)
    rows = {row[0]: dict(zip(comparisons.table.columns, row, strict=True)) for row in comparisons.table.rows}
    assert rows["DA, 1"]["runs"] == 2
    assert rows["DA, 1"]["box AP, published"] == "40.2"
    assert rows["DA, 1"]["box AP, last"] == pytest.approx(41)
    assert rows["DA, 1"]["box AP, last sd"] == pytest.approx(math.sqrt(2))
    assert rows["DA, 1"]["box AP, max"] == pytest.approx(42)
    assert rows["DA, 1"]["mask AP, last"] == pytest.approx(20.5)
    for count in (5, 7):
        row = rows[f"conventional, {count}"]
        assert row["box AP, published"] == "OOM (did not fit in memory)"
        assert row["result"] == row["box AP, last"] == row["mask AP, last"] == "over a limit (memory)"
    assert any("41 ± 1.414" in line for line in comparisons.lines())
    paths = write_tables([comparisons], "a source", tmp_path, "study")
    assert [path.name for path in paths] == ["study.md", "study.csv"]
    assert "a source" in paths[0].read_text()
    fine = [{"box_ap": 0.4, "mask_ap": 0.3}]
    search = saved(tmp_path, "da-normalisation-small", {(0, 0): NAN, (1, 0): fine, (2, 0): fine})
    rows = compare(list_studies()["da-normalisation"], search).table.rows
    assert [row[0] for row in rows] == ["None", "Scaling", "Softmax"]
    assert [row[3] for row in rows] == ["diverged", "trained", "trained"]
    assert rows[0][4:6] == ["NaN (diverged)", "diverged"]


def test_tables_of_equal_time_have_both_tests(tmp_path: Path) -> None:
    def run(*scores: float) -> list[dict[str, float]]:
        return [{"accuracy": score, "seconds": 30.0} for score in scores]

    swept = saved(
        tmp_path,
        "ssa-lr-sweep-small",
        {(i, 0): run(0.5, 0.5 + 0.01 * i, 0.4) for i in range(5)} | {(5, 0): run(0.5), (6, 0): NAN},
        ACCURACY,
    )
    assert best_rate(swept) == RATES[4]
    table = sweep_table(swept)
    assert "learning rate 0.01; published: 0.008" in table.notes[0]
    assert table.table.rows[6][3] == "diverged"
    plain, ours = [0.80, 0.82, 0.81], [0.83, 0.84, 0.85]
    runs: Runs = {(0, seed): run(score, score - 0.1) for seed, score in enumerate(plain)}
    runs |= {(1, seed): run(score, score - 0.2) for seed, score in enumerate(ours)}
    times, scores = comparison_tables(saved(tmp_path, "ssa-equal-time-0.01-small", runs, ACCURACY), 0.01)
    assert [row[1] for row in times.table.rows] == ["50", "47"]
    assert [row[2] for row in times.table.rows] == ["4", "4"]
    assert [row[4] for row in times.table.rows] == [2, 2]
    assert scores.table.rows[1][7] == pytest.approx(84)
    assert scores.notes[0].endswith("P = 0.0157")
    expected = stats.ttest_ind(ours, plain)
    assert f"difference +0.0300, 95% interval {expected.confidence_interval().low:.4f}" in scores.notes[1]
    assert f"P = {expected.pvalue:.4f}" in scores.notes[1]
    assert "paired by seed, maximum: difference +0.0300, no interval" in scores.notes[2]
    assert any("last epoch: difference -0.0700" in note for note in scores.notes)
    run = [{"accuracy": 0.8, "seconds": 1.0}]
    search = saved(tmp_path, "ssa-equal-time-0.008-small", {(0, 0): run, (1, 0): run}, ACCURACY)
    assert comparison_tables(search, 0.008)[1].notes[1].endswith("give --seeds 2 or more")


def test_studies_are_listed_with_their_rates() -> None:
    shown = CliRunner().invoke(app, ["studies"])
    assert all(name in shown.output for name in list_studies())
    assert tuple(float(row.name) for row in list_studies()["ssa-lr-sweep"].rows) == RATES


COUNTS = {"train": 900, "validation": 100}


def finish_at_once(settings: ParsedSettings, describe: Callable[[Any], str]) -> Any:
    """Write the folder of a search whose trials have all ended, in place of `start_or_resume`."""
    opened = settings.question.open()
    if settings.plan.is_grid:
        drawn = [(cell, cell.config, cell.label) for cell in opened.cells]
    else:
        trials = draw_randomly(opened.space, 3, first=opened.space.free()[0])
        drawn = [(trial, config, "") for trial, config in trials]
    configs = [config for _, config, _ in drawn]
    task = task_of(configs[0])
    metric = task.metric_of(configs[0])
    plan = plan_of(metric=metric)
    epoch = {"epoch": 1, "resource": 1, "steps": 1, "seconds": 1.0, metric.name: 0.5}
    ready = SimpleNamespace(configs=configs, task=SimpleNamespace(size=COUNTS.__getitem__, noun=task.noun))
    folder = save_search(
        Path(settings.place.storage),
        [
            frozen(t.params, t.distributions, config, plan, State.COMPLETE, [epoch], variant=label)
            for t, config, label in drawn
        ],
        name=settings.place.name,
        plan=plan,
        space=settings.question.space,
        sampler=settings.plan.sampler,
        study=settings.question.study,
        scale=describe(ready),
    )
    if settings.plan.is_grid:
        cells = {cell.label: dict(cell.params) for cell, _, _ in drawn}
        resume_study(folder, name=settings.place.name).set_user_attr(CELLS, cells)
    return load(settings.place.name, storage=settings.place.storage)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", others_slow(list_studies(), *(n for n in list_studies() if n not in LARGE)))
def test_every_output_has_the_line(
    name: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_study_module, "start_or_resume", finish_at_once)
    data = None if small else str(tmp_path / "mine")
    result = run_study(name, small=small, data=data, storage=str(tmp_path), epochs=7, subset=0.5)
    pages = [(tmp_path / str(r.search) / "study.md") for r in result.results]
    page = next(path for path in pages if path.exists()).read_text()
    lines = []
    for search in result.results:
        line = search.metadata.scale
        lines.append(line)
        for fact in ("model", "data", "inputs 1,000 ", "epochs 7", "subset 0.5", "Source: ", "Different: "):
            assert fact in line
        different = line.partition("Different: ")[2].partition(".")[0].split(", ")
        assert {"epochs", "subset"} <= set(different)
        assert not small or {"model"} <= set(different)
        assert markdown(line) in page
        assert line in write_page(search, None, []).replace("&#39;", "'")
        spec = search_run_spec(search.metadata.location, search.metadata)
        assert (spec.source[SCALE], spec.experiment) == (line, name)
        assert spec.source[VERSION]
        assert markdown(line) in spec.note
        if search.metadata.settings.plan.is_grid:
            write_grid(search, search.folder)
            texts = [(search.folder / file).read_text() for file in FILES]
            assert [row["scale"] for row in csv.DictReader(texts[0].splitlines())] == [line] * len(
                search.trials
            )
            assert markdown(line) in texts[1]
    for table in result.tables:
        assert any(line in table.lines()[1] for line in lines)
    for file in result.files:
        if file.suffix == ".csv":
            rows = list(csv.DictReader(file.read_text().splitlines()))
            assert rows
            assert all(any(line in row["scale"] for line in lines) for row in rows)


@pytest.mark.parametrize("name", others_slow(GRIDS, *(name for name in GRIDS if name not in LARGE)))
def test_the_whole_form_is_the_setup_of_the_source(name: str) -> None:
    setup = list_studies()[name].setup
    configs = [cell.config for cell in cells_of(name)]
    assert {config.data for config in configs} == {configs[0].data}
    line = scale_line({**setup, "data": configs[0].data.source}, configs, setup.get("inputs", "9"), "1")
    assert ("Different: none of these" in line) != (name == "codesearch-encoders"), line
    for key, value in setup.items():
        if value.startswith(UNPRINTED):
            assert f"{key} {value.removeprefix(UNPRINTED)}" in line.partition("Source")[0]


@pytest.mark.parametrize("name", list(list_studies()))
def test_the_epochs_of_a_study_do_not_depend_on_the_data(name: str) -> None:
    space = name if list_studies()[name].rows else "larnn"
    assert may_fit_epochs(Question(space="larnn", data="mine"))
    assert not may_fit_epochs(Question(space=space, data="mine", subset=0.5, study=name))


@pytest.mark.parametrize("study", ["../../outside", "a/b", ""])
def test_a_study_that_names_no_folder_is_rejected(study: str) -> None:
    """MLflow keeps the artifacts of an experiment in a folder with its name."""
    with pytest.raises(InputError, match="--study may hold up to 100 letters"):
        Settings(space="larnn", study=study)
