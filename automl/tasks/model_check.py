"""Tries a model as it will be trained, before it is: one step, and passes in evaluation mode.

The most common fault of a model of one's own is `x.view(x.size(0), -1)`, which works on contiguous features
alone. A model that fails in channels_last and works contiguous is trained contiguous.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention import InputError
from automl.config.device import forked_generators, is_out_of_memory
from automl.config.runtime import Runtime
from backbones import Example, call
from backbones.memory_format import narrow_strided, set_format
from backbones.torch_internals import tree_leaves, tree_map_only

TRAINED, EVALUATED = 3, 2  # inputs of a pass: a model must take batches of any size
SAME = 1e-4  # of the largest output, by which rounding may change it from one pass to the next
RANDOM = "is random in evaluation mode"
ADVICE = "F.dropout needs training=self.training"


@dataclass(frozen=True)
class ModelCheck:
    """The memory format that a model is trained in, and what the user should know of it."""

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
    """Try a new model, and choose its memory format.

    name: of the backbone, for messages. build: makes the model on its device, for each format that is tried.
    example: a batch of so many inputs. images: it can be channels_last. classes: of the logits that it has to
    return; None where it may return anything. run: False for a model whose layers are only looked at.

    Raises InputError for a model that cannot be trained, with the line where it fails, and for outputs of
    another shape; torch.OutOfMemoryError. Leaves the random generators as they were.
    """
    with forked_generators(runtime.device):
        model, notes = build(), []
        formats = [torch.channels_last, torch.contiguous_format] if images else [torch.contiguous_format]
        if images and runtime.device.type == "cpu" and (path := narrow_strided(model)):
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
                given = partial(_batch, example, images)
                notes += _run(name, set_format(model, memory_format), given, runtime, classes)
            except InputError:
                raise
            except Exception as error:  # whatever the model raises
                if is_out_of_memory(error):
                    raise
                if not formats:
                    inputs = tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), example(TRAINED))
                    raise InputError(
                        f"{name} cannot be trained on inputs of shape {inputs}: {_reason(error)}. It has to "
                        f"take batches of any size, in training and in evaluation mode"
                    ) from error
                notes.append(
                    f"{name} is trained contiguous, which can be slower: in channels_last, {_reason(error)}"
                )
                model = build()
            else:
                return ModelCheck(memory_format, notes)


def _batch(example: Callable[[int], Example], images: bool, count: int) -> Example:
    """Images come in channels_last, whatever the model makes of them."""
    batch = example(count)
    return batch.to(memory_format=torch.channels_last) if images and isinstance(batch, Tensor) else batch


def _run(
    name: str, model: nn.Module, example: Callable[[int], Example], runtime: Runtime, classes: int | None
) -> list[str]:
    """One training step without an optimiser, and three passes in evaluation mode. Returns notes."""
    known = set(dict(model.named_parameters()))
    model.train()
    with runtime.autocast():
        output = call(model, example(TRAINED))
    _check_output(name, output, TRAINED, classes)
    _check_layers(name, model, known)
    learned = [t.float() for t in tree_leaves(_plain(output)) if isinstance(t, Tensor) and t.requires_grad]
    if not learned:
        raise InputError(f"{name} returns what no gradient goes through; return logits, not labels")
    torch.stack([t.square().mean() for t in learned]).sum().backward()
    model.eval()
    inputs = example(EVALUATED)
    with torch.inference_mode():
        with runtime.autocast():
            _check_output(name, call(model, inputs), EVALUATED, classes)
        once, again = (_first(call(model, inputs)) for _ in range(2))
    if once is None or again is None or once.shape != again.shape:
        return []
    apart = float((once - again).abs().max()) if once.numel() else 0.0
    if apart > SAME * max(1e-6, float(once.abs().max())):
        return [
            f"{name} {RANDOM}: two passes over the same inputs differ by {apart:.2g}. Its scores are noisy, "
            f"and export will refuse it; {ADVICE}"
        ]
    return []


def _check_output(name: str, output: Any, batch: int, classes: int | None) -> None:
    if classes is None or (isinstance(output, Tensor) and tuple(output.shape) == (batch, classes)):
        return
    raise InputError(
        f"{name} returned {_describe(output)}, expected (batch, {classes} classes), here "
        f"({batch}, {classes}): a tensor of logits, or an object with such `logits`"
    )


def _check_layers(name: str, model: nn.Module, known: set[str]) -> None:
    if new := sorted(set(dict(model.named_parameters())) - known):
        raise InputError(
            f"{name} makes layers in its first forward pass ({', '.join(new[:3])}), which no optimiser would "
            f"train; make them in __init__, as lazy layers where their sizes are not known"
        )


def _describe(output: Any) -> str:
    """Types and shapes, without values."""
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


def _first(output: Any) -> Tensor | None:
    leaves = (leaf for leaf in tree_leaves(_plain(output)) if isinstance(leaf, Tensor))
    return next((leaf.float() for leaf in leaves if leaf.is_floating_point()), None)


def _reason(error: Exception) -> str:
    """The error in a line, with the last line of code that is not torch's."""
    text = (str(error).strip().splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    torch_files = str(Path(torch.__file__).parent)
    own = [f for f in frames if not f.filename.startswith(torch_files) and f.filename != __file__]
    at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{at}"
