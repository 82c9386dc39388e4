"""Hyperparameters in words: `adamw.learning_rate` is `learning rate (adamw)`, site 3 is its name."""

import re
from collections.abc import Sequence
from functools import cache

from optuna.distributions import BaseDistribution, CategoricalDistribution

from automl.report.read import Trial

_SHORT = {"ks": "kernel size", "embed_dim": "width", "mlp": "MLP"}
_SITE = re.compile(r"(?:(.+)\.)?site(\d+)")


@cache
def words(name: str) -> str:
    """Return the name of a hyperparameter in words. Names of user-defined spaces only lose underscores."""
    prefix, _, rest = name.rpartition(".")
    match = re.fullmatch(r"(.*?)_?(\d+)", rest)
    stem, module = (match[1], match[2]) if match and match[1] else (rest, "")
    of = [prefix] if prefix else []
    if module and stem.startswith("decomposed_"):
        stem, of = stem.removeprefix("decomposed_"), ["decomposed"]
    text = _SHORT.get(stem, stem.replace("_", " "))
    if module:
        text += f" of module {module}"
    return text + (f" ({', '.join(of)})" if of else "")


def is_site(name: str, trials: Sequence[Trial]) -> bool:
    """Return True if a parameter is the site of the n-th module in each trial that has it."""
    match = _SITE.fullmatch(name)
    having = [trial for trial in trials if name in trial.params]
    return (
        match is not None
        and bool(having)
        and all(len(trial.record.config.model.placement) >= int(match[2]) for trial in having)
    )


def site(name: str, trial: Trial) -> str:
    """Return the site that a parameter of `is_site` has in a trial."""
    match = _SITE.fullmatch(name)
    assert match is not None
    return list(trial.record.config.model.placement)[int(match[2]) - 1]


def value(thing: object) -> str:
    """Return a value of a hyperparameter as text."""
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    return f"{thing:.4g}" if isinstance(thing, float) else str(thing)


def names(name: str, kind: BaseDistribution, trials: Sequence[Trial]) -> list[str] | None:
    """Return the categories of a parameter in their order, numbers sorted. Return None for a number."""
    if isinstance(kind, CategoricalDistribution):
        choices = list(kind.choices)
        if all(isinstance(c, int | float) and not isinstance(c, bool) for c in choices):
            choices.sort(key=lambda c: float(c or 0))
        return [value(choice) for choice in choices]
    if is_site(name, trials):
        sites = {trial.params[name]: site(name, trial) for trial in trials if name in trial.params}
        return list(dict.fromkeys(sites[index] for index in sorted(sites)))
    return None
