"""NPZ files of NumPy: `x_train` (N, C, T) and `y_train` (N,), and likewise for `test` and `validation`.

Optional for each split: `lengths_train` (N,), the number of real steps of each sequence, after which it is
padded, and `subject_train` (N,) or `group_train`. Optional for all splits: `channels` (C,), their names.
Labels, subjects and names are integers or strings. NaN is a missing value. Arrays of Python objects are
refused, since reading them can run code.

Keras and tslearn use arrays (N, T, C). `order`, "NCT" or "NTC", states the order of the axes. Without it, the
axis whose length equals the number of channels is taken, known from their names or, in prediction, from the
model. Otherwise the longer axis is taken for the steps, with a warning if the result is not (N, C, T).
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.base.terminal import tell
from automl.data.files import normalise_nfc
from automl.data.splits import SPLITS
from automl.tasks.sequence_classification.data.reading import (
    Recording,
    SplitSequences,
    make_recording,
    quote,
    sort_labels,
)

SUFFIX = ".npz"
ORDERS = ("NCT", "NTC")
ORDER = "order"


def read_recording(files: Sequence[Path]) -> Recording:
    """Read the dataset of one NPZ file. Raises InputError with file and array."""
    (file,) = files
    arrays = _load_arrays(file)
    if "x_train" not in arrays:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"{file} must have the arrays x_train and y_train; it has {names}")
    _check_names(file, arrays)
    _arrange(file, arrays)
    splits = {split: _make_split(file, arrays, split) for split in SPLITS if f"x_{split}" in arrays}
    count = arrays["x_train"].shape[1]
    for split in splits:
        if (other := arrays[f"x_{split}"].shape[1]) != count:
            raise InputError(
                f"{file}: x_{split} has {other} channels and x_train has {count}; they must be the same"
            )
    channels = _get_texts(file, "channels", arrays["channels"], count) if "channels" in arrays else None
    classes = sort_labels(splits["train"].labels)
    return make_recording(channels or [f"dim{i}" for i in range(count)], classes, splits)


def read_series(file: Path, count: int) -> tuple[list[str] | None, list[tuple[str, np.ndarray]]]:
    """Return the names of the channels, and the sequences of `x`, or of all splits if there is no `x`.

    `count` is the number of channels that the model takes. Raises InputError like `read_recording`.
    """
    arrays = _load_arrays(file)
    _arrange(file, arrays, count)
    splits = [name.removeprefix("x") for name in arrays if name == "x" or name.startswith("x_")]
    if not splits:
        raise InputError(
            f"{file} must have an array x, (N, C, T); it has {', '.join(sorted(arrays)) or 'nothing'}"
        )
    series = []
    for split in splits:
        x, lengths = _get_values(file, arrays, f"x{split}", f"lengths{split}")
        series += [
            (f"x{split}[{i}]", values[:, :length])
            for i, (values, length) in enumerate(zip(x, lengths.tolist(), strict=True))
        ]
    channels = arrays.get("channels")
    return None if channels is None else _get_texts(file, "channels", channels, x.shape[1]), series


def _load_arrays(file: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    name = ""
    try:
        with open(file, "rb") as opened:
            if opened.read(2) != b"PK":  # NumPy's message would suggest to allow pickles.
                raise zipfile.BadZipFile("it is no zip file")
        with np.load(file, allow_pickle=False) as opened:
            for name in opened.files:
                array = opened[name]
                if not isinstance(array, np.ndarray):  # NumPy returns bytes if an array's header is damaged.
                    raise ValueError(f"{name} is no array of NumPy")
                arrays[name] = array
    except Exception as error:  # NumPy and its zip files raise errors of many types
        if str(error).startswith("Object arrays"):
            raise InputError(
                f"{file}: {name} is an array of objects, which is not read since it can run code. Pad the "
                f"sequences to one (N, C, T) array and add lengths_train"
            ) from None
        raise InputError(
            f"{file} is damaged or not an NPZ file ({_reason(error)}); write it again"
        ) from error
    return arrays


def _reason(error: Exception) -> str:
    """Return the error in one line. NumPy takes unknown files for pickles, and suggests to allow these."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: no array" if not text or "pickle" in text else text[:200]


def _arrange(file: Path, arrays: dict[str, np.ndarray], count: int | None = None) -> None:
    """Bring all `x` into the order (N, C, T), in place. `count` is the number of channels if it is known."""
    names = [name for name in arrays if (name == "x" or name.startswith("x_")) and arrays[name].ndim == 3]
    if names and _has_steps_first(file, arrays, names, count):
        for name in names:
            arrays[name] = arrays[name].transpose(0, 2, 1)


def _has_steps_first(
    file: Path, arrays: Mapping[str, np.ndarray], names: Sequence[str], count: int | None
) -> bool:
    if ORDER in arrays:
        order = str(arrays[ORDER]).upper()
        if order not in ORDERS:
            raise InputError(f"{file}: {ORDER} must be one of {', '.join(ORDERS)}; got {quote(order)}")
        return order == "NTC"
    name = "x_train" if "x_train" in names else names[0]
    _, first, second = arrays[name].shape
    counts = {len(arrays["channels"])} if "channels" in arrays and arrays["channels"].ndim == 1 else {count}
    if first in counts or second in counts:
        return first not in counts
    if 0 in (first, second) or first <= second:
        return False
    tell(
        f"warning: {file}: {name} {arrays[name].shape} is read as {first} steps of {second} channels. Save "
        f'the file with {ORDER}="NCT" if it has {first} channels, otherwise with "NTC"'
    )
    return True


def _check_names(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Reject unknown names. A misspelt name would otherwise be ignored."""
    known = {f"{kind}_{split}" for kind in ("x", "y", "lengths", "subject", "group") for split in SPLITS}
    known |= {"channels", ORDER}
    if extra := sorted(set(arrays) - known):
        raise InputError(f"{file}: unknown array {extra[0]!r}; the names are {', '.join(sorted(known))}")
    for name in sorted(arrays):
        kind, _, split = name.partition("_")
        if split and kind != "x" and f"x_{split}" not in arrays:
            raise InputError(f"{file} has {name} but no x_{split}; save both or neither")


def _make_split(file: Path, arrays: dict[str, np.ndarray], split: str) -> SplitSequences:
    if f"y_{split}" not in arrays:
        raise InputError(f"{file} has x_{split} but no y_{split}; add the label of each sequence")
    x, lengths = _get_values(file, arrays, f"x_{split}", f"lengths_{split}")
    subject = next((name for kind in ("group", "subject") if (name := f"{kind}_{split}") in arrays), "")
    return SplitSequences(
        values=[values[:, :length] for values, length in zip(x, lengths.tolist(), strict=True)],
        labels=_get_texts(file, f"y_{split}", arrays[f"y_{split}"], len(x)),
        names=[f"{split}/{i}" for i in range(len(x))],
        locate=lambda i: f"{file}: x_{split}[{i}]",
        subjects=_get_texts(file, subject, arrays[subject], len(x)) if subject else None,
    )


def _get_values(
    file: Path, arrays: dict[str, np.ndarray], name: str, real: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the array `name`, float32 (N, C, T), and the number of real steps of each sequence, `(N,)`."""
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
    with np.errstate(over="ignore"):  # Values that do not fit become infinite and are reported later.
        return x.astype(np.float32, copy=False), lengths


def _get_texts(file: Path, name: str, array: np.ndarray, count: int) -> list[str]:
    if array.shape != (count,) or array.dtype.kind not in "iuU":
        raise InputError(
            f"{file}: {name} must be integers or strings ({count},), not {array.dtype} {array.shape}"
        )
    return [normalise_nfc(str(value)) for value in array.tolist()]
