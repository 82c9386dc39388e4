"""Create one configuration from a space or a trial, with values set by the user.

A value is set by a parameter of the space, such as `heads`, or by a dotted key of the configuration, such as
`training.epochs`, `model.options.depth` or `model.placement.stage1.block2`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from attention import Spec
from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.lazy import contributions
from automl.base.serialise import to_json
from automl.base.text import absolute_data
from automl.judge.scheduler import latest_verdict
from automl.storage.folder import find_model_search
from backbones import find
from search.config import TrialConfig
from search.drawn import is_allowed
from search.space import Space, memory_study
from search.study import read_records
from search.trial_scheduler import rank_trials

PARTS = ("data", "model", "training")  # sections of a configuration
ALONE = ("metric", "seed")  # keys outside of the sections
NONE = ("none", "null")


def read_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` texts. Raise InputError for another form, and for a repeated key."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set must be KEY=VALUE, such as training.epochs=25; got {text!r}")
        if key in values:
            raise InputError(f"--set names {key!r} twice; give it once")
        values[key] = value
    return values


def is_dotted(key: str) -> bool:
    """Return True for a key of the configuration, False for a parameter of a space."""
    return key in ALONE or key.partition(".")[0] in PARTS


def config_of_space(space: Space, parameters: Mapping[str, str]) -> tuple[TrialConfig, dict[str, Any]]:
    """Return the space's baseline with some parameters set, and the parameters that were drawn.

    A parameter that the baseline lacks is taken from the published configuration that agrees most with
    `parameters`. If none has it, it is drawn with a fixed seed.

    Raise InputError for a parameter that the space does not suggest, and for a value out of its range.
    """
    sampler = _FixedSampler(space, parameters)
    trial = memory_study(sampler).ask()
    try:
        config = space(trial)
    except optuna.TrialPruned:
        raise InputError(f"space {space.name!r} rejects the parameters {dict(parameters)}") from None
    asked = trial.distributions
    for key, text in parameters.items():
        if key not in asked:
            ranges = "; ".join(f"{name} {_range(kind)}" for name, kind in asked.items())
            raise InputError(
                f"space {space.name!r} does not ask for {key!r} with these values; it asks for {ranges}. "
                f"Keys of the configuration have a dot: model.options.NAME, training.NAME, data.NAME"
            )
        _parameter(space, key, text, asked[key])  # ranges with a single value are not sampled
    return config, sampler.drawn


def config_of_trial(name: str, storage: str) -> TrialConfig:
    """Return the configuration of a search's confirmed winner or best trial, or of the trial `SEARCH:NUMBER`.

    Raise InputError if the search or trial does not exist.
    """
    search, colon, number = name.partition(":")
    folder, metadata = find_model_search(search, storage)
    records = read_records(folder, metadata.name, metadata.plan.needed)
    if colon:
        chosen = next((record for record in records if str(record.number) == number), None)
        if chosen is None:
            numbers = ", ".join(str(record.number) for record in records) or "none yet"
            raise InputError(f"search {search!r} has no trial {number!r}; its trials are {numbers}")
        return chosen.config
    latest = latest_verdict(folder, metadata)
    if latest is not None and latest[1].winner is not None:
        return latest[1].winner.config
    complete = rank_trials(records, metadata.plan)
    if not complete:
        raise InputError(f"search {search!r} has no completed trial; name one of its trials, {search}:NUMBER")
    return complete[0].config


def set_values(config: TrialConfig, values: Mapping[str, str]) -> TrialConfig:
    """Return `config` with values at dotted keys, parsed by the types of the keys.

    Another backbone gets its default options and no placement. Raise InputError for an unknown key or an
    invalid value.
    """
    whole = config.to_json()
    for key in sorted(values, key=lambda key: key != "model.backbone"):
        if not is_dotted(key):
            raise InputError(
                f"--set {key}: a parameter needs the space that it is of, by --space; keys of the "
                f"configuration begin with {', '.join(f'{part}.' for part in PARTS)} or are "
                f"{' or '.join(ALONE)}"
            )
        _put(whole, config, key, values[key])
    return TrialConfig.from_json(whole).load()


def _put(whole: dict[str, Any], config: TrialConfig, key: str, text: str) -> None:
    part, _, name = key.partition(".")
    if part in ALONE:
        whole[part] = text if part == "metric" else _scalar(text)
        return
    hints = get_type_hints(type(getattr(config, part)))
    field, _, rest = name.partition(".")
    if field not in hints:
        raise unknown(f"key of the {part} of task {config.task}", field, hints)
    if rest and not (part == "model" and field in ("options", "placement")):
        raise InputError(f"--set {key}: {part}.{field} has no further keys; give {part}.{field}=VALUE")
    if field == "placement" and rest:
        whole[part][field] = {**whole[part][field], rest: to_json(Spec.parse(text, f"--set {key}"))}
    elif field == "options" and rest:
        whole[part][field] = {**whole[part][field], rest: read_option(whole[part]["backbone"], rest, text)}
    elif field == "backbone":
        name = loading.make_absolute(text)
        if name != whole[part]["backbone"]:
            whole[part] |= {"backbone": name, "code": None, "options": {}, "placement": {}}
    elif part == "data" and field == "path":
        whole[part][field] = absolute_data(text)
    else:
        whole[part][field] = _typed(hints[field], text)


def read_option(backbone: str, name: str, text: str) -> Any:
    """Parse the value of a backbone's option. Raise InputError for an unknown backbone."""
    models: Mapping[str, Any] = next((models for models in contributions("models") if backbone in models), {})
    record = models.get(backbone) or find(backbone)
    return _typed(record.hints.get(name), text)


def _typed(hint: Any, text: str) -> Any:
    """Parse a text by a type hint. The type is checked later."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if type(None) in kinds and text.lower() in NONE:
        return None
    if str in kinds or any(get_origin(kind) is Literal and text in get_args(kind) for kind in kinds):
        return text
    return _scalar(text)


def _scalar(text: str) -> Any:
    """Parse a number, truth value, list or object. Return any other text unchanged."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    parsers: tuple[Callable[[str], Any], ...] = (json.loads, float)  # JSON does not have `.5`
    for parse in parsers:
        with suppress(ValueError):
            return parse(text)
    return text


class _FixedSampler(optuna.samplers.RandomSampler):
    """Sampler that prefers the set parameters, then the baseline's, then published ones."""

    def __init__(self, space: Space, parameters: Mapping[str, str]) -> None:
        super().__init__(seed=0)
        self.space, self.parameters = space, parameters
        self.drawn: dict[str, Any] = {}

        def agreeing(params: Mapping[str, Any]) -> int:
            return sum(str(params.get(key)) == text for key, text in parameters.items())

        published = sorted(space.free(), key=agreeing, reverse=True)
        self.defaults = [space.baseline, *published]
        if published and agreeing(published[0]) > agreeing(space.baseline):
            self.defaults = [*published[:1], space.baseline, *published[1:]]

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in self.parameters:
            return _parameter(self.space, param_name, self.parameters[param_name], param_distribution)
        for params in self.defaults:
            if param_name in params and is_allowed(params[param_name], param_distribution):
                return params[param_name]
        value = super().sample_independent(study, trial, param_name, param_distribution)
        self.drawn[param_name] = value
        return value


def _parameter(space: Space, name: str, text: str, kind: BaseDistribution) -> Any:
    """Parse the value of a parameter. Raise InputError if it is out of range."""
    if isinstance(kind, CategoricalDistribution):
        for choice in kind.choices:
            if text == str(choice) or (not isinstance(choice, str) and _scalar(text) == choice):
                return choice
    else:
        value = _scalar(text)
        if is_allowed(value, kind):
            return value
    raise InputError(
        f"--set {name}: space {space.name!r} takes {_range(kind)}; got {text!r}. Set other values by a key "
        f"of the configuration, which has a dot: training.NAME, model.options.NAME"
    )


def _range(kind: Any) -> str:
    if isinstance(kind, CategoricalDistribution):
        return f"one of {', '.join(map(str, kind.choices))}"
    return f"{kind.low:g} to {kind.high:g}"
