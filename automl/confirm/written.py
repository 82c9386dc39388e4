"""Read `verdict.json`, which `Verdict.to_json` writes, for other commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention import InputError
from automl.confirm.decision import OUTCOMES
from search.config import TrialConfig
from search.serialise import read_json

VERDICT_FILE = "verdict.json"


@dataclass(frozen=True, kw_only=True)
class WrittenVariant:
    """A variant in `verdict.json`, with its scores from 0 to 1 by seed."""

    name: str
    config: TrialConfig
    scores: Mapping[str, float]

    def __post_init__(self) -> None:
        for seed in self.scores:
            if not (seed.isascii() and seed.isdecimal()):
                raise InputError(f"a seed must be a number; got {seed!r}")


@dataclass(frozen=True, kw_only=True)
class WrittenVerdict:
    """The fields of `verdict.json` that other commands need."""

    complete: bool
    verdict: str | None
    headline: str
    figures: str
    winner: str | None
    finalist: str | None
    resolution: float
    variants: Sequence[WrittenVariant]
    pending: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.verdict not in (*OUTCOMES, None):
            raise InputError(f"verdict must be one of {', '.join(OUTCOMES)}; got {self.verdict!r}")


def read_verdict(folder: Path) -> WrittenVerdict:
    """Read `verdict.json` of the confirmation in `folder`. Raise InputError if it is damaged."""
    return read_json(WrittenVerdict, folder / VERDICT_FILE, strict=False)
