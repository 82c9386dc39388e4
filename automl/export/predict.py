"""Predictions of an exported model for images of any size. Needs the exported folder and onnxruntime."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from attention import InputError
from automl.data.images import cache_side, decode
from automl.data.images.augment import centre_crop

BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """The likeliest label of an image, and the probability of each."""

    image: str
    label: str
    probability: float
    probabilities: dict[str, float]


def run_predict(folder: str | Path, images: Sequence[str | Path]) -> list[Prediction]:
    """Classify image files with the model that `automl export` left in `folder`.

    Raises InputError when the folder holds no export or a file is no image.
    """
    folder = Path(folder)
    try:
        metadata = json.loads((folder / "config.json").read_text())
        labels, size = metadata["labels"], metadata["config"]["data"]["size"]
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an error of its own for each way a file can be damaged
        raise InputError(
            f"{folder} holds no exported model; make one with `automl export`. ({error})"
        ) from error
    if not images:
        raise InputError("name at least one image")
    predictions = []
    for begin in range(0, len(images), BATCH):
        part = images[begin : begin + BATCH]
        probabilities = session.run(None, {"images": np.concatenate([_read(path, size) for path in part])})[0]
        for path, row in zip(part, probabilities, strict=True):
            winner = int(row.argmax())
            predictions.append(
                Prediction(
                    image=str(path),
                    label=labels[winner],
                    probability=float(row[winner]),
                    probabilities={label: float(p) for label, p in zip(labels, row, strict=True)},
                )
            )
    return predictions


def _read(path: str | Path, size: int) -> np.ndarray:
    """An image as the model takes it, `(1, size, size, 3)`, prepared as validation images are."""
    try:
        squashed, aspect = decode(path, cache_side(size))
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except Exception as error:  # Pillow's decoders raise errors of every kind
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    return centre_crop(torch.tensor(squashed)[None], torch.tensor([aspect]), size).numpy()
