"""The handwritten digits of scikit-learn."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np


@cache
def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 `(1797, 8, 8)` from 0 to 16, and labels, int64 `(1797,)`, as `load_digits` does.

    The file of scikit-learn is read directly, since importing the library takes each process of a trial a
    second.
    """
    library = find_spec("sklearn")
    assert library is not None
    assert library.origin is not None
    file = Path(library.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    images.flags.writeable = labels.flags.writeable = False  # All callers share the arrays.
    return images, labels
