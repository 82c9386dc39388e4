"""Check the settings of a search before anything is trained, and complete them with defaults.

Some defaults depend on the data: the space, the backbone, the image size, the epochs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.lazy import resolve
from automl.base.options import STORAGE
from automl.base.terminal import tell
from automl.base.units import pluralize
from automl.callbacks.user import check_callbacks
from automl.config.nouns import Question, SearchPlan, Terms
from automl.config.runtime import Runtime
from automl.config.settings import ParsedSettings, Settings
from automl.costs.forecast import check_limits
from automl.data import shared
from automl.data.manifest import Manifest
from automl.export.formats import find_missing_formats
from automl.storage.folder import check_new, exists, find_model_search, find_search
from automl.storage.metadata import SearchMetadata
from automl.storage.storage import Storage, check_not_temporary
from automl.task import Task, checks, open_task, task_of_data
from automl.task.initial import choose_weights
from search.config import PUBLISHED, TASKS, TrialConfig
from search.drawn import Drawn
from search.grid import Cell
from search.halving import REDUCTION
from search.samplers import check_sampler, choose_sampler, load_sampler
from search.space import GRID, SPACES
from search.trial_scheduler import Plan

# Draws to build models of, to compare with the limits, and of the user's own attention: enough for nearly all
# combinations of a type, its options and the shapes of sites.
MODEL_DRAWS, LIMIT_DRAWS, ATTENTION_DRAWS = 50, 100, 400
PRIORS = ("sensitivity", "none")
CHOSEN = ("space", "backbone", "weights", "size")  # settings that the data choose
STEPS = 300  # minimum number of steps; shorter trainings may end at chance level
PART = 1000  # minimum number of steps between two validations within an epoch


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Search that passed all checks.

    Attributes:
        settings: The settings, completed with defaults.
        drawn: The space with its draws.
        baseline: The configuration of trial 0.
        task: The task of the baseline, with its data.
        plan: Number of trials, budget and metric.
        manifest: List of examples and splits.
    """

    settings: ParsedSettings
    drawn: Drawn
    baseline: TrialConfig
    task: Task
    plan: Plan
    manifest: Manifest

    @property
    def configs(self) -> list[TrialConfig]:
        """The baseline and random configurations."""
        return [self.baseline, *self.drawn.configs(LIMIT_DRAWS)]


def prepare(settings: ParsedSettings) -> Prepared:
    """Check the settings before a search starts, and complete them with defaults.

    `run_search` and `--dry-run` start with it. It writes only the cache of the data.

    Raise InputError if a setting is invalid.
    """
    question, plan, place = with_weights(settings.question), settings.plan, settings.place
    check_not_temporary(place.storage)
    check_new(place)
    check_callbacks(place.callbacks)
    if plan.prior not in (None, *PRIORS):  # An older search may have another one, and is still read.
        raise unknown("value of --prior", plan.prior, PRIORS)
    drawn, limits, runtime = question.open(), settings.terms.limits, settings.terms.runtime
    plan = _with_sampler(plan, question, drawn)
    if drawn.space.types is not None:  # Stored, so that a later default does not change this search.
        question = replace(question, attention=",".join(map(loading.make_absolute, drawn.space.types)))
    if plan.warm_start is not None:
        find_warm_start(plan.warm_start, place.storage, drawn.fingerprint)
    shared.use_saved(None, Storage(place.storage))
    task = open_task(drawn.baseline, runtime)  # decodes the data, once and before any trial
    if plan.prior == "sensitivity" and not starts_from_sensitivity(plan, task):
        raise InputError(
            "--prior sensitivity needs a decoder with trained weights, and --sampler placement. Add "
            "--weights, take --backbone hf:FOLDER with weights, or leave --prior out"
        )
    if chosen := fit_epochs(question, task):
        question = replace(question, **chosen.settings)
        tell(f"chosen    {chosen.why}")
        drawn = question.draw(drawn.space)
        task = open_task(drawn.baseline, runtime)
    baseline = drawn.baseline
    trials = make_plan(plan, question, task)
    trials = replace(trials, reports=choose_validations(settings.terms, trials, task))
    if plan.is_grid:
        trials = replace(trials, trials=len(cells_of(plan, drawn)) * plan.seeds)
    check_models([baseline, *drawn.configs(MODEL_DRAWS)], runtime)
    check_attentions(drawn, runtime)
    if not limits.nothing:
        check_limits([baseline, *drawn.configs(LIMIT_DRAWS)], limits, runtime)
    settings, manifest = replace(settings, question=question, plan=plan), task.manifest(baseline)
    return Prepared(
        settings=settings, drawn=drawn, baseline=baseline, task=task, plan=trials, manifest=manifest
    )


def starts_from_sensitivity(plan: SearchPlan, task: Task) -> bool:
    """Return True if the sampler of placements starts from the sensitivity of a trained decoder's layers."""
    return plan.prior != "none" and plan.sampler == "placement" and task.has_trained_layers


def with_weights(question: Question) -> Question:
    """Return the question with the file of the weights and its hash."""
    if question.weights in (None, PUBLISHED) or question.weights_digest:
        return question
    assert question.weights is not None
    source = question.weights
    if re.fullmatch(r"[0-9a-f]{32}", source):  # the ID of a run
        from automl.export.chosen import choose_run  # imports MLflow, which takes seconds

        source = str(choose_run(source).checkpoint)
    file, digest = choose_weights(source)
    return replace(question, weights=file, weights_digest=digest)


def _with_sampler(plan: SearchPlan, question: Question, drawn: Drawn) -> SearchPlan:
    """Return the plan with a sampler chosen for `auto`. Raise InputError if the sampler does not fit."""
    sampler = choose_sampler(plan.sampler, drawn)
    if sampler != GRID:
        load_sampler(sampler, seed=question.seed)  # raises InputError
    check_sampler(sampler, drawn)
    return replace(plan, sampler=sampler)


def make_plan(plan: SearchPlan, question: Question, task: Task) -> Plan:
    """Return the plan of the trials of a search. `task` is that of the baseline."""
    chance = task.chance("validation")
    return Plan(
        trials=plan.most,
        budget=float(task.config.training.epochs),
        metric=task.metric,
        baseline_share=plan.baseline_share,
        pruning=plan.pruning and not plan.is_grid,
        guessing=None if chance is None else task.metric.guessing(chance, task.size("validation")),
    )


def cells_of(plan: SearchPlan, drawn: Drawn) -> list[Cell]:
    """Return the cells of a grid. Raise InputError if `--trials` is smaller than their number."""
    cells = drawn.cells
    count = len(cells) * plan.seeds
    if plan.trials is not None and plan.trials < count:
        seeds = "" if plan.seeds == 1 else f" with {plan.seeds} seeds each"
        raise InputError(
            f"--trials must be at least {count} for this grid of {len(cells)} cells{seeds}; got "
            f"{plan.trials}. Leave --trials out, as a grid trains all its cells"
        )
    return cells


def check_attentions(drawn: Drawn, runtime: Runtime) -> None:
    """Check attention types that are not in the table, at the sites and with the options of many draws.

    Name the formats that an export of a model with one will leave out.

    Raise InputError if a module cannot be inserted, trained or trusted to compute each input by itself.
    """
    specs = [spec for config in drawn.configs(MODEL_DRAWS) for spec in config.model.placement.values()]
    if not any(spec.is_foreign for spec in specs):
        return
    for spec, site in checks.check_attentions(drawn.configs(ATTENTION_DRAWS), runtime):
        for file, reason in find_missing_formats(spec, site).items():
            tell(f"note      an export with {spec.name} will have no {file}: {reason}")


def check_models(configs: Sequence[TrialConfig], runtime: Runtime) -> None:
    """Build and try each backbone of the space once, with its initial weights.

    Raise InputError if a model cannot be built or trained, or does not fit the data or the weights.
    """
    context = configs[0].data.decoding_context
    options = [spec.options.get("window") for config in configs for spec in config.model.placement.values()]
    for window in sorted({window for window in options if isinstance(window, int)}):
        if 0 < context <= window:
            tell(f"note: a window of {window} tokens saves nothing at {context} tokens; lengthen --context")
    seen: set[str] = set()
    tried: set[str] = set()
    for config in configs:
        bare = config.change(model={"placement": {}}, seed=0).to_json()
        mark = json.dumps([bare["model"], bare["data"]], sort_keys=True)
        backbone = config.model.backbone
        if mark in seen or (backbone in tried and not config.model.weights):
            continue
        seen.add(mark)
        task = open_task(config, runtime)
        if backbone not in tried:
            tried.add(backbone)
            for note in task.notes():
                tell(note)
        stay_new = task.initialise(task.model())
        if stay_new and len(seen) == 1:
            tell(
                f"these weights of {config.model.weights} are for other labels and start at random: "
                f"{', '.join(stay_new)}"
            )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Settings that fit the data.

    Attributes:
        settings: Fields of `Settings`.
        why: The reason in one line. Empty if the space determines everything.
    """

    settings: dict[str, Any]
    why: str = ""


def fit(
    data: str,
    *,
    backbone: str | None = None,
    size: int | None = None,
    weights: str | None = None,
    metric: str | None = None,
    is_text: bool = False,
) -> Fit:
    """Choose settings for the data at the path `data`.

    The task that recognises the data chooses, or else the default one. With `is_text`, source files are texts
    of a language model instead of functions to search. `backbone`, `size` and `weights` are kept if they are
    set.

    Raise InputError if an archive cannot be extracted, a folder is not a dataset, or the task has no such
    `metric` or `size`.
    """
    spec = task_of_data(data)
    if is_text and spec is not None and spec.as_text in TASKS:
        spec = TASKS[spec.as_text]
    spec = spec or TASKS[TrialConfig.task]  # data that no task recognises
    spec.check_early(metric=metric, size=size)
    if not spec.fit:
        return Fit(settings={"space": spec.space})
    chosen: Fit = resolve(spec.fit)(data, backbone=backbone, size=size, weights=weights)
    return chosen


def open_settings(values: Mapping[str, Any], *, resume: bool = False) -> ParsedSettings:
    """Return the settings of a search with these fields of `Settings`. Without a space, the data choose it.

    What was chosen is printed. With `resume`, an existing search of this name has chosen before, and that is
    kept. Raises InputError if there is neither a space nor data.
    """
    options = {name: value for name, value in values.items() if value is not None}
    data, name, storage = options.get("data"), options.get("name"), options.get("storage", STORAGE)
    if options.get("space", "") != "" or "train" in options:
        return Settings(**values).parsed
    if not isinstance(data, str | PathLike):
        raise InputError(
            "--space, --data or --train is missing; give --data PHOTOS, --space digits, --train "
            "train.py:train, or --resume NAME to resume a search"
        )
    if resume and name is not None and exists(name, storage):
        stored = find_search(name, storage)[1].settings.values()
        kept = {key: stored[key] for key in CHOSEN if options.get(key, "") == ""}
        return Settings(**{**values, **kept}).parsed
    # These options say that a language model is wanted.
    is_text = str(options.get("backbone", "")).startswith("hf:") or bool(
        {"full", "max_cache", "context", "distil"} & options.keys()
    )
    of_user = {key: options.get(key) for key in ("backbone", "size", "weights", "metric")}
    _ = Settings(**{**values, "space": "folder"})  # raises InputError for an invalid value
    default = fit(fspath(data), **of_user, is_text=is_text)
    if default.why:
        tell(f"chosen    {default.why}")
    return Settings(**{**values, **default.settings}).parsed


def may_fit_epochs(question: Question) -> bool:
    """Return True if epochs depend on the data, unlike with a study, a user's space or bundled data."""
    of_the_table = isinstance(question.space, str) and question.space in SPACES
    is_free = question.epochs is None and question.study is None
    return is_free and of_the_table and (question.data is not None or (question.subset or 1) < 1)


def fit_epochs(question: Question, task: Task) -> Fit | None:
    """Choose the epochs of a training with few steps per epoch. Return None if the space's suffice.

    `task` is that of the baseline, with the data and the batch size of the search.
    """
    training = task.config.training
    steps = max(1, task.steps() // training.accumulate)  # optimiser steps
    enough = ceil(STEPS / steps)
    if not may_fit_epochs(question) or training.epochs >= enough:
        return None
    why = (
        f"{pluralize(enough, 'epochs')} instead of {training.epochs}, since an epoch has "
        f"{pluralize(steps, 'steps')} of {training.batch_size * training.accumulate} {task.noun} and a "
        f"training needs about {STEPS}; set another number with --epochs"
    )
    return Fit(settings={"epochs": enough}, why=why)


def choose_validations(terms: Terms, plan: Plan, task: Task) -> int:
    """Return the number of validations in an epoch of a search. `task` is that of the baseline.

    By default it is one. In short trainings the first rung is then the first validation, after a ninth or
    more. Between two of them an epoch trains at least `PART` steps, since after few the score is noise, and
    as many inputs as are validated. Raise InputError if more are asked than it has steps.
    """
    asked, validated = terms.validations_per_epoch, task.size("validation")
    steps = ceil(task.steps() / task.config.training.accumulate)
    if asked is not None and asked > (limit := steps if validated else 1):
        why = "the steps of an epoch" if validated else "as the training function validates itself"
        raise InputError(f"--validations-per-epoch must be at most {limit}, {why}; got {asked}")
    if asked is not None or not plan.pruning or not validated:
        return asked or 1
    chosen = min(int(REDUCTION**2 // plan.budget), steps // PART, task.size("train") // validated)
    if chosen > 1:
        why = f"so that rungs lie within an epoch of {task.steps():,} steps"
        tell(f"chosen    --validations-per-epoch {chosen}, {why}")
    return max(1, chosen)


def find_warm_start(name: str, storage: str, fingerprint: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and metadata of the search `--warm-start`. Raise InputError if it does not fit."""
    folder, other = find_model_search(name, storage)
    if other.fingerprint.partition("-")[0] != fingerprint.partition("-")[0]:  # of the parameters
        raise InputError(
            f"search {name!r} was made with another space ({other.settings.question.space_name}); "
            f"--warm-start needs one that draws the same parameters"
        )
    return folder, other
