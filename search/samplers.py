"""Samplers: Optuna's, the sampler of placements, or a user-defined `package.module:Sampler`."""

from collections.abc import Callable, Mapping

import optuna
from optuna.samplers import BaseSampler

from automl.base.errors import InputError, unknown
from automl.base.loading import load_module
from search.drawn import FEW, Drawn
from search.grid import list_values
from search.placement_sampler import PlacementSampler
from search.space import GRID

AUTO = "auto"

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    # Pending trials count as bad ones, so that no point is proposed twice while it is tried. TPE is
    # multivariate. With `group=True` it is slower, and no better on tables of placements.
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "placement": lambda seed: PlacementSampler(seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}


def choose_sampler(name: str, drawn: Drawn) -> str:
    """Return `name`, or for `auto` the sampler that fits the space.

    For a space of placements it is `placement`, which finds good placements in fewer trials
    (benchmarks/bench_placements.py). Otherwise it is `tpe`.
    """
    if name != AUTO:
        return name
    return "placement" if drawn.has_placements else "tpe"


def load_sampler(name: str, *, seed: int) -> BaseSampler:
    """Load a sampler by name or `package.module:Sampler`, or raise InputError if it is unknown or unfit."""
    if name in SAMPLERS:
        return SAMPLERS[name](seed)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InputError(
            f"{unknown('sampler', name, [*SAMPLERS, GRID])} Or name your own as package.module:Sampler."
        )
    try:
        sampler_class = getattr(load_module(module), attribute)
        try:
            sampler = sampler_class(seed=seed)
        except TypeError:
            sampler = sampler_class()
    except Exception as error:
        raise InputError(f"--sampler {name} failed to load: {type(error).__name__}: {error}") from error
    if not isinstance(sampler, BaseSampler):
        raise InputError(f"--sampler {name} must be an optuna sampler; got {type(sampler).__name__}")
    return sampler


def check_sampler(name: str, drawn: Drawn) -> None:
    """Raise InputError if the sampler cannot draw from the space."""
    if name == "placement" and not drawn.has_placements:
        raise InputError(
            f"--sampler placement needs a space that draws placements with search.choices; space "
            f"{drawn.space.name!r} draws none: use tpe"
        )
    if name == GRID:
        draws = [trial.distributions for trial in drawn.trials(FEW)]
        continuous = {
            key for draw in draws for key, kind in draw.items() if not (kind.single() or list_values(kind))
        }
        if continuous:
            raise InputError(
                f"--sampler grid needs finitely many choices; {', '.join(sorted(continuous))} of space "
                f"{drawn.space.name!r} have no step. Use another sampler, or set a step."
            )
        _ = drawn.cells  # raises InputError
