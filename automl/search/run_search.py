"""Start, load and resume searches, and what can be done with one."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.base.errors import InputError
from automl.base.loading import outside_imports
from automl.base.options import document_fields, format_option, with_keywords_of
from automl.callbacks.user import check_callbacks
from automl.config.settings import SCHEDULING_OPTIONS, ParsedSettings, Settings
from automl.data import shared
from automl.report.read import read_folder
from automl.search.driver import run_to_end
from automl.search.prepare import Prepared, cells_of, may_fit_epochs, open_settings, prepare, with_weights
from automl.search.result import RESULT_FILE, SearchResult
from automl.storage.folder import (
    NamedSearch,
    check_not_lost,
    exists,
    find_search,
    new_folder,
    old_folder,
    resolve_search,
)
from automl.storage.metadata import SPACE_FILE, write_metadata
from automl.storage.storage import Storage, check_not_temporary
from automl.storage.user_code import check_trusted, remember, user_code
from automl.task import open_task
from automl.task.opening import check_same_data, restore_manifest, write_manifest
from automl.tracking.process import prepared
from search.samplers import AUTO
from search.space import SPACES, Space, SpaceFunction, get_source, space_name
from search.study import read_records

if TYPE_CHECKING:
    from automl.export.export_result import ExportResult
    from automl.export.predict import Predictions
    from automl.judge.verdict import ConfirmResult
    from automl.report.run_report import ReportResult
    from automl.search.solve import SolveResult

EXPORTS = Path("exports")
# Settings that `run_search` takes with `resume`.
RESUMED_WITH = ("storage", "space", "trials", "seeds", "budget", "trust", *SCHEDULING_OPTIONS)


@document_fields
@dataclass(frozen=True, kw_only=True, repr=False)
class Search(SearchResult):
    """Search with its trials. Its `repr` is a few lines, and a table in notebooks.

    `run_search` returns it, and `load` reads it from the folder. It is the state at that time: `resume`
    returns a new one. Its methods are the functions of `automl` with this search as their first argument.

    Example:
        After the example of `run_search`:

        >>> result.counts["complete"] + result.counts["pruned"] + result.counts["infeasible"]
        3
        >>> result.best.value(result.metric) <= 1
        True
        >>> list(result.trials_dataframe()["number"])
        [0, 1, 2]
    """

    @outside_imports
    def confirm(self, **options: Any) -> "ConfirmResult":
        """Compare the best trials with the baseline on fresh seeds, with the options of `run_confirm`."""
        from automl.judge.run_confirm import run_confirm

        return run_confirm(self, **options)

    @outside_imports
    def report(self, **options: Any) -> "ReportResult":
        """Write the page with all results. The options are those of `run_report`."""
        from automl.report.run_report import run_report

        return run_report(self, **options)

    @outside_imports
    def export(
        self, out: str | Path | None = None, *, baseline: bool = False, **options: Any
    ) -> "ExportResult":
        """Export the confirmed winner or else the best trial. The options are those of `run_export`.

        With `baseline`, export the best trial without attention.
        """
        from automl.export.run_export import run_export

        return run_export(out, best=not baseline, baseline=baseline, search=self, **options)

    @outside_imports
    def predict(self, files: Sequence[str | Path], **options: Any) -> "Predictions":
        """Run the exported model on files. The options are those of `run_predict`.

        It is the model in `exports/NAME`, and is exported first if there is no such folder.
        """
        from automl.export.predict import run_predict

        exported = EXPORTS / self.search
        if not exported.exists():
            self.export(exported, trust=bool(options.get("trust")))
        return run_predict(exported, files, **options)

    @outside_imports
    def solve(self, **limits: Any) -> "SolveResult":
        """Find the best placement under limits without training. The limits are those of `run_solve`."""
        from automl.search.solve import run_solve

        return run_solve(self, **limits)

    @outside_imports
    def resume(self, **settings: Any) -> "Search":
        """Resume the search, or extend it with `trials="+20"`. The settings are those of `run_search`."""
        return run_search(resume=self, **settings)

    def status(self) -> Any:
        """Return how far the search is now, as `read_status` does."""
        from automl.search.status import read_status

        return read_status(self)

    @outside_imports
    def sync(self) -> int:
        """Write missing runs to MLflow, and return the number of trials there, as `run_sync` does."""
        from automl.search.driver import run_sync

        return run_sync(self)


def load(search: str | NamedSearch | None = None, *, storage: str | PathLike[str] | None = None) -> Search:
    """Load a search from its folder, whether it is running or has ended.

    Args:
        search: The name of the search, or its result. By default the latest search in `storage`.
        storage: The storage of the search. By default that of the result, or `searches`.

    Returns:
        The search as `run_search` returns it.

    Raises:
        InputError: There is no such search, or one of its files is damaged.

    Example:
        After the example of `run_search`:

        >>> search = automl.load("example")
        >>> search.best.number == result.best.number
        True
    """
    name, storage = resolve_search(search, storage)
    folder, _ = find_search(name, storage)
    data = read_folder(folder, storage)
    of_run: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # it is written when a run of the search ends
        result = json.loads((folder / RESULT_FILE).read_text())
        of_run = {key: result[key] for key in ("seconds", "devices", "untracked", "page") if key in result}
    return Search(**{**vars(data), **of_run})


@dataclass(frozen=True, kw_only=True)
class _Arguments(Settings):
    """Arguments of `run_search`."""

    resume: str | NamedSearch | None = None


@with_keywords_of(_Arguments)
def run_search(*positional: Any, resume: str | NamedSearch | None = None, **settings: Any) -> Search:
    """Search a space on Ray and log every trial to MLflow.

    The first trial is the baseline with published defaults. The next ones are free answers. A fixed
    fraction of the trials tunes the baseline. Ctrl-C and SIGTERM stop the search gracefully.

    Args:
        *positional: Not accepted. Give settings by name.
        resume: The name of an interrupted search to resume, or of a finished one to extend, or its result.
            Finished trials are kept, and interrupted ones resume from their checkpoint. `auto` resumes the
            search called `name` if it exists.
        **settings: The fields of `Settings`, such as `space`, `data`, `trials` and `callbacks`. With
            `resume`, only `storage`, `trials` (the total, or `"+20"` for 20 more), `seeds` of a grid, the
            `budget` from now on, a `space` that was a function of a notebook, and `callbacks`, `label`,
            `resource` and `concurrent`. Code that was not named on this machine needs `trust=True`.

    Returns:
        The search with its trials. Its methods continue with it: `confirm`, `report`, `export`, `resume`.

    Raises:
        InputError: A setting is invalid, or the search to resume does not exist, is running, or its space or
            data have changed. It is raised before anything is trained.

    Example:
        >>> import automl
        >>> result = automl.run_search(space="digits", trials=3, epochs=2, subset=0.3, name="example")
        >>> len(result.trials)
        3
        >>> len(automl.run_search(resume="example", trials="+1").trials)
        4
    """
    if positional:
        Settings(*positional)  # This raises the InputError.
    if resume is None:
        return start_search(open_settings(settings))
    if resume == "auto":
        return start_or_resume(open_settings(settings, resume=True))
    if fixed := [name for name in settings if name not in RESUMED_WITH]:
        raise InputError(
            f"{fixed[0]!r} cannot be combined with resume, which keeps the settings. Leave it out; "
            f"allowed are {', '.join(RESUMED_WITH)}"
        )
    return resume_search(resume, **settings)


@prepared()
def start_search(settings: ParsedSettings, describe: Callable[[Prepared], str] = lambda ready: "") -> Search:
    """Run a new search with these settings, as `run_search` does.

    `describe` returns the `scale` of a study's search.
    """
    begun = time.monotonic()
    ready = prepare(settings)
    drawn, manifest = ready.drawn, ready.manifest
    remember([*settings.user_code(), *(name for config in ready.configs for name in config.user_code())])
    with new_folder(
        ready.settings, ready.plan, fingerprint=drawn.fingerprint, data=manifest.digest, scale=describe(ready)
    ) as (folder, metadata):
        write_manifest(folder, manifest)
        if not isinstance(ready.settings.question.space, str) and (source := get_source(drawn.space)):
            (folder / SPACE_FILE).write_text(source, encoding="utf-8")
        return run_to_end(folder, metadata, drawn, ready.task, begun, Search)


@prepared()
def resume_search(
    search: str | NamedSearch,
    *,
    storage: str | None = None,
    space: str | SpaceFunction | Space | None = None,
    trials: str | int | None = None,
    seeds: int | None = None,
    budget: str | None = None,
    trust: bool = False,
    **scheduling: Any,
) -> Search:
    """Resume an interrupted search, or extend a finished one, as `run_search(resume=...)` does."""
    begun = time.monotonic()
    name, storage = resolve_search(search, storage)
    check_not_temporary(storage)
    with old_folder(name, storage) as (folder, metadata):
        records = read_records(folder, metadata.name, metadata.plan.needed)
        if metadata.location.local is not None:  # in a store, checkpoints may precede the study
            check_not_lost(folder, metadata.location)
        check_trusted(f"search {name!r}", user_code(metadata.settings.user_code(), records), trust=trust)
        earlier = metadata.settings.question
        if isinstance(space, str) and space in SPACES and space != earlier.space:
            raise InputError(
                f"search {name!r} was made with --space {earlier.space_name} and cannot resume with "
                f"{space!r}. Leave --space out, or start another search with --warm-start {name}."
            )
        drawn = metadata.draw_space(space)
        # The file of the space may have moved.
        question = earlier if space is None else earlier.with_space(space)
        more = None if trials is None else str(trials)
        plan = metadata.settings.plan.extended(more, budget, len(records), seeds)
        settings = replace(metadata.settings, question=question, plan=plan)
        settings = settings.change(place=scheduling).absolute()
        check_callbacks(settings.place.callbacks)
        planned = len(cells_of(plan, drawn)) * plan.seeds if plan.is_grid else plan.most
        metadata = replace(metadata, settings=settings, plan=replace(metadata.plan, trials=planned))
        baseline = drawn.baseline
        shared.use_saved(folder, Storage(storage))
        restore_manifest(folder, metadata.data, baseline)
        check_same_data(baseline, folder, name, ("train", "validation"))
        task = open_task(baseline, settings.terms.runtime)  # decodes the data if they are no longer cached
        write_metadata(folder, metadata)
        return run_to_end(folder, metadata, drawn, task, begun, Search)


def start_or_resume(
    settings: ParsedSettings, describe: Callable[[Prepared], str] = lambda ready: ""
) -> Search:
    """Resume the search of this name, or start it, for jobs that are repeated after a failure.

    Raise InputError if there is no name, or the search has other settings. Number of trials, time limit and
    scheduling may differ.
    """
    name, storage = settings.place.name, settings.place.storage
    if name is None:
        raise InputError("--resume auto needs the --name of the search to resume; add --name NAME")
    if not exists(name, storage):
        return start_search(settings, describe)
    settings = replace(settings, question=with_weights(settings.question)).absolute()
    question, plan = settings.question, settings.plan
    asked, stored = settings.values(), find_search(name, storage)[1].settings.values()
    may_differ = {"trials", "budget", "storage", "seeds", *SCHEDULING_OPTIONS}
    may_differ |= {"sampler"} if plan.sampler == AUTO else set()
    may_differ |= {"attention"} if question.attention is None else set()
    may_differ |= {"epochs"} if question.epochs is None and may_fit_epochs(question) else set()
    may_differ |= {"space"} if question.space_name == space_name(stored["space"]) else set()
    other = [key for key in asked if key not in may_differ and asked[key] != stored[key]]
    if other == ["weights_digest"]:
        raise InputError(
            f"the weights {question.weights} have changed since search {name!r} was made; "
            f"restore them, or give another --name"
        )
    if other:
        values = ", ".join(format_option(key, stored[key]) for key in other)
        raise InputError(f"search {name!r} was made with {values}; give it the same again, or another --name")
    return resume_search(
        name,
        storage=storage,
        space=None if isinstance(question.space, str) else question.space,
        trials=plan.trials,
        seeds=plan.seeds if plan.is_grid else None,
        budget=plan.budget,
        trust=True,  # the same code was named again
        **{key: asked[key] for key in SCHEDULING_OPTIONS},
    )
