"""Initial weights of trainings: published ones, those of a file, or those of a trial."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from automl.base.errors import InputError, error_message
from automl.base.serialise import to_json
from automl.data.download import fetch_file
from automl.storage.storage import Storage
from backbones import published_file, published_weights
from backbones.take_over import load
from search.config import PUBLISHED, Model
from search.record import CHECKPOINT_FILE

FILES = (CHECKPOINT_FILE, "model.safetensors")  # names of weight files in the folders of trials and exports


def initialise(
    model: nn.Module,
    chosen: Model,
    *,
    classes: int,
    size: int | None = None,
    path: str = "",
    body: Callable[[], nn.Module] | None = None,
) -> list[str]:
    """Load the weights that `chosen` names, if any, into `model`, which has no attention yet.

    If the model has a backbone at `path`, a classification model without its head, the weights may also be
    those of the classification model `body()`, whose head is left out.

    Returns the keys that stay new, because the weights are for other labels. Raises InputError if the weights
    cannot be loaded, do not fit, or have changed since they were chosen.
    """
    if not chosen.weights:
        return []
    weights, source = _named(chosen, classes, size)
    if body is None or any(path in key for key in weights):
        return load(model, weights, classes=classes, source=source)
    backbone = model.get_submodule(path)
    head = body().state_dict().keys() - backbone.state_dict().keys()
    load(backbone, weights, classes=classes, source=source, without=head)
    return [key for key in model.state_dict() if not key.startswith(f"{path}.")]


def _named(chosen: Model, classes: int, size: int | None) -> tuple[Mapping[str, Tensor], str]:
    """Return the weights that `chosen` names, and their description for messages."""
    if chosen.weights == PUBLISHED:
        options = json.dumps(to_json(chosen.options), sort_keys=True)
        return _published(chosen.backbone, classes, size, options), f"published for {chosen.backbone}"
    weights, digest = _read(chosen.weights)
    if chosen.weights_digest and digest != chosen.weights_digest:
        raise InputError(
            f"the weights {chosen.weights} have changed since they were chosen; restore them, or start a "
            "new search"
        )
    return weights, chosen.weights


@lru_cache(maxsize=1)  # all trials of a process start from the same weights
def _published(backbone: str, classes: int, size: int | None, options: str) -> Mapping[str, Tensor]:
    return load_published(backbone, classes=classes, size=size, **json.loads(options))


def load_published(
    backbone: str, *, classes: int, size: int | None = None, **options: Any
) -> Mapping[str, Tensor]:
    """Load weights as `backbones.published_weights` does, and download them from the mirror, if any."""
    file = published_file(backbone)
    if file is not None and file.path is not None and not file.is_cached:
        fetch_file(file.address, file.path)
    return published_weights(backbone, classes=classes, size=size, **options)


def choose_weights(address: str) -> tuple[str, str]:
    """Return the address of the weight file at `address`, and its hash.

    `address` is the path or address of a file, or of the folder of a trial or an export. Raises InputError if
    it does not exist or holds no weights.
    """
    try:
        folder = Storage(address)
        name = next((name for name in FILES if folder.exists(name)), None)
    except OSError:  # a parent of the folder is a file
        name = None
    file = str(folder) if name is None else str(folder / name)
    return file, _read(file)[1]


def _read(address: str) -> tuple[Mapping[str, Tensor], str]:
    """Return the weights in a file, and its hash. Code in the file is not executed."""
    file = Storage(address)
    folder, name = file.parent, file.name
    try:
        return _read_once(folder, name, folder.changed(name), folder.size(name))
    except OSError as error:
        raise InputError(
            f"weights {address} were not found ({type(error).__name__}); name a file, the folder of a trial "
            f"or export, or the ID of a run. On a cluster every node must be able to read it"
        ) from None


@lru_cache(maxsize=1)
def _read_once(
    folder: Storage, name: str, changed: int, size: int | None
) -> tuple[Mapping[str, Tensor], str]:
    content = folder.read(name)
    try:
        return _parse(name, content), hashlib.sha256(content).hexdigest()[:32]
    except Exception as error:  # unpickling a damaged file raises errors of many types
        raise InputError(
            f"{folder}/{name} cannot be read as weights; it must be a state_dict of torch or "
            f"safetensors ({error_message(error)})"
        ) from error


def _parse(name: str, data: bytes) -> Mapping[str, Tensor]:
    content: Any
    if name.endswith(".safetensors"):
        content = safetensors.torch.load(data)
    else:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    # A checkpoint may have the weights under one of these keys.
    for key in ("average", "model", "state_dict", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping) and content[key]:
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise TypeError("it holds no mapping of names to tensors")
    return content
