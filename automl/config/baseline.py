"""The configuration of trial 0, the baseline of a search."""

from automl.base.errors import InputError
from automl.config.settings import Settings
from search.config import TrialConfig
from search.fixed_parameters import check_fixed_parameters
from search.space import Space, draw_randomly


def draw_baseline(space: Space, settings: Settings) -> TrialConfig:
    """Draw the configuration of trial 0, independently of any study.

    Raise InputError if the space's `baseline` or enqueued trials do not fit it (`search.fixed_parameters`).
    """
    check_fixed_parameters(space)
    _, config = next(draw_randomly(space, 1, seed=settings.seed, first=space.baseline))
    if config is None:
        raise InputError(
            f"space {space.name!r} raised TrialPruned for its own baseline; change its `baseline`"
        )
    return settings.adjust(config)
