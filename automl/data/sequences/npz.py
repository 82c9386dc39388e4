"""NPZ files of NumPy: `x_train` (N, C, T) and `y_train` (N,), and the same for `test` and `validation`.

For each of these splits there may be `lengths_train` (N,), the real steps of each sequence, behind which is
padding, and `subject_train` (N,); for all, `channels` (C,), their names. Labels, subjects and names are
integers or strings. NaN is a missing value. Arrays of Python objects are refused: they can run code when
they are read.
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.sequences.recording import Part, Recording, in_order, recording
from automl.data.sequences.splits import SPLITS

SUFFIX = ".npz"
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)


def find(path: Path) -> tuple[Path, ...] | None:
    """The file, if it is one by its name."""
    return (path,) if path.suffix.lower() == SUFFIX and path.is_file() else None


def read(files: Sequence[Path]) -> Recording:
    """The dataset of one NPZ file. Raises InputError with file and array for what is wrong."""
    (file,) = files
    arrays = _arrays(file)
    if "x_train" not in arrays:
        there = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"{file} must have the arrays x_train and y_train; it has {there}")
    _check_names(file, arrays)
    parts = {split: _part(file, arrays, split) for split in SPLITS if f"x_{split}" in arrays}
    count = arrays["x_train"].shape[1]
    for split in parts:
        if (other := arrays[f"x_{split}"].shape[1]) != count:
            raise InputError(
                f"{file}: x_{split} has {other} channels and x_train has {count}; they must be the same"
            )
    channels = _texts(file, "channels", arrays["channels"], count) if "channels" in arrays else None
    classes = in_order(parts["train"].labels)
    return recording(channels or [f"dim{i}" for i in range(count)], classes, parts)


def read_series(file: Path) -> tuple[list[str] | None, list[tuple[str, np.ndarray]]]:
    """The sequences of `x`, with `lengths` or without, or those of all splits, and the names of channels.

    Raises InputError like `read`.
    """
    arrays = _arrays(file)
    splits = [name.removeprefix("x") for name in arrays if name == "x" or name.startswith("x_")]
    if not splits:
        raise InputError(
            f"{file} must have an array x, (N, C, T); it has {', '.join(sorted(arrays)) or 'nothing'}"
        )
    found = []
    for split in splits:
        x, lengths = _values(file, arrays, f"x{split}", f"lengths{split}")
        found += [
            (f"x{split}[{i}]", values[:, :length])
            for i, (values, length) in enumerate(zip(x, lengths.tolist(), strict=True))
        ]
    channels = arrays.get("channels")
    return None if channels is None else _texts(file, "channels", channels, x.shape[1]), found


def _arrays(file: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    name = ""
    try:
        if _head(file) != b"PK":  # NumPy would suggest to take it for a pickle
            raise zipfile.BadZipFile("it is no zip file")
        with np.load(file, allow_pickle=False) as opened:
            for name in opened.files:
                arrays[name] = np.asarray(opened[name])
    except DAMAGED as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{file}: {name} is an array of objects, which are not read since they can run code; pad the "
                f"sequences to one (N, C, T) array and give their lengths_train"
            ) from None
        raise InputError(f"{file} is damaged or not an NPZ file ({error}); write it again") from error
    return arrays


def _head(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(2)


def _check_names(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """A name that is misspelt would otherwise be left out without a word."""
    known = {f"{kind}_{split}" for kind in ("x", "y", "lengths", "subject") for split in SPLITS} | {
        "channels"
    }
    if extra := sorted(set(arrays) - known):
        raise InputError(f"{file}: unknown array {extra[0]!r}; choose from {', '.join(sorted(known))}")
    for name in sorted(arrays):
        kind, _, split = name.partition("_")
        if split and kind != "x" and f"x_{split}" not in arrays:
            raise InputError(f"{file}: {name} without x_{split}; give both or none")


def _part(file: Path, arrays: dict[str, np.ndarray], split: str) -> Part:
    if f"y_{split}" not in arrays:
        raise InputError(f"{file}: x_{split} has no y_{split}; give the label of each sequence")
    x, lengths = _values(file, arrays, f"x_{split}", f"lengths_{split}")
    subject = f"subject_{split}"
    return Part(
        values=[values[:, :length] for values, length in zip(x, lengths.tolist(), strict=True)],
        labels=_texts(file, f"y_{split}", arrays[f"y_{split}"], len(x)),
        names=[f"{split}/{i}" for i in range(len(x))],
        place=lambda i: f"{file}: x_{split}[{i}]",
        subjects=_texts(file, subject, arrays[subject], len(x)) if subject in arrays else None,
    )


def _values(file: Path, arrays: dict[str, np.ndarray], name: str, real: str) -> tuple[np.ndarray, np.ndarray]:
    """The array `name`, float32 (N, C, T), and how many of its steps are `real`, (N,)."""
    x = arrays[name]
    if x.ndim != 3 or x.dtype.kind not in "fiu":
        raise InputError(f"{file}: {name} must be numbers (N, C, T), not {x.dtype} {x.shape}")
    if 0 in x.shape:
        raise InputError(f"{file}: {name} is empty: {x.shape}; leave it out or fill it")
    lengths = arrays.get(real, np.full(len(x), x.shape[2]))
    if lengths.shape != (len(x),) or lengths.dtype.kind not in "iu":
        raise InputError(f"{file}: {real} must be integers ({len(x)},), not {lengths.dtype} {lengths.shape}")
    for i in np.flatnonzero((lengths < 0) | (lengths > x.shape[2]))[:1]:
        raise InputError(f"{file}: {real}[{i}] must lie between 0 and {x.shape[2]}, not {lengths[i]}")
    with np.errstate(over="ignore"):  # what does not fit becomes infinite
        return x.astype(np.float32, copy=False), lengths


def _texts(file: Path, name: str, array: np.ndarray, count: int) -> list[str]:
    if array.shape != (count,) or array.dtype.kind not in "iuU":
        raise InputError(
            f"{file}: {name} must be integers or strings ({count},), not {array.dtype} {array.shape}"
        )
    return [str(value) for value in array.tolist()]
