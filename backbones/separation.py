"""Tests by changing inputs whether outputs depend on other examples of the batch, and on padding."""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from backbones.example import Example, arguments
from backbones.probe import Probe, are_equal, probe
from backbones.torch_internals import tree_leaves

EXAMPLES, SECOND = "another example of the batch", "another element of the first dimension"
OTHER_KERNELS = 1e-4  # Relative difference that rounding may cause between inputs of different lengths.


def find_influences(model: nn.Module, example: Example) -> frozenset[str]:
    """Return what changes the output of a model although it is none of the output's own input.

    Args:
        model: The model.
        example: An input of the model with tokens, as for `is_causal`. A mask of them is a tensor `(B, N)` of
            bools, or of integers in an argument with `mask` in its name. If it shows padding at one end, the
            other end is not tested.

    Returns:
        Descriptions, such as `EXAMPLES`, or `SECOND` if no output depends on other examples of a batch in the
        second dimension. Empty if the model cannot run on random values.
    """
    influences = set[str]()
    # Sites need only the shapes of the example. Its values and other lengths may be none of an input.
    with suppress(Exception), probe(model, example) as run:
        if run is not None and len(run.output) == len(run.x):
            ends = (slice(1), slice(1, None)), (slice(1, None), slice(1))
            if not all(run.keeps(changed, kept, 0, 0) for changed, kept in ends):
                is_second = run.output.shape[:2] == run.x.shape[:2]
                is_second = is_second and all(run.keeps(changed, kept, 1, 1) for changed, kept in ends)
                influences.add(SECOND if is_second else EXAMPLES)
            for influence in _find_padding(run, example):
                influences.add(influence)
    return frozenset(influences)


def refuse_order(model: nn.Module) -> InputError:
    """Return the error for a model with `SECOND`."""
    return InputError(
        f"{type(model).__name__} takes (time, batch): an output depends on others of the first dimension, "
        f"but on none of the second. A module would mix the examples. Build its layers with "
        f"batch_first=True, and give an example (batch, time)"
    )


def refuse_influences(names: Collection[str], influences: Collection[str]) -> InputError:
    """Return the error for modules at some sites, with which an output depends on other inputs."""
    remedy = (
        "positions there are not those of one example. Choose other sites"
        if {EXAMPLES, SECOND} & {*influences}
        else "they lack the mask. In the forward of the model, run the layers inside `with "
        "attention.padding.padding(mask):`, with a mask of bools (batch, time) that is True at real tokens. "
        "If no input has padding, leave the mask out of the example. If it is at one end, let the example "
        "show it"
    )
    return InputError(
        f"with modules at {', '.join(map(repr, names))}, {' and '.join(sorted(influences))} would change the "
        f"output: {remedy}"
    )


def _find_padding(run: Probe, example: Example) -> Iterator[str]:
    """Yield what of padding changes outputs at real tokens. A mask may be true there, or at padding."""
    for axis in run.axes:
        shape = len(run.x), run.x.shape[axis]
        masks = [mask for mask in _masks(example) if mask.shape == shape]
        if masks and shape[1] > 1:
            for value in (1, 0):
                mask = partial(_mask, masks=masks, value=value)
                ends = {"left": 0, "right": -1}
                padded = [end for end, i in ends.items() if any((m[:, i] != value).any() for m in masks)]
                for each in _find_along(run, axis, mask, padded or [*ends]):
                    yield f"{each} (marked by {1 - value})"


def _find_along(run: Probe, axis: int, mask: Callable[..., Tensor], ends: Collection[str]) -> Iterator[str]:
    count = run.x.shape[axis]
    real = count - max(1, count // 3)
    has_tokens = run.output.ndim > axis and run.output.shape[axis] == count
    slices = {"right": (slice(real), slice(real, None)), "left": (slice(-real, None), slice(-real))}
    for end in ends:
        kept, padded = slices[end]
        adapt = partial(mask, kept=kept, count=count)
        y, z = (run.call(x, adapt) for x in (run.x, run.change(padded, axis)))
        if not (are_equal(y, z, axis, kept) if has_tokens else are_equal(y, z, 0, slice(None))):
            yield f"padding on the {end}"
        if end == "right":
            trimmed = run.call(run.x.narrow(axis, 0, real), partial(adapt, length=real))
            rest = y.narrow(axis, 0, real) if has_tokens else y
            if not are_equal(trimmed, rest, 0, slice(None), OTHER_KERNELS):
                yield "the amount of padding"


def _mask(
    tensor: Tensor, *, masks: list[Tensor], value: int, kept: slice, count: int, length: int | None = None
) -> Tensor:
    """Return a mask with `value` at real tokens. Cut it and others of all tokens to the first `length`."""
    if any(tensor is mask for mask in masks):
        tensor = torch.full_like(tensor, 1 - value)
        tensor[:, kept] = value
    return tensor[:, :length] if tensor.shape[:2] == (len(masks[0]), count) else tensor


def _masks(example: Example) -> list[Tensor]:
    args, kwargs = arguments(example)
    named = [value for name, value in kwargs.items() if "mask" in name and isinstance(value, Tensor)]
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    return [*named, *(t for t in tensors if t.dtype == torch.bool)]
