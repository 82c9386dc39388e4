"""Declarations of tasks (`TASKS`) and of registered ones: everything known of a task before a training.

A task is a folder of `automl.tasks`, or of another package that declares it by an entry point. Nothing here
names one.

The keys of a user-defined task's configuration are defined in its code, which reading a configuration must
not run. Until `TrialConfig.load` loads it, the types `OPEN` accept any keys and check no values.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from functools import lru_cache
from keyword import iskeyword
from typing import Any

from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.lazy import declaration, declarations, installed_tasks, resolve, task_packages
from automl.base.serialise import join_problems
from search.config.sections import Data, Model, Training
from search.metric import Metric


class _Unchecked:
    def problems(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class OpenData(_Unchecked, Data):
    """Data of a task whose code has not been loaded."""


@dataclass(frozen=True, kw_only=True)
class OpenModel(_Unchecked, Model):
    """Model of a task whose code has not been loaded."""


@dataclass(frozen=True, kw_only=True)
class OpenTraining(_Unchecked, Training):
    """Training of a task whose code has not been loaded."""


OPEN = (OpenData, OpenModel, OpenTraining)


def with_keys(base: type, value: object) -> type:
    """Return `base` with a field for each further key of `value` that is a valid field name."""
    if not isinstance(value, Mapping):
        return base
    names = [key for key in value if isinstance(key, str) and key.isidentifier() and not iskeyword(key)]
    taken = {field.name for field in fields(base)} | {*dir(base)}
    return _extended(base, tuple(sorted(key for key in names if key[0] != "_" and key not in taken)))


@lru_cache(maxsize=64)
def _extended(base: type, keys: tuple[str, ...]) -> type:
    further = [(key, Any) for key in keys]
    return make_dataclass(base.__name__, further, bases=(base,), frozen=True, kw_only=True) if keys else base


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Declaration of a task: everything that the command line and a search need before a training begins.

    A reference is `package.module:name`. It is imported when it is needed, so that a process of one task does
    not import the others.

    Attributes:
        data: The type of `TrialConfig.data`.
        training: The type of `TrialConfig.training`.
        metrics: The metrics that trials can be compared by, the default first. Empty if the user's code
            reports one of its own, the configuration's `training.reports`.
        model: The type of `TrialConfig.model`. A type of your own checks its values in `problems`.
        tabled: Metrics that tables of published experiments have beside the one that trials are compared by.
        drawn: True if the report of a search draws attention maps on inputs of the task.
        order: Data are recognised in this order. Data that no task recognises are a folder of images.
        dimensions: The spatial dimensions of inputs. None for a task that builds its own models.
        task: The reference of the `Task` subclass. Empty in the `spec` of a user-defined subclass, and for
            commands, whose data and models are not known.
        spaces: Modules with search spaces of the task, each in a sequence `SPACES`.
        detect: The reference of a function of a path, which returns True if the path holds data of the task.
        fit: The reference of the function that chooses settings for data of the task, see
            `automl.search.prepare`. By default they are `space`.
        space: The name of the space for data that `detect` recognises.
        overview: The reference of a function of a path, and of the `size` of images if it takes one. It
            returns a dataclass for `automl data --json` with `lines()` to print. By
            default the splits are listed.
        guesses: True if `detect` goes by the names of files alone, so that `nearly` of other tasks is asked.
        as_text: The name of the task that reads the same data as texts.
        nearly: The reference of a function of a folder. It yields what is wrong with data that are nearly in
            the layout of the task, and what to do.
        published: The reference of a sequence of datasets for `automl data --download`.
        backbones: The reference of a mapping of `backbones.Backbone` records that belong to this task alone,
            and that every task with these `dimensions` can use.
        models: The reference of a mapping of records of models, for a task that builds its own.
        subject: The reference of the function that builds a model for `automl cost`.
        loop: The reference of the function that trains a trial, if it is not the common loop.
        studies: The reference of a sequence of published experiments.
        grids: The reference of a sequence of their spaces.

    Example:
        >>> import automl
        >>> from search.config import Data, Training
        >>> error = automl.Metric(name="rmse", maximize=False, unit="kg", margin=0.02)
        >>> spec = automl.TaskSpec(data=Data, training=Training, metrics=[error])
        >>> spec.metric("").name
        'rmse'
    """

    data: type[Data]
    training: type[Training]
    metrics: Sequence[Metric]
    model: type[Model] = Model
    tabled: Sequence[Metric] = ()
    drawn: bool = False
    order: int = 0
    dimensions: int | None = None
    task: str = ""
    spaces: Sequence[str] = ()
    detect: str = ""
    fit: str = ""
    space: str = ""
    overview: str = ""
    guesses: bool = False
    as_text: str = ""
    nearly: str = ""
    published: str = ""
    backbones: str = ""
    models: str = ""
    subject: str = ""
    loop: str = ""
    studies: str = ""
    grids: str = ""

    def metric(self, name: str) -> Metric:
        """Return the metric of this name.

        Args:
            name: The name. Empty for the default metric.

        Returns:
            The metric.
        """
        return next(metric for metric in self.metrics if name in ("", metric.name))

    def check_early(self, *, metric: str | None, size: int | None) -> None:
        """Check `--metric` and `--size` of a search before its data are read and its models built.

        Args:
            metric: The name of the metric, or None for the default.
            size: The side of images or the length of texts, or None for the default.

        Raises:
            InputError: No search of the task can have them.
        """
        names, sized = [each.name for each in self.metrics], self.data.OPTIONS.get("size", "size")
        values: dict[str, Any] = {sized: size}
        problems = [] if metric in (None, *names) else [str(unknown("metric", metric, names))]
        if size is not None and sized in self.data.__dataclass_fields__:
            problems += self.data(**values).problems()
        if problems:
            raise InputError(join_problems("configuration", problems))

    def detects(self, path: str) -> bool:
        """Return True if `path` holds data of the task.

        Args:
            path: The path of the data.

        Returns:
            The result of the function `detect`, or False without one.
        """
        return bool(self.detect) and bool(resolve(self.detect)(path))


class _Tasks(Mapping[str, TaskSpec]):
    """The built-in tasks and those of installed packages, in the order in which data are recognised.

    Each is imported on first use.
    """

    def __getitem__(self, name: str) -> TaskSpec:
        result: TaskSpec = declaration(name)
        return result

    def __contains__(self, name: object) -> bool:
        return name in task_packages() or name in installed_tasks()

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in sorted(declarations(), key=lambda task: task[1].order)])

    def __len__(self) -> int:
        return len([*declarations()])


TASKS: Mapping[str, TaskSpec] = _Tasks()
# Declaration of a user-defined task whose code has not been loaded.
UNLOADED = TaskSpec(data=OpenData, model=OpenModel, training=OpenTraining, metrics=())

# Words in the names of metrics for which no direction is assumed.
LOWER_IS_BETTER = frozenset(("loss", "losses", "error", "errors", "rmse", "mae", "mse", "perplexity"))

_registered: dict[str, str] = {}


def declare_metric(
    name: str, *, minimize: bool | None = None, margin: float | None = None, unit: str | None = None
) -> Metric:
    """Return the metric that the user's own code reports.

    A name of a built-in metric, such as `accuracy`, brings its direction, scale, unit and margin.

    Args:
        name: The name.
        minimize: True if lower values are better, False if higher ones are. By default higher ones, but a
            name such as `val_loss` needs a direction.
        margin: The smallest difference that matters, in the unit of a difference.
        unit: The unit.

    Raises:
        InputError: The direction is missing, or contradicts that of the built-in metric.
    """
    known = {metric.name: metric for spec in TASKS.values() for metric in spec.metrics}
    own = Metric(name=name, maximize=not minimize, margin=0)
    metric = known.get(name, own)
    if minimize is metric.maximize:
        better, option = ("lower", "--maximize") if not metric.maximize else ("higher", "--minimize")
        raise InputError(f"a {better} {name} is better; leave {option} out, or give the metric another name")
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    if minimize is None and metric is own and words & LOWER_IS_BETTER:
        raise InputError(f"add --minimize for {name}, or --maximize if a higher value is better")
    metric = metric.declaration
    if unit is not None:
        metric = replace(metric, unit=unit, gap=unit, scale=1.0)
    return metric if margin is None else replace(metric, margin=margin)


def register(name: str, reference: str) -> str:
    """Register a name for a task in this process. Return the reference that other processes resolve."""
    _registered[name] = loading.make_absolute(reference)
    return _registered[name]


def resolve_name(task: str) -> str:
    """Return the reference of a registered task, or `task` itself with absolute paths."""
    if task in TASKS:
        return task
    return loading.make_absolute(_registered.get(task, task))


def find_spec(task: str) -> TaskSpec:
    """Return the declaration of a task without running its code.

    Returns UNLOADED for a user-defined task whose code has not been loaded. Raises InputError if the task is
    unknown.
    """
    if task in TASKS:
        return TASKS[task]
    if not loading.is_user_defined(task):
        return load_spec(task)  # raises the error
    spec = getattr(loading.get_loaded_object(task), "spec", None)
    return spec if isinstance(spec, TaskSpec) else UNLOADED


def load_spec(task: str) -> TaskSpec:
    """Return the declaration of a task, loading user-defined code. Raises InputError if it cannot."""
    if task in TASKS:
        return TASKS[task]
    known = [*TASKS, *_registered]
    spec = getattr(loading.load_object("task", "Class", task, known), "spec", None)
    if not isinstance(spec, TaskSpec) or not spec.metrics:
        raise InputError(f"task {task!r} must have an attribute `spec`, an automl.TaskSpec with metrics")
    return spec


def registered_specs() -> Iterator[tuple[str, TaskSpec]]:
    """Yield the name and the declaration of each registered task, except those that cannot be loaded."""
    for name in _registered:
        try:
            yield name, load_spec(resolve_name(name))
        except InputError as error:
            print(f"skipped task {name!r}: {error}", file=sys.stderr)
