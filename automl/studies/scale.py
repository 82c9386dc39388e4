"""The line that says what a study trained here, what its source trained, and how these differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from automl.base import loading
from automl.search.prepare import Prepared
from automl.studies.study_table import UNKNOWN, UNPRINTED
from search.config import Data, TrialConfig
from search.record import format_options, model_options


def describe_scale(setup: Mapping[str, str], ready: Prepared) -> str:
    """Return the line of a search that is ready to start, given the setup of its source."""
    task = ready.task
    train, validation = task.size("train"), task.size("validation")
    return scale_line(setup, ready.configs, f"{train + validation:,} {task.noun}", f"{validation:,}")


def scale_line(setup: Mapping[str, str], configs: Sequence[TrialConfig], inputs: str, validated: str) -> str:
    """Return the line.

    Args:
        setup: What the source trained.
        configs: Configurations of the search, the baseline first.
        inputs: Number of training and validation inputs, with their noun.
        validated: Number of validation inputs.
    """
    data = configs[0].data
    here = {
        "model": name_models(configs),
        "data": Path(data.path).name if data.path else data.source,
        "inputs": inputs,
        "size": name_size(data),
        "epochs": str(configs[0].training.epochs),
        "subset": f"{data.subset:g}",
    }
    here = {key: value for key, value in here.items() if value}
    source = {**dict.fromkeys(here, UNKNOWN), "subset": "1", **setup}
    # A user's folder may have any name, so the number of inputs shows if it is the source's data.
    same = {"data"} if here["inputs"] == source["inputs"] else set()
    known = [key for key in here if source[key] != UNKNOWN and key not in same]
    different = [key for key in known if here[key] != source[key].removeprefix(UNPRINTED)]
    return (
        f"Here: {_join(here, here)}. Source: {_join(source, here)}. Different: "
        f"{', '.join(different) or 'none of these'}. Scores here are of {validated} validation inputs, those "
        f"of the source of {source['scored']}."
    )


def name_models(configs: Sequence[TrialConfig]) -> str:
    """Return the backbones with the options that all configurations have."""
    options = [model_options(config) for config in configs]
    common = {key: value for key, value in options[0].items() if all(o.get(key) == value for o in options)}
    names = " / ".join(sorted({loading.short_name(config.model.backbone) for config in configs}))
    return f"{names} ({format_options(common)})" if common else names


def name_size(data: Data) -> str:
    """Return the size of images, or an empty string."""
    sides = [getattr(data, side) for side in ("height", "width", "size") if hasattr(data, side)]
    return f"{' x '.join(map(str, sides))} px" if sides else ""


def _join(values: Mapping[str, str], keys: Mapping[str, str]) -> str:
    return "; ".join(f"{key} {values[key]}" for key in keys)
