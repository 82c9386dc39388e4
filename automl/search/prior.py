"""Read the effects of placements that earlier searches estimated, for `--prior`."""

from collections.abc import Collection, Iterable, Mapping

from optuna import Trial
from optuna.trial import FrozenTrial, TrialState

from automl.base.errors import InputError
from automl.config.settings import Settings
from automl.storage.folder import find_model_search
from search.placement_effects import Effect, Prior, parse_placement
from search.placement_sampler import fit_model
from search.prior import count_sites, transfer_effects
from search.space import Space, draw_randomly
from search.study import open_study

DRAWS = 100  # enough to draw each type and each backbone of a space


def read_effects(settings: Settings, space: Space) -> Prior:
    """Return the effects of the searches `--prior` at the sites of a space.

    Raise InputError if a search does not exist, has no completed trial with a module or several objectives,
    or shares no attention type with the space.
    """
    drawn = [trial for trial, _ in draw_randomly(space, DRAWS)]
    sites, types = count_sites(drawn), _types(drawn)
    return {name: _read(name, settings.storage, sites, types) for name in settings.earlier_searches}


def _read(name: str, storage: str, sites: Mapping[str, int], types: Collection[str]) -> dict[Effect, float]:
    folder, metadata = find_model_search(name, storage)
    try:
        study = open_study(folder, name=metadata.name)
    except KeyError:  # a search that was killed before its first trial
        study = None
    if study is not None and len(study.directions) > 1:
        raise InputError(f"--prior needs searches with one objective; {name!r} has several")
    complete = [] if study is None else study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    model = None if study is None else fit_model(study)
    earlier, earlier_sites = _types(complete), count_sites(complete)
    if model is None or not earlier_sites:
        raise InputError(f"--prior needs searches with completed trials of placements; {name!r} has none")
    if not earlier & set(types):
        raise InputError(
            f"--prior needs searches with a type of this space ({', '.join(sorted(types))}); {name!r} has "
            f"{', '.join(sorted(earlier))}"
        )
    return transfer_effects(model, earlier_sites, sites)


def _types(trials: Iterable[FrozenTrial | Trial]) -> set[str]:
    """Return the attention types of the modules of trials."""
    placements = (parse_placement(trial.params, trial.distributions) for trial in trials)
    return {module.type for placement in placements if placement for module in placement.modules}
