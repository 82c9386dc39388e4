"""A finalist that `automl solve` has chosen, in a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.serialise import read_json
from automl.storage.metadata import SearchMetadata
from search.config import TrialConfig
from search.record import TrialRecord
from search.space import Space


@dataclass(frozen=True, kw_only=True)
class SolvedPlacement:
    """Answer of `automl solve`: a placement to confirm, as parameters of the search's space.

    It holds no names of code, so a file of another author can only choose from the space of the search.

    Attributes:
        search: The name of the search.
        identity: The identifier of the search.
        trial: The number of the trial whose hyperparameters it has.
        params: The parameters of the placement.
    """

    search: str
    identity: str
    trial: int
    params: dict[str, Any]


def with_placement(space: Space, config: TrialConfig, params: Mapping[str, Any]) -> TrialConfig:
    """Return a configuration with the placement that a space draws from all its parameters.

    Raises InputError if the space rejects them.
    """
    try:
        drawn = space(optuna.trial.FixedTrial(dict(params)))  # type: ignore[arg-type]
    except optuna.TrialPruned:
        raise InputError(f"space {space.name!r} rejects the placement {dict(params)}") from None
    return config.change(model={"placement": drawn.model.placement})


def read_finalist(
    file: Path, metadata: SearchMetadata, space: Space, trials: Iterable[TrialRecord]
) -> TrialRecord:
    """Return the finalist in a file of `automl solve`, as a trial of the search with these `trials`.

    Raises InputError if the file is damaged, or is that of another search.
    """
    solved = read_json(SolvedPlacement, file, strict=False)
    if solved.identity != metadata.identity:
        again = format_command("solve", metadata.name, metadata.settings.storage, "--out", str(file))
        raise InputError(f"{file} is the answer of another search, {solved.search!r}; run {again}")
    trial = next((trial for trial in trials if trial.number == solved.trial), None)
    if trial is None:
        raise InputError(f"{file} names trial {solved.trial}, which search {metadata.name!r} does not have")
    config = with_placement(space, trial.config, {**trial.params, **solved.params})
    if space.as_baseline(config) == config:
        raise InputError(f"{file} has the baseline as its answer, so there is nothing to confirm")
    return TrialRecord(trial.number, config)
