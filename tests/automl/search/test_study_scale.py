"""Every table, file, MLflow run and page of a study says what it trained and how its source differs."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import automl.search.studies as run_study_module
from automl.base.escape import markdown
from automl.config.nouns import Question
from automl.config.settings import ParsedSettings
from automl.report.grid_table import FILES, markdown_lines, merged, write_grid
from automl.report.run_report import write_page
from automl.search.prepare import may_fit_epochs
from automl.search.run_search import load
from automl.search.studies import list_studies, run_study, scale_line
from automl.task import task_of
from automl.task.published_study import UNPRINTED
from automl.tasks.sequence_classification import rounds
from automl.tracking.names import SCALE, VERSION
from automl.tracking.run_spec import search_run_spec
from search.grid import SMALL, grid_cells
from search.record import State
from search.space import draw_randomly
from search.spaces import load_space
from search.study import CELLS, resume_study
from tests.helpers.report_cases import frozen, plan_of, save_search

GRIDS = [name for name, study in list_studies().items() if study.rows]
PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "studies.md").read_text()
COUNTS = {"train": 900, "validation": 100}


def finish_at_once(settings: ParsedSettings, describe: Callable[[Any], str]) -> Any:
    """Write the folder of a search whose trials have all ended, in place of `start_or_resume`."""
    opened = settings.question.open()
    if settings.plan.is_grid:
        drawn = [(cell, cell.config, cell.label) for cell in opened.cells]
    else:
        trials = draw_randomly(opened.space, 3, first=opened.space.published()[0])
        drawn = [(trial, config, "") for trial, config in trials]
    configs = [config for _, config, _ in drawn]
    task = task_of(configs[0])
    metric = task.metric_of(configs[0])
    plan = plan_of(metric=metric, objectives=[metric.name])
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
@pytest.mark.parametrize("name", list(list_studies()))
def test_every_output_has_the_line(
    name: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (run_study_module, rounds):
        monkeypatch.setattr(module, "start_or_resume", finish_at_once)
    data = None if small else str(tmp_path / "mine")
    result = run_study(name, small=small, data=data, storage=str(tmp_path), epochs=3, subset=0.5)
    pages = [(tmp_path / str(r.search) / "study.md") for r in result.results]
    page = next(path for path in pages if path.exists()).read_text()
    lines = []
    for search in result.results:
        line = search.metadata.scale
        lines.append(line)
        for fact in ("model", "data", "inputs 1,000 ", "epochs 3", "subset 0.5", "Source: ", "Different: "):
            assert fact in line
        different = line.partition("Different: ")[2].partition(".")[0].split(", ")
        assert {"epochs", "subset"} <= set(different)
        assert not small or {"model"} <= set(different) or name == "larnn-rounds"
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


@pytest.mark.parametrize("name", re.findall(r"## The small form of `([\w-]+)`", PAGE))
def test_the_page_shows_the_tables_of_a_study(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_study_module, "start_or_resume", finish_at_once)
    for table in run_study(name, small=True, storage=str(tmp_path)).tables:
        assert "\n".join(markdown_lines(merged(table.table))[:2]) in PAGE
        for line in re.findall("Source: .*", table.scale):
            assert line.partition(" Different")[0] in PAGE


@pytest.mark.parametrize("name", GRIDS)
def test_the_whole_form_is_the_setup_of_the_source(name: str) -> None:
    setup = list_studies()[name].setup
    configs = [cell.config for cell in grid_cells(load_space(name))]
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


@pytest.mark.parametrize("name", GRIDS)
def test_every_small_form_differs_in_its_model(name: str) -> None:
    configs = [cell.config for cell in grid_cells(load_space(f"{name}{SMALL}"))]
    line = scale_line(list_studies()[name].setup, configs, "9 inputs", "1")
    assert "Different: model, data, inputs" in line or "Different: model, data, size" in line
