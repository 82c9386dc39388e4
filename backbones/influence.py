"""Tests by changing inputs what outputs of a model depend on: later tokens, other examples, padding.

A model or a module is causal if no output depends on later tokens.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Gated, Spec
from automl.base.errors import InputError
from backbones.example import Example, arguments, first_tensor, logits
from backbones.torch_internals import tree_leaves, tree_map_only

INTEGERS = (torch.int64, torch.int32)
# Differences due to rounding, relative to the largest output: of a Fourier transform, for example.
ROUNDING = 64 * torch.finfo(torch.float32).eps
SMALL = 0.01  # Parameters whose values are all below this would hide influence, so they are random in a test.


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model with random tokens.

    Attributes:
        x: The tokens, `(B, N)` integers, or `(B, N, C)` or `(B, C, N)` floating-point numbers.
        axes: Dimensions of the tokens that may be their positions.
        entries: Number of different integers.
        call: Runs the model on tokens. Another function may change the other tensors of the input.
        output: The first tensor of the output for the tokens.
    """

    x: Tensor
    axes: list[int]
    entries: int
    call: Callable[..., Tensor]
    output: Tensor

    def change(self, where: slice, axis: int) -> Tensor:
        """Return the tokens with others at some indices of an axis."""
        x = self.x.clone()
        tokens = x[_at(where, axis)]
        x[_at(where, axis)] = (
            torch.randn_like(tokens) if x.is_floating_point() else (tokens + 1) % self.entries
        )
        return x

    def keeps(self, changed: slice, kept: slice, axis: int, at: int) -> bool:
        """Return whether changed tokens along `axis` leave outputs along `at` as they are."""
        return are_equal(self.call(self.change(changed, axis)), self.output, at, kept)


def are_equal(first: Tensor, second: Tensor, axis: int, where: slice, tolerance: float = ROUNDING) -> bool:
    """Return whether outputs at some indices of an axis are equal up to rounding."""
    a, b = first[_at(where, axis)], second[_at(where, axis)]
    largest = max(float(t.abs().max()) for t in (first, second))
    return not a.numel() or bool((a - b).abs().max() <= tolerance * largest)


@contextmanager
def probe(model: nn.Module, example: Example) -> Iterator[Probe | None]:
    """Prepare a model for changes of its tokens. Yield None if its input has none."""
    tokens, like = first_tensor(example), next(model.parameters())
    floats = tokens.ndim == 3 and tokens.is_floating_point()
    if like.is_meta or not (floats or (tokens.ndim == 2 and tokens.dtype in INTEGERS)):
        yield None
        return

    def call(x: Tensor, replace: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
        def take(tensor: Tensor) -> Tensor:
            other = like.dtype if tensor.is_floating_point() else tensor.dtype
            return x if tensor is tokens else replace(tensor).to(like.device, other)

        args, kwargs = tree_map_only(Tensor, take, arguments(example))
        return _first(model(*args, **kwargs))

    entries = count_entries(model)
    with opened(model, like.device):
        x = torch.randn(tokens.shape, device=like.device).to(like.dtype)
        if not floats:
            x = torch.randint(entries, tokens.shape, dtype=tokens.dtype, device=like.device)
        yield Probe(x=x, axes=[1, 2] if floats else [1], entries=entries, call=call, output=call(x))


@contextmanager
def opened(module: nn.Module, device: torch.device, *, training: bool = False) -> Iterator[None]:
    """Set the mode, all gates to 1, and random values of parameters that are nearly zero."""
    modes = {child: child.training for child in module.modules()}
    gates = {child.gamma: child.gamma.clone() for child in module.modules() if isinstance(child, Gated)}
    module.train(training)
    devices = [] if device.type == "cpu" else [device]
    with torch.no_grad(), torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(0)
        small = [p for p in module.parameters() if p not in gates and not (p.abs() >= SMALL).any()]
        values = [(parameter, parameter.clone()) for parameter in small]
        try:
            for parameter in small:
                nn.init.normal_(parameter, std=0.1)
            for gate in gates:
                gate.fill_(1)
            yield
        finally:
            for parameter, value in (*values, *gates.items()):
                parameter.copy_(value)
            for child, mode in modes.items():
                child.training = mode


def count_entries(model: nn.Module) -> int:
    """Return the number of different tokens that every embedding of the model takes."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min((size for size in sizes if size > 1), default=2)


def _at(where: slice, axis: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, where)


def _first(output: Any) -> Tensor:
    """Return the logits, or the first tensor of a model's output."""
    output = logits(output)
    values = list(output.values()) if isinstance(output, Mapping) else output
    return next(t for t in tree_leaves(values) if isinstance(t, Tensor))


LARGE = 100.0  # Standard deviation of later features whose scores win or lose against those of earlier ones.
REDRAWS, DIRECTIONS, COPIES = 4, 2, 3  # numbers of changes of each kind


def is_causal(model: nn.Module, example: Example, *, mixes: bool = True) -> bool:
    """Return whether outputs depend on earlier tokens but never on later ones.

    The model runs in evaluation mode on random tokens, and again with others from a position on, for each of
    four positions. If it is causal, no output before that position changes by more than rounding. If it
    `mixes` tokens, as it must by default, another token alone must change some output after it.

    During the test all gates are 1. Parameters that are zero or nearly so, such as those of a new last layer,
    are random. Afterwards the model is as it was.

    Args:
        model: The model.
        example: An input of the model. Its first tensor has a token axis if it is `(B, N)` integers, or
            `(B, N, C)` or `(B, C, N)` floating-point numbers. Of the output, the first tensor counts.
        mixes: If False, a model that processes each token alone is causal, too.

    Returns:
        Whether the model is causal. False if input or output has no token axis, or the model cannot run.
    """
    try:
        with probe(model, example) as run:
            if run is None:
                return False
            x, y = run.x, run.output
            pairs = [
                (axis, at) for axis in run.axes for at in range(1, y.ndim) if y.shape[at] == x.shape[axis] > 1
            ]
            return any(_flows_forward(run, axis, at, mixes=mixes) for axis, at in pairs)
    except Exception:  # Sites need only the shapes of the example. Its values may be none of an input.
        return False


def sees_later(module: Gated, shape: Sequence[int]) -> bool:
    """Return whether the output of a module at a position depends on later positions.

    The module, for a site with one spatial dimension, runs in evaluation and in training mode, on random
    features of a shape with one example, and on changes of all features from a position on. It does not
    change. A module may choose positions by scores, as a top-k over the sequence does. So there are changes
    with which later positions have the largest scores, and others with which they have the smallest.
    """
    module, like = copy.deepcopy(module), module.gamma
    axis = 1 if module.layout == "B*C" else 2
    middle, last = shape[axis] // 2, shape[axis] - 1
    state = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def run(x: Tensor) -> Tensor:
        for buffer, value in state:
            buffer.copy_(value)
        torch.manual_seed(0)  # Dropout drops the same features in each run.
        y: Tensor = module(x.to(like.device, like.dtype))
        return y

    draws = torch.Generator().manual_seed(0)
    for training in (False, True):
        with opened(module, like.device, training=training):
            x = torch.randn(*shape, generator=draws)
            y = run(x)
            for i in _positions(last) + _positions(middle):
                for changed in islice(_change_later(x, axis, i, draws), None if i == middle else 2):
                    z = run(changed)
                    # What overflows with large features need not do so with those of a model.
                    if z.isfinite().all() and not are_equal(z, y, axis, slice(i)):
                        return True
    return False


def _change_later(x: Tensor, axis: int, i: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Yield copies of features with others from index `i` of `axis` on."""
    before, later = x.split([i, x.shape[axis] - i], dim=axis)
    token = later.narrow(axis, 0, 1)
    changes = [torch.randn(later.shape, generator=draws) for _ in range(REDRAWS)]
    for _ in range(DIRECTIONS):
        direction = LARGE * torch.randn(token.shape, generator=draws)
        changes[1:1] = [direction, -direction]
    # With a copy of the earlier position whose score is largest, all later ones have that score, too.
    changes += [before.narrow(axis, at, 1) for at in range(0, i, max(1, i // COPIES))]
    for change in (*changes, torch.zeros_like(token)):
        yield torch.cat([before, change.expand_as(later)], dim=axis)


def refuse_leaks(placement: Mapping[str, Spec], leaking: Collection[str]) -> InputError:
    """Return the error for a placement with which a causal model would not be causal.

    `leaking` names the sites whose modules are not causal. If it is empty, all modules are causal.
    """
    modules = ", ".join(f"{spec} at site {site!r}" for site, spec in placement.items() if site in leaking)
    if not leaking:
        return InputError(
            f"the model is causal, but not with modules at {', '.join(map(repr, placement))}, although the "
            f"modules are: positions there are not tokens in their order. Choose other sites, or conv1x1"
        )
    *most, last = (name for name, attention in ATTENTIONS.items() if "causal" in attention.options)
    return InputError(
        f"the model is causal, but a position would see later ones by {modules}. Choose conv1x1, or "
        f"{', '.join(most)} or {last} with causal=true"
    )


def _flows_forward(run: Probe, axis: int, at: int, *, mixes: bool) -> bool:
    """Return whether tokens along `axis` change no earlier outputs along `at`, but later ones if `mixes`."""
    last = run.x.shape[axis] - 1
    positions = _positions(last)
    if not all(run.keeps(slice(i, None), slice(i), axis, at) for i in positions):
        return False
    return not mixes or not all(run.keeps(slice(i, i + 1), slice(i + 1, None), axis, at) for i in positions)


def _positions(last: int) -> list[int]:
    """Return the tokens to change: middle and last, and two of which padding at one end leaves one."""
    return sorted({last // 2, last, 1, last - 1} & {*range(last + 1)})


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
