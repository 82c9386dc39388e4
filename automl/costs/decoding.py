"""The memory that a causal decoder keeps while it decodes: keys, values and states."""

from automl.base.errors import InputError
from automl.base.units import format_count
from search.config import TrialConfig


def cache_bytes(config: TrialConfig) -> int:
    """Return the bytes of keys, values and states at the context of the configuration, or 0 for another task.

    Raises:
        InputError: A type of the placement cannot decode.
    """
    return config.model.cache_bytes(config.data.decoding_context)


def check_cache(configs: list[TrialConfig], limit: float) -> None:
    """Raise `InputError` if no placement keeps the limit of `--max-cache` [bytes]. Name the cheapest."""
    fewest = max(configs, key=lambda config: len(config.model.placement))
    specs = {str(spec): spec for config in configs for spec in config.model.placement.values()}
    cheapest = [
        fewest.change(model={"placement": dict.fromkeys(fewest.model.placement, spec)})
        for spec in specs.values()
    ]
    best = min([*configs, *cheapest], key=cache_bytes)
    if (least := cache_bytes(best)) > limit:
        names = [spec.name for spec in best.model.placement.values()]
        others = len(best.model.kinds) - len(names)
        layers = [f"{len(names)} of {names[0]}"] * bool(names) + [f"{others} of full attention"] * bool(
            others
        )
        context = best.data.decoding_context
        raise InputError(
            f"no placement meets --max-cache {format_count(limit)} at {context:,} tokens: the cheapest has "
            f"{' and '.join(layers)} and keeps {format_count(least)} bytes. Raise the limit, or "
            f"shorten --context"
        )
