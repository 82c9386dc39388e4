"""User settings of a search: one flat form with names, parsed once to the four nouns of `search.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike, fspath
from typing import Any, ClassVar

from automl.base import live_objects, loading
from automl.base.errors import InputError, unknown
from automl.base.options import document_fields, option_name
from automl.base.serialise import convert_fields, from_json
from automl.base.units import pluralize
from automl.config.nouns import EQUAL, OF_FUNCTIONS, OF_TASKS, REFEREE, Place, Question, SearchPlan, Terms
from automl.config.search_options import SearchOptions
from search.space import space_name

# Settings of where and when trials run. They do not change what is searched.
SCHEDULING_OPTIONS = ("resource", "label", "concurrent", "callbacks")
# From Python, paths and numbers are accepted where the command line has text.
TEXTS = ("data", "weights", "storage", "max_params", "max_macs", "max_memory", "max_cache")


@document_fields
@dataclass(frozen=True, kw_only=True, init=False)
class Settings(SearchOptions):
    """Settings of a search. `run_search` takes them as keyword arguments.

    They are stored in `search.json`. A function is stored by its name, and only callbacks given by name
    are stored.

    Raises:
        InputError: A value is invalid.

    Example:
        >>> import automl
        >>> automl.Settings(space="digits", max_params=5e6).max_params
        '5000000'
    """

    REMOVED: ClassVar = {"init": "scratch", "shared_trainings": 3, "objective": None}

    def __init__(self, *arguments: object, **settings: Any) -> None:
        # Reject unknown settings, as the command line rejects unknown options.
        if arguments:
            raise InputError(
                f"settings must be given by name, as in run_search(space='digits'); got {arguments[0]!r} "
                f"without a name"
            )
        known = [field.name for field in fields(Settings)]
        for key in settings:
            if key not in known:
                raise unknown("setting", key, known)
        super().__init__(**normalise(settings))
        _ = self.parsed  # raises InputError for an invalid value

    @cached_property
    def parsed(self) -> "ParsedSettings":
        """The four nouns."""

        def part(kind: Any) -> Any:
            return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

        return ParsedSettings(
            question=part(Question), plan=part(SearchPlan), terms=part(Terms), place=part(Place)
        )


@dataclass(frozen=True, kw_only=True)
class ParsedSettings:
    """Settings of a search, as four nouns: question, plan, terms and place.

    `search.json` has them in the form of `Settings`.
    """

    question: Question
    plan: SearchPlan
    terms: Terms
    place: Place

    def __post_init__(self) -> None:
        question, plan, terms = self.question, self.plan, self.terms
        choices = ("time", "none") if question.space == REFEREE else EQUAL
        if terms.equal not in choices:
            raise unknown("value of --equal", terms.equal, choices)
        values = self.values()
        changed = {field.name for field in fields(SearchOptions) if values[field.name] != field.default}
        if others := [key for key in OF_FUNCTIONS if key in changed and question.train is None]:
            raise InputError(f"{option_name(others[0])} needs --train; built-in tasks have their metrics")
        if others := [key for key in OF_TASKS if key in changed and question.train is not None]:
            raise InputError(f"{option_name(others[0])} is for built-in tasks; leave it out with --train")
        if not plan.is_grid and terms.test:
            raise InputError(
                "--test needs --sampler grid, which selects nothing by its scores. Add --sampler grid, "
                "or test a finished search with automl confirm"
            )
        if not plan.is_grid and plan.seeds > 1:
            raise InputError(
                f"--seeds {plan.seeds} needs --sampler grid, to repeat its cells, or --confirm, to train "
                f"finalists with {pluralize(plan.seeds, 'seeds')}. Add one of them"
            )

    @classmethod
    def from_json(cls, value: object) -> "ParsedSettings":
        """Read the settings in `search.json`."""
        return from_json(Settings, value, "the values").parsed

    def to_json(self) -> dict[str, Any]:
        """Return the settings in the form of `Settings`, with callbacks by name."""
        names = [callback for callback in self.place.callbacks if isinstance(callback, str)]
        nouns = (self.question, self.plan, self.terms, replace(self.place, callbacks=names))
        values = {key: value for noun in nouns for key, value in convert_fields(noun).items()}
        return {**values, "space": self.question.space_name}

    def values(self) -> dict[str, Any]:
        """Return the values of all settings by name."""
        return {**vars(self.question), **vars(self.plan), **vars(self.terms), **vars(self.place)}

    def change(self, **nouns: Mapping[str, Any]) -> "ParsedSettings":
        """Return the settings with other values of some nouns, as in `change(place={"name": "mine"})`."""
        return replace(
            self,
            **{name: replace(getattr(self, name), **normalise(new)) for name, new in nouns.items()},
        )

    def absolute(self) -> "ParsedSettings":
        """Return the settings with absolute paths of data and code files."""
        names = [loading.make_absolute(c) if isinstance(c, str) else c for c in self.place.callbacks]
        new = self.change(
            plan={"sampler": loading.make_absolute(self.plan.sampler)}, place={"callbacks": names}
        )
        return replace(new, question=self.question.absolute())

    @property
    def grid_seeds(self) -> list[int]:
        """Seeds of each cell of a grid."""
        return [(self.question.seed + i) % 2**32 for i in range(self.plan.seeds)]

    def user_code(self) -> list[str]:
        """Return the names of the user-defined code that a search with these settings runs."""
        question = self.question
        values = (question.space, question.backbone, *(question.attention_types or ()), self.plan.sampler)
        names = [name for name in (*values, *self.place.callbacks) if isinstance(name, str)]
        return [name for name in names if loading.is_user_defined(name)]


def normalise(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the form of `search.json`, from what Python, JSON and the command line have."""
    values = dict(settings)
    for key, value in settings.items():
        if SearchOptions.__dataclass_fields__[key].default == ():
            values[key] = tuple(value or ()) if isinstance(value or (), list | tuple) else (value,)
        elif (
            key == "attention" and isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        ):
            values[key] = ",".join(value)
        elif key in TEXTS and isinstance(value, PathLike):
            values[key] = fspath(value)
        elif key in TEXTS and key.startswith("max_") and type(value) in (int, float):
            values[key] = f"{value:.15g}"
        elif key == "gpus_per_trial" and isinstance(value, str):
            try:
                values[key] = None if value == "auto" else float(value)
            except ValueError:
                raise InputError(
                    f"--gpus-per-trial must be auto or a number such as 0.5; got {value!r}"
                ) from None
    if (train := values.get("train")) is not None:
        values |= _adopt_function(train, values.get("space", ""))
    return values


def _adopt_function(train: Any, space: Any) -> dict[str, str]:
    """Make the training function the search's space."""
    if callable(train):
        space = "" if space is train else space
        train = live_objects.name_of(train)
    if not isinstance(train, str):
        raise InputError(f"--train must be file.py:function, or from Python a function; got {train!r}")
    if space not in ("", train):
        raise InputError(f"--train is a space of its own; leave out --space {space_name(space)}")
    return {"train": train, "space": train}
