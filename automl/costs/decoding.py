"""The memory that a causal decoder keeps while it decodes: keys, values and states."""

from automl.base.errors import InputError
from automl.base.units import format_count
from search.config import LanguageData, LanguageModel, TrialConfig

BYTES = 4  # of a value, in float32, as in an exported model


def decoding_context(config: TrialConfig) -> int:
    """Return the number of tokens at which the cost of decoding counts, or 0 for another task."""
    data = config.data
    return (data.decoding or data.context) if isinstance(data, LanguageData) else 0


def cache_bytes(config: TrialConfig) -> int:
    """Return the bytes of keys, values and states at the context of the configuration, or 0 for another task.

    Raises:
        InputError: A type of the placement cannot decode.
    """
    from attention.attention_table import find_attention  # imports torch, which takes seconds

    model, context = config.model, decoding_context(config)
    if not isinstance(model, LanguageModel):
        return 0
    values = (model.depth - len(model.placement)) * model.cache_values(context)
    for spec in model.placement.values():
        state = find_attention(spec.type).state
        if state is None:
            raise InputError(
                f"--max-cache needs the state of attention {spec.name}, which has none; leave it out"
            )
        values += state(model.width, context, **spec.options)
    return BYTES * values


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
        others = best.model.depth - len(names) if isinstance(best.model, LanguageModel) else 0
        layers = [f"{len(names)} of {names[0]}"] * bool(names) + [f"{others} of full attention"] * bool(
            others
        )
        raise InputError(
            f"no placement meets --max-cache {format_count(limit)} at {decoding_context(best):,} tokens: the "
            f"cheapest has {' and '.join(layers)} and keeps {format_count(least)} bytes. Raise the limit, or "
            f"shorten --context"
        )
