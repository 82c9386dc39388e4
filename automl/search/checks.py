"""Check settings before anything is trained."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from automl.base.errors import InputError
from automl.config.settings import Settings
from automl.export.formats import find_missing_formats
from automl.storage.folder import SearchMetadata, find_model_search
from automl.tasks import attention_check, open_task
from automl.tasks.initial import choose_weights
from search.config import PUBLISHED, TrialConfig
from search.grid import GRID, Cell, grid_cells
from search.samplers import check_draws_placements, check_sampler, choose_sampler, load_sampler
from search.space import Space, draw_randomly, same_parameters

ATTENTION_DRAWS = 400  # Enough for nearly all combinations of a type, its options and the shapes of sites.


def with_weights(settings: Settings) -> Settings:
    """Return the settings with the file of the weights and its hash."""
    if settings.weights in (None, PUBLISHED) or settings.weights_digest:
        return settings
    assert settings.weights is not None
    file, digest = choose_weights(settings.weights)
    return replace(settings, weights=file, weights_digest=digest)


def with_sampler(settings: Settings, space: Space) -> Settings:
    """Return the settings with a sampler chosen for `auto`. Raise InputError if the sampler does not fit."""
    objectives = (settings.objective or "").count(",") + 1
    sampler = choose_sampler(settings.sampler, space, objectives=objectives)
    if sampler != GRID:
        load_sampler(sampler, seed=settings.seed, objectives=objectives)
    check_sampler(sampler, space)
    if settings.shares_training:
        check_draws_placements("--init shared", space, "use --init scratch")
    if settings.prior is not None:
        check_draws_placements("--prior", space, "leave --prior out")
    return replace(settings, sampler=sampler)


def cells_of(settings: Settings, space: Space) -> list[Cell]:
    """Return the cells of a grid. Raise InputError if `--trials` is smaller than their number."""
    cells = grid_cells(space, settings.adjust)
    count = len(cells) * settings.seeds
    if settings.trials is not None and settings.trials < count:
        seeds = "" if settings.seeds == 1 else f" with {settings.seeds} seeds each"
        raise InputError(
            f"--trials must be at least {count} for this grid of {len(cells)} cells{seeds}; got "
            f"{settings.trials}. Leave --trials out, as a grid trains all its cells"
        )
    return cells


def find_warm_start(settings: Settings, mark: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and the metadata of the search `--warm-start`.

    Raise InputError if it does not exist, or its space draws other parameters.
    """
    assert settings.warm_start is not None
    folder, other = find_model_search(settings.warm_start, settings.storage)
    if not same_parameters(other.fingerprint, mark):
        raise InputError(
            f"search {settings.warm_start!r} was made with another space ({other.settings.space_name}); "
            f"--warm-start needs one that draws the same parameters"
        )
    return folder, other


def check_attentions(space: Space, settings: Settings, draws: Sequence[TrialConfig]) -> None:
    """Check attention types that are not in the table, at the sites and with the options of many draws.

    `draws` are some draws of the space. If they have no such type, nothing is checked.

    Name the formats that an export of a model with one will leave out.

    Raise InputError if a module cannot be inserted, trained or trusted to compute each input by itself.
    """
    if not any(spec.is_foreign for config in draws for spec in config.model.placement.values()):
        return
    more = [settings.adjust(config) for _, config in draw_randomly(space, ATTENTION_DRAWS) if config]
    for spec, site in attention_check.check_attentions(more, settings.runtime):
        for file, reason in find_missing_formats(spec, site).items():
            print(f"note      an export with {spec.name} will have no {file}: {reason}", file=sys.stderr)


def check_models(configs: Sequence[TrialConfig], settings: Settings) -> None:
    """Build and try each backbone of the space once, with its initial weights.

    Raise InputError if a model cannot be built or trained, or does not fit the data or the weights.
    """
    seen: set[str] = set()
    tried: set[str] = set()
    for config in configs:
        bare = config.change(model={"placement": {}}, seed=0).to_json()
        mark = json.dumps([bare["model"], bare["data"]], sort_keys=True)
        backbone = config.model.backbone
        if mark in seen or (backbone in tried and not config.model.weights):
            continue
        seen.add(mark)
        task = open_task(config, settings.runtime)
        if backbone not in tried:
            tried.add(backbone)
            for note in task.notes():
                print(note, file=sys.stderr)
        stay_new = task.initialise(task.model())
        if stay_new and len(seen) == 1:
            print(
                f"these weights of {config.model.weights} are for other labels and start at random: "
                f"{', '.join(stay_new)}",
                file=sys.stderr,
            )
