"""Checks before a training: of a model, by one step and passes in evaluation mode, and of attention modules.

The most common fault of a user-defined model is `x.view(x.size(0), -1)`, which works on contiguous features
only. A model that fails in channels_last but works contiguous is trained contiguous.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention import Spec
from automl.base.errors import InputError, describe_error
from automl.base.serialise import to_json
from automl.base.units import pluralize
from automl.config.device import forked_generators, is_out_of_memory
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.task.base import remember
from backbones import BACKBONES, Example, Site, call, sites
from backbones.channels import find_crashing_layer, set_format
from backbones.contract import check_contract, find_padded
from backbones.influence import is_causal
from backbones.site import unknown_site
from backbones.torch_internals import tree_leaves, tree_map_only
from search.config import Model, TrialConfig

TRAINED, EVALUATED = 3, 2  # inputs of a pass, which differ, since a model must take batches of any size
SAME = 1e-4  # relative difference between two passes that rounding may cause
RANDOM = "is random in evaluation mode"
ADVICE = "F.dropout needs training=self.training"


@dataclass(frozen=True)
class ModelCheck:
    """Memory format that a model is trained in, and notes for the user."""

    memory_format: torch.memory_format = torch.contiguous_format
    notes: Sequence[str] = ()


def check_model(
    name: str,
    build: Callable[[], nn.Module],
    example: Callable[[int], Example],
    runtime: Runtime,
    *,
    images: bool,
    classes: int | None = None,
    run: bool = True,
) -> ModelCheck:
    """Try a new model, and choose its memory format. The random generators keep their state.

    `build` makes it on its device, for each format that is tried. Only `images` can be channels_last. Without
    `classes`, the number of logits, any output is accepted. Without `run` only the layers are inspected.

    Raises InputError if the model cannot be trained, or its outputs have another shape. The message names the
    line. `torch.OutOfMemoryError` passes.
    """
    with forked_generators(runtime.device):
        model, notes = build(), []
        formats = [torch.channels_last, torch.contiguous_format] if images else [torch.contiguous_format]
        if images and runtime.device.type == "cpu" and (path := find_crashing_layer(model)):
            formats = [torch.contiguous_format]
            notes.append(
                f"{name} is trained contiguous: in channels_last the gradient of {path!r}, a strided 1x1 "
                f"convolution of few channels, can end the process on a CPU"
            )
        if not run:
            return ModelCheck(formats[0], notes)
        while True:
            memory_format = formats.pop(0)
            try:
                make_batch = partial(_batch, example, images)
                notes += _run(name, set_format(model, memory_format), make_batch, runtime, classes)
            except InputError:
                raise
            except Exception as error:  # a model may raise any error
                if is_out_of_memory(error):
                    raise
                if not formats:
                    inputs = tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), example(TRAINED))
                    raise InputError(
                        f"{name} cannot be trained on inputs of shape {inputs}: {describe_error(error)}. It "
                        f"has to take batches of any size, in training and in evaluation mode"
                    ) from error
                notes.append(
                    f"{name} is trained contiguous, which can be slower: in channels_last, "
                    f"{describe_error(error)}"
                )
                model = build()
            else:
                return ModelCheck(memory_format, notes)


def check_backbone(
    chosen: Model,
    depends: Sequence[Any],
    build: Callable[[], nn.Module],
    example: Callable[[int], Example],
    runtime: Runtime,
    *,
    images: bool,
    **options: Any,
) -> ModelCheck:
    """Call `check_model` once in a process for equal `depends`. Built-in backbones need no trial."""
    if chosen.backbone in BACKBONES:
        return ModelCheck(torch.channels_last if images else torch.contiguous_format)
    key = [to_json(replace(chosen, placement={})), *depends, str(runtime.device), str(runtime.dtype)]
    return remember(
        "check",
        key,
        lambda: check_model(
            chosen.backbone, lambda: build().to(runtime.device), example, runtime, images=images, **options
        ),
    )


def _batch(example: Callable[[int], Example], images: bool, count: int) -> Example:
    """Return a batch, with images in channels_last whatever format the model has."""
    batch = example(count)
    return batch.to(memory_format=torch.channels_last) if images and isinstance(batch, Tensor) else batch


def _run(
    name: str, model: nn.Module, example: Callable[[int], Example], runtime: Runtime, classes: int | None
) -> list[str]:
    """Run one training step without an optimiser, and three passes in evaluation mode. Return notes."""
    known = set(dict(model.named_parameters()))
    model.train()
    with runtime.autocast():
        output = call(model, example(TRAINED))
    _check_output(name, output, TRAINED, classes)
    if new := sorted(set(dict(model.named_parameters())) - known):
        raise InputError(
            f"{name} makes layers in its first forward pass ({', '.join(new[:3])}), which no optimiser would "
            f"train; make them in __init__, as lazy layers where their sizes are not known"
        )
    learned = [
        tensor.float()
        for tensor in tree_leaves(_plain(output))
        if isinstance(tensor, Tensor) and tensor.requires_grad
    ]
    if not learned:
        raise InputError(f"{name} returned outputs without a gradient; return logits, not labels")
    torch.stack([tensor.square().mean() for tensor in learned]).sum().backward()
    model.eval()
    inputs = example(EVALUATED)
    with torch.inference_mode():
        with runtime.autocast():
            _check_output(name, call(model, inputs), EVALUATED, classes)
        first, second = (_first_float(call(model, inputs)) for _ in range(2))
    if first is None or second is None or first.shape != second.shape:
        return []
    difference = float((first - second).abs().max()) if first.numel() else 0.0
    if difference > SAME * max(1e-6, float(first.abs().max())):
        return [
            f"{name} {RANDOM}: two passes over the same inputs differ by {difference:.2g}. Its scores are "
            f"noisy, and export will reject it; {ADVICE}"
        ]
    return []


def _check_output(name: str, output: Any, batch: int, classes: int | None) -> None:
    if classes is None or (isinstance(output, Tensor) and tuple(output.shape) == (batch, classes)):
        return
    raise InputError(
        f"{name} returned {_describe(output)}, expected (batch, {classes} classes), here "
        f"({batch}, {classes}): a tensor of logits, or an object with such `logits`"
    )


def _describe(output: Any) -> str:
    """Describe types and shapes, without values."""
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    if isinstance(output, Mapping):
        return (
            f"a {type(output).__name__} of {', '.join(f'{key}: {_describe(v)}' for key, v in output.items())}"
        )
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(map(_describe, output))}"
    return f"a {type(output).__name__}"


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else output


def _first_float(output: Any) -> Tensor | None:
    leaves = (leaf for leaf in tree_leaves(_plain(output)) if isinstance(leaf, Tensor))
    return next((leaf.float() for leaf in leaves if leaf.is_floating_point()), None)


MOST_OPTIONS = 4  # Options with ranges of numbers would make every draw a module of its own.


def check_attentions(configs: Iterable[TrialConfig], runtime: Runtime) -> list[tuple[Spec, Site]]:
    """Check each attention type that is not in the table, at each shape of its sites. Return one of each.

    Types of the table keep the contract by their tests. Equal modules at sites of one shape are checked once,
    and a type at one shape with at most `MOST_OPTIONS` sets of options. Raises InputError if a module breaks
    the contract. The message names type, site and what it did.
    """
    begun, checked = time.perf_counter(), dict[str, tuple[Spec, Site]]()
    tried: Counter[str] = Counter()
    for config in configs:
        for name, spec in config.model.placement.items():
            if not spec.is_foreign:
                continue
            site, *demands = _find_site(name, config, runtime)
            shape = [site.channels, site.resolution, site.layout, site.class_tokens, *demands]
            key = json.dumps([spec.to_json(), *shape], sort_keys=True)
            group = json.dumps([spec.type, *shape])
            if key in checked or tried[group] == MOST_OPTIONS:
                continue
            tried[group] += 1
            for check in check_contract(spec, site, padded=demands[0], causal=demands[1]):
                if not check.passed:
                    raise InputError(check.message)
            checked[key] = spec, site
    first = {spec.type: (spec, site) for spec, site in reversed(checked.values())}
    if first:
        names = ", ".join(sorted(spec.name for spec, _ in first.values()))
        duration = time.perf_counter() - begun
        print(f"checked   {names}: {pluralize(len(checked), 'modules')} in {duration:.1f} s", file=sys.stderr)
    return list(first.values())


def _find_site(name: str, config: TrialConfig, runtime: Runtime) -> tuple[Site, bool, bool]:
    """Return a site of the plain model, whether its features are padded, and whether the model is causal."""
    plain = replace(config.change(model={"placement": {}}, seed=0), training=type(config.training)())

    def find() -> tuple[nn.Module, list[Site], frozenset[str], bool]:
        task = open_task(plain, runtime)
        model, example = task.model(), task.example(2)
        known = sites(model, example)
        return model, known, find_padded(model, known, example), is_causal(model, example)

    model, known, padded, causal = remember("sites with padding", [plain.to_json()], find)
    site = next((site for site in known if site.name == name), None)
    if site is None:
        raise unknown_site(model, name, known)
    return site, name in padded, causal
