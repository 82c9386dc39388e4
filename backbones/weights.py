"""Trained weights for a new model: what of them is the backbone's, and whether they fit.

Attention of ours that the weights hold stays behind, so that a backbone can start with any placement.
"""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from attention import InputError
from backbones.mixer import Mixer

ATTENTION = ("site_attention", "site_mixer")  # modules of ours, whatever model they are in
_SHOWN = 4  # keys in a message
_WRAPPERS = ("module.", "classifier.", "model.", "_orig_mod.")  # what others put before every key


def load(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    classes: int,
    source: str,
    without: Collection[str] = (),
) -> list[str]:
    """Put `weights` into the backbone of `model`; its attention stays as it is.

    classes: the number of labels of the model; weights that are for another number stay new.
    source: what they are, for messages. without: keys that the weights may have and the model lacks.
    Returns the keys that stay new. Raises InputError, naming keys, for weights that do not fit.
    """
    own = {key: value for key, value in model.state_dict().items() if not _is_attention(key)}
    replaced = [f"{path}." for path, module in model.named_modules() if isinstance(module, Mixer)]
    given = _unwrapped({key: value for key, value in weights.items() if not _is_attention(key)}, own)
    given = {key: value for key, value in given.items() if key not in without}
    missing = [key for key in own if key not in given and not key.endswith("num_batches_tracked")]
    unknown = [key for key in given if key not in own and not key.startswith(tuple(replaced))]
    if missing or unknown:
        said = [f"they lack {_some(missing)}"] * bool(missing) + [f"the model lacks {_some(unknown)}"] * bool(
            unknown
        )
        raise _unfit(source, model, "; ".join(said))
    given = {key: value for key, value in given.items() if key in own}
    other = [key for key, value in given.items() if value.shape != own[key].shape]
    head = [
        key
        for key in other
        if own[key].shape[:1] == (classes,) and given[key].shape[1:] == own[key].shape[1:]
    ]
    if wrong := [key for key in other if key not in head]:
        shapes = [f"{key} is {(*given[key].shape,)} there and {(*own[key].shape,)} here" for key in wrong]
        raise _unfit(source, model, _some(shapes))
    state = model.state_dict()  # with what a model notes of the version of its keys
    state.update({key: value for key, value in given.items() if key not in head})
    model.load_state_dict(state)
    return head


def _is_attention(key: str) -> bool:
    return any(part in ATTENTION for part in key.split("."))


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without what wrappers put before every key, unless the model has such keys itself."""
    for prefix in _WRAPPERS:
        if (
            weights
            and all(key.startswith(prefix) for key in weights)
            and not all(key in own for key in weights)
        ):
            return _unwrapped({key.removeprefix(prefix): value for key, value in weights.items()}, own)
    return weights


def _unfit(source: str, model: nn.Module, why: str) -> InputError:
    return InputError(
        f"the weights {source} do not fit {type(model).__name__}: {why}. Take weights of the same "
        f"backbone with the same options, or another --backbone"
    )


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
