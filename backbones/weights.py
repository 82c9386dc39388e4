"""Trained weights for a new model: selects the backbone's and checks that they fit.

Inserted attention in the weights is ignored, so that a backbone can start with any placement.
"""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from attention.decoding import Mixer
from automl.base.errors import InputError

ATTENTION = ("site_attention", "site_mixer")  # Names of inserted modules in any model.
_SHOWN = 4  # Maximum number of keys in a message.
_WRAPPERS = ("module.", "classifier.", "model.", "_orig_mod.")  # Prefixes that wrappers add to every key.


def load(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    classes: int,
    source: str,
    without: Collection[str] = (),
) -> list[str]:
    """Load `weights` into the backbone of `model`. Its attention does not change.

    Args:
        model: The model.
        weights: Weights by key.
        classes: Number of labels of the model. Weights of a head for another number are not loaded.
        source: Description of the weights for messages.
        without: Keys that the weights may have and the model lacks.

    Returns:
        The keys that were not loaded.

    Raises:
        InputError: The weights do not fit. The message names the keys.
    """
    own = {key: value for key, value in model.state_dict().items() if not _is_attention(key)}
    replaced = [f"{path}." for path, module in model.named_modules() if isinstance(module, Mixer)]
    loaded = _unwrapped(weights, own)
    hosts = tuple({key.partition("site_mixer")[0] for key in loaded if "site_mixer" in key.split(".")})
    loaded = {k: value for k, value in loaded.items() if not _is_attention(k) and k not in without}
    missing = [key for key in own if key not in loaded and not key.endswith("num_batches_tracked")]
    unknown = [key for key in loaded if key not in own and not key.startswith(tuple(replaced))]
    if hosts and missing and not unknown and all(key.startswith(hosts) for key in missing):
        raise InputError(
            f"the weights {source} lack {len(hosts)} layers of {type(model).__name__}, which another mixer "
            f"replaces there, such as {min(hosts)[:-1]}. Name a trial or an export whose layers are all full"
        )
    if missing or unknown:
        reasons = [f"they lack {_some(missing)}"] * bool(missing)
        reasons += [f"the model lacks {_some(unknown)}"] * bool(unknown)
        raise _unfit(source, model, "; ".join(reasons))
    loaded = {key: value for key, value in loaded.items() if key in own}
    other = [key for key, value in loaded.items() if value.shape != own[key].shape]
    head = [
        key
        for key in other
        if own[key].shape[:1] == (classes,) and loaded[key].shape[1:] == own[key].shape[1:]
    ]
    if wrong := [key for key in other if key not in head]:
        shapes = [f"{key} is {(*loaded[key].shape,)} there and {(*own[key].shape,)} here" for key in wrong]
        raise _unfit(source, model, _some(shapes))
    state = model.state_dict()  # This includes the metadata on the version of the keys.
    state.update({key: value for key, value in loaded.items() if key not in head})
    model.load_state_dict(state)
    return head


def _is_attention(key: str) -> bool:
    return any(part in ATTENTION for part in key.split("."))


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove the prefixes of wrappers from every key, unless the model has such keys itself."""
    for prefix in _WRAPPERS:
        if (
            weights
            and all(key.startswith(prefix) for key in weights)
            and not any(key in own for key in weights)
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
