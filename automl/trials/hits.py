"""Which test inputs a model classified correctly: a bit for each, beside its checkpoint, and kept longer.

Of ten thousand inputs these are 1.3 KB, so that those of all of a confirmation's trainings stay.
"""

import io
import logging
import zipfile

import numpy as np

from automl.storage.storage import Storage

HITS_FILE = "hits.npz"

log = logging.getLogger("automl")


def save(folder: Storage, hits: np.ndarray) -> None:
    """Write them, bool `(inputs,)` in the order of the split. Raises OSError."""
    buffer = io.BytesIO()
    np.savez(buffer, bits=np.packbits(hits.astype(bool)), count=len(hits))
    folder.write(HITS_FILE, buffer.getvalue())


def read(folder: Storage) -> np.ndarray | None:
    """Those of a training, bool `(inputs,)`; None where there are none that can be read."""
    try:
        with np.load(io.BytesIO(folder.read(HITS_FILE))) as file:
            return np.unpackbits(file["bits"], count=int(file["count"])).astype(bool)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        log.warning("%s of %s cannot be read: %s", HITS_FILE, folder, error)
        return None
