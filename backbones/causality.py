"""Tests by changing tokens whether a model or a module is causal: no output depends on later tokens."""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Gated, Spec
from automl.base.errors import InputError
from backbones.example import Example
from backbones.probe import Probe, are_equal, opened, probe

LARGE = 100.0  # Standard deviation of later features whose scores win or lose against those of earlier ones.
REDRAWS, DIRECTIONS, COPIES = 4, 2, 3  # numbers of changes of each kind


def is_causal(model: nn.Module, example: Example, *, mixes: bool = True) -> bool:
    """Return whether outputs depend on earlier tokens but never on later ones.

    The model runs in evaluation mode on random tokens, and again with others from a position on, for each of
    four positions. If it is causal, no output before that position changes by more than rounding. Another
    token alone must change some output after it.

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

    The module runs in evaluation and in training mode, on random features and on changes of all features from
    a position on. A module may choose positions by scores, as a top-k over the sequence does. So there are
    changes with which later positions have the largest scores, and others with which they have the smallest.

    Args:
        module: A module for a site with one spatial dimension. It does not change.
        shape: Shape of features at the site, with one example.
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

    Args:
        placement: The specs, by the names of their sites.
        leaking: Names of the sites whose modules are not causal. If it is empty, all modules are causal.
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
    """Return whether tokens along `axis` change outputs along `at` at no earlier positions.

    With `mixes` they must change some at later positions.
    """
    last = run.x.shape[axis] - 1
    positions = _positions(last)
    if not all(run.keeps(slice(i, None), slice(i), axis, at) for i in positions):
        return False
    return not mixes or not all(run.keeps(slice(i, i + 1), slice(i + 1, None), axis, at) for i in positions)


def _positions(last: int) -> list[int]:
    """Return the tokens to change: middle and last, and two of which padding at one end leaves one."""
    return sorted({last // 2, last, 1, last - 1} & {*range(last + 1)})
