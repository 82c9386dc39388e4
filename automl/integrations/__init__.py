"""Callbacks that connect the loop of another library to a trial. Each imports its library alone.

lightning     `TrialCallback` for Lightning's `Trainer`
transformers  `TrialCallback` for Hugging Face's `Trainer`
fastai        `TrialCallback` for fastai's `Learner`
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor


class CheckpointFiles:
    """The checkpoint files of a library. `trial.state` takes it, and stores the files as bytes.

    Attributes:
        folder: Temporary folder for the files. In a resumed trial it has the files of the last report.
        newest: The folder in it that is stored.
    """

    def __init__(self) -> None:
        self._temporary = TemporaryDirectory()
        self.folder = self.newest = Path(self._temporary.name)

    def state_dict(self) -> dict[str, Tensor]:
        """Read the files, each as a tensor of bytes."""
        paths = [path for path in self.newest.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.folder)): torch.from_numpy(np.fromfile(path, dtype=np.uint8))
            for path in paths
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Write the files."""
        for name, content in state.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content.cpu().numpy().tofile(path)
