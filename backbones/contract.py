"""The contract of an attention module at a site, checked before anything is trained.

Shapes are checked on fake tensors, at the real shape of the site. Values are checked on random features: at
the real shape where that is quick (`MOST_POSITIONS` and others), otherwise at a half or a quarter of its
extents, and so on.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention import Gated, Spec
from attention.attention_type import ShapeError, same_shape
from attention.padding import is_padding, padding
from automl.base.errors import InputError, describe_error
from backbones.cost import count_module_cost
from backbones.example import Example, call
from backbones.influence import sees_later
from backbones.insertion import build_module
from backbones.site import Site, features
from backbones.torch_internals import DataDependentOutputException, FakeCopyMode, FakeTensorMode

BATCHES = (1, 2, 16)
# Positions, MACs and memory of one example up to which values are checked at the real shape of a site.
MOST_POSITIONS, MOST_MACS, MOST_MEMORY = 4096, 200_000_000, 4_000_000
SAME = 1e-4  # Relative difference that rounding may cause.
ATTEMPTS = 4  # Draws of input and parameters, of which one shows a gradient, or an effect of padding.


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the check, one of `CHECKS`.
        passed: True if the module keeps this part of the contract.
        message: The type, the site and what the module did. Empty if it passed.
    """

    name: str
    passed: bool
    message: str = ""


class _BrokenError(Exception):
    """A fault of a module, as the predicate of a sentence."""


def check_contract(spec: Spec, site: Site, *, padded: bool = False, causal: bool = False) -> list[Check]:
    """Check the contract of an attention module at a site. The random generator keeps its state.

    Inputs of the model are `padded` if they differ in length, so that features have padding. If the model is
    `causal`, no position may depend on later ones. Returns the results in the order of `CHECKS`. After a
    failure they end, unless the check is in `INDEPENDENT`.
    """
    built: list[Gated] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        checks = [_run("build", spec, site, lambda: built.append(_build(spec, site)))]
        if checks[-1].passed:
            checks.append(_run("shape", spec, site, partial(_check_shape, built[0], site)))
        if not checks[-1].passed:
            return checks
        site, module = _shrink(spec, site, built[0])
        x = torch.randn_like(features(site, 3))
        # At one position, attention has no choice: the parameters of its weights have no effect.
        applies = {
            "padding": padded,
            "gradient": site.positions > 1,
            "causal": causal and len(site.resolution) == 1,
        }
        for name, check_values in _VALUES.items():
            if applies.get(name, True):
                checks.append(_run(name, spec, site, partial(check_values, copy.deepcopy(module), x.clone())))
                if not checks[-1].passed and name not in INDEPENDENT:
                    break
    return checks


def find_padded(model: nn.Module, known: Sequence[Site], example: Example) -> frozenset[str]:
    """Return the names of the `known` sites whose features have padding, by a pass through the model."""
    padded: set[str] = set()
    if all(len(site.resolution) > 1 for site in known):
        return frozenset()
    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.train, model.training)
        for site in known:
            hook = model.get_submodule(site.path).register_forward_hook(
                lambda *_, name=site.name: padded.add(name) if is_padding() else None
            )
            stack.enter_context(hook)
        call(model.eval(), example)
    return frozenset(padded)


def _run(name: str, spec: Spec, site: Site, check: Callable[[], None]) -> Check:
    try:
        check()
    except InputError as error:
        return Check(name=name, passed=False, message=str(error))
    except _BrokenError as broken:
        fault = str(broken)
    except Exception as error:  # User-defined code may raise any error.
        fault = f"raises {describe_error(error)}"
    else:
        return Check(name=name, passed=True)
    return Check(name=name, passed=False, message=f"{spec} at {site.name} {fault}")


def _build(spec: Spec, site: Site) -> Gated:
    try:
        return build_module(spec, site)
    except InputError:
        raise
    except Exception as error:
        raise _BrokenError(
            f"cannot be built for {site.channels} channels: {describe_error(error)}"
        ) from error


def _check_shape(module: Gated, site: Site) -> None:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        module = copy.deepcopy(module).eval()
    attend, dtypes = module.attend, list[torch.dtype]()

    def record(*arguments: Any) -> Tensor:
        update = attend(*arguments)
        dtypes.append(update.dtype)
        return update

    module.attend = record  # type: ignore[assignment,method-assign]  # The sum with the input has the dtype of the input.
    with fake:
        alone, few = features(site, BATCHES[0]), site.positions <= MOST_POSITIONS  # Many are checked once.
        for x in (alone.contiguous(), alone, *(features(site, batch) for batch in BATCHES[1:] * few)):
            try:
                y = same_shape(module(x), x)
            except ShapeError as error:
                raise _BrokenError(str(error)) from error
            except DataDependentOutputException as error:
                raise _BrokenError(
                    "needs the values of its input to choose what to compute; use torch.where"
                ) from error
            except Exception as error:
                order = "" if x.is_contiguous() else ", with the channels innermost in memory"
                raise _BrokenError(f"fails for {tuple(x.shape)}{order}: {describe_error(error)}") from error
            if wrong := {y.dtype, dtypes[-1]} - {x.dtype}:
                raise _BrokenError(f"returns {wrong.pop()} for {x.dtype}; a module must keep the dtype")


def _shrink(spec: Spec, site: Site, module: Gated) -> tuple[Site, Gated]:
    """Return the site with its extents halved until a module is quick to compute, and such a module."""
    while max(site.spatial) > 1 and (site.positions > MOST_POSITIONS or not _is_quick(module, site)):
        for multiple in (1, 8):  # A module with windows needs multiples of their size, which is 8 or 7.
            halves = (-(-extent // (2 * multiple)) * multiple for extent in site.spatial)
            smaller = replace(site, resolution=tuple(half + site.class_tokens for half in halves))
            try:
                other = build_module(spec, smaller)
                _check_shape(other, smaller)
            except Exception:  # The module takes other extents only.
                continue
            if smaller != site:
                break
        else:
            return site, module
        site, module = smaller, other
    return site, module


def _is_quick(module: Gated, site: Site) -> bool:
    try:
        cost = count_module_cost(module, site)
    except Exception:  # The checks of values report the error.
        return True
    return cost.macs <= MOST_MACS and cost.memory <= MOST_MEMORY


def _check_finite(module: Gated, x: Tensor) -> None:
    if not _run_open(module, x).isfinite().all():
        raise _BrokenError("returns infinite values or NaN for normally distributed features")


def _check_identity(module: Gated, x: Tensor) -> None:
    for training in (True, False):
        if not torch.equal(_call(module.train(training), x), x):
            raise _BrokenError("is not the identity while its gate is 0")


def _check_deterministic(module: Gated, x: Tensor) -> None:
    _perturb(module)
    if not _are_close(_run_open(module, x), _run_open(module, x)):
        raise _BrokenError("returns different values for the same features in evaluation mode")


def _check_samples(module: Gated, x: Tensor) -> None:
    _perturb(module)
    y = _run_open(module, x)
    for changed in (0, len(x) - 1):
        other = x.clone()
        other[changed] = 3 * x[changed] + 1
        kept = [i for i in range(len(x)) if i != changed]
        if not _are_close(_run_open(module, other)[kept], y[kept]):
            raise _BrokenError(
                "mixes the examples of a batch in evaluation mode: one example changes the output of another"
            )


def _check_gradient(module: Gated, x: Tensor) -> None:
    """Check that every parameter has a gradient, for one of several inputs and values of the parameters."""
    _open(module).train()
    without = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for attempt in range(ATTEMPTS):
        if attempt:
            x = torch.randn_like(x)
            _perturb(module, 0.05 * 4**attempt)  # in the end enough that a ReLU which is dead for all x lives
        module.zero_grad()
        (module(x) * torch.randn_like(x)).sum().backward()
        for name, parameter in module.named_parameters():
            if name in without and parameter.grad is not None and parameter.grad.any():
                without.remove(name)
        if not without:
            return
    missing = ", ".join(sorted(without))
    raise _BrokenError(f"has parameters without a gradient: {missing}; use them in forward or leave them out")


def _check_padding(module: Gated, x: Tensor) -> None:
    """Check that real positions depend neither on values at padded positions nor on their number."""
    # Several inputs and values of the parameters are tried, since activations may be zero for some.
    for _ in range(ATTEMPTS):
        _perturb(module)
        _compare_padded(module, torch.randn_like(x))


def _compare_padded(module: Gated, x: Tensor) -> None:
    dimension = 1 if module.layout == "B*C" else 2
    length = x.shape[dimension] - module.class_tokens
    real = length - length // 3
    mask = torch.arange(length) < real
    others = x.shape[2:-1] if module.layout == "B*C" else x.shape[3:]
    mask = mask.view(1, -1, *[1] * len(others)).expand(len(x), length, *others)
    kept = module.class_tokens + real
    other = x.clone()
    other.narrow(dimension, kept, length - real).mul_(3).add_(1)
    with padding(mask):
        y, changed = (_run_open(module, full).narrow(dimension, 0, kept) for full in (x, other))
    if not _are_close(changed, y):
        raise _BrokenError("lets values at padded positions change real ones")
    try:
        trimmed = _run_open(module, x.narrow(dimension, 0, kept))
    except Exception as error:  # The module takes one length only.
        if getattr(module, "takes_mask", True):
            return
        raise _BrokenError(
            "takes one number of positions, so that padded ones count; where inputs differ in length, its "
            "forward needs a parameter `mask`"
        ) from error
    if not _are_close(trimmed, y):
        raise _BrokenError(
            "depends on the number of padded positions; where inputs differ in length, its forward needs a "
            "parameter `mask`"
        )


def _check_causal(module: Gated, x: Tensor) -> None:
    if sees_later(module, x[:1].shape):
        raise _BrokenError("lets a position see later ones, but the model is causal")


_VALUES: Mapping[str, Callable[[Gated, Tensor], None]] = {
    "finite": _check_finite,
    "deterministic": _check_deterministic,
    "identity": _check_identity,
    "samples": _check_samples,
    "gradient": _check_gradient,
    "padding": _check_padding,
    "causal": _check_causal,
}
CHECKS = ("build", "shape", *_VALUES)
INDEPENDENT = ("samples", "gradient", "padding", "causal")  # Checks that may fail together.


def _open(module: Gated) -> Gated:
    """Set the gate to 1."""
    with torch.no_grad():
        module.gamma.fill_(1)
    return module


def _perturb(module: Gated, scale: float = 0.05) -> None:
    """Change parameters a little. A scale that is zero in a new module would hide what is behind it."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))


def _run_open(module: Gated, x: Tensor) -> Tensor:
    return _call(_open(module).eval(), x)


def _call(module: Gated, x: Tensor) -> Tensor:
    before = x.clone()
    with torch.no_grad():
        y: Tensor = module(x)
    if not torch.equal(x, before):
        raise _BrokenError("changes its input in place; let it compute a new tensor")
    return y


def _are_close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= SAME * second.abs().max())
