"""Configuration of the classification of sequences."""

from dataclasses import dataclass

from search.config.sections import Data


@dataclass(frozen=True, kw_only=True)
class SequenceData(Data):
    """Sequences of sensor readings. The source `ucihar` is downloaded if no path is set."""

    source: str = "ucihar"
