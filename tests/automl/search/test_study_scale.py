"""Every table, file, MLflow run and page of a study says what it trained and how its source differs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.config.settings import ParsedSettings, Settings
from automl.search.run_search import load
from automl.search.studies import list_studies
from automl.storage.folder import find_search
from automl.task import task_of
from automl.tracking.names import NOTE, SCALE
from automl.tracking.run_spec import search_run_spec
from search.record import State
from search.space import draw_randomly
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


@pytest.mark.parametrize("study", ["../../outside", "a/b", ""])
def test_a_study_that_names_no_folder_is_rejected(study: str) -> None:
    """MLflow keeps the artifacts of an experiment in a folder with its name."""
    with pytest.raises(InputError, match="--study may hold up to 100 letters"):
        Settings(space="larnn", study=study)


def test_the_note_of_a_search_without_a_study_is_short(tmp_path: Path) -> None:
    save_search(tmp_path, [], name="plain")
    metadata = find_search("plain", str(tmp_path))[1]
    spec = search_run_spec(metadata.location, metadata)
    assert SCALE not in spec.source
    assert spec.note.endswith(".")
    assert NOTE not in spec.source
