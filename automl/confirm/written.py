"""Read `verdict.json`, which `Verdict.to_json` writes, for other commands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from automl.base.errors import InputError
from automl.base.serialise import read_json
from automl.confirm.decision import OUTCOMES
from search.config import TrialConfig

CONFIRM_FOLDER, VERDICT_FILE = "confirm", "verdict.json"


@dataclass(frozen=True, kw_only=True)
class WrittenRatio:
    """The ratio of a variant's training time to the baseline's."""

    ratio: float


@dataclass(frozen=True, kw_only=True)
class WrittenComparison:
    """A `Comparison`: `interval` is that over seeds, `interval_inputs` the one over seeds and test inputs."""

    variant: str
    role: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    interval_inputs: tuple[float, float] | None = None
    time: WrittenRatio | None = None
    p: float | None = None
    p_holm: float | None = None
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class WrittenVariant:
    """A `Variant` and how it was trained.

    Attributes:
        scores: The scores from 0 to 1 by seed.
        failed: The reason of a missing score by seed.
        costs: The `steps`, `seconds` and `processor_seconds` of each training, where they are known.
    """

    name: str
    role: str
    trial: int | None
    config: TrialConfig
    scores: Mapping[str, float]
    failed: Mapping[str, str]
    costs: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for seed in self.scores:
            if not (seed.isascii() and seed.isdecimal()):
                raise InputError(f"a seed must be a number; got {seed!r}")

    def mean_cost(self, name: str) -> float | None:
        """Return the mean cost of its trainings, or None if not all have it."""
        values = [cost.get(name) for cost in self.costs.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class WrittenVerdict:
    """A confirmation, finished or not. Differences and `margin` are in `unit`.

    Attributes:
        confirmation: The number of the confirmation.
        verdict: The outcome, or None before it is final or if too many trainings failed.
        finalist: The name of the leading finalist.
        remarks: Lines with reasons, advice and the results of the other variants.
        pending: The names of controls that have not ended.
    """

    confirmation: int
    complete: bool
    verdict: str | None
    headline: str
    figures: str
    winner: str | None
    finalist: str | None
    seeds: int
    margin: float
    unit: str
    metric: str
    split: str
    resolution: float
    comparisons: Sequence[WrittenComparison]
    variants: Sequence[WrittenVariant]
    sequential: bool = False
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()
    pending: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.verdict not in (*OUTCOMES, None):
            raise InputError(f"verdict must be one of {', '.join(OUTCOMES)}; got {self.verdict!r}")


def confirm_folder(number: int) -> str:
    """Return the folder of a confirmation in that of its search."""
    return CONFIRM_FOLDER if number == 1 else f"{CONFIRM_FOLDER}-{number}"


def read_verdict(folder: Path) -> WrittenVerdict:
    """Read `verdict.json` of the confirmation in `folder`. Raise InputError if it is damaged."""
    try:
        return read_json(WrittenVerdict, folder / VERDICT_FILE, strict=False)
    except InputError as error:
        raise InputError(f"{error}; move it away, or make it again with automl confirm") from error


def read_verdicts(folder: Path) -> list[WrittenVerdict]:
    """Read the confirmations of a search, the latest last. Raise InputError for a damaged one."""
    folders = {}
    for file in folder.glob(f"{CONFIRM_FOLDER}*/{VERDICT_FILE}"):
        if match := re.fullmatch(rf"{CONFIRM_FOLDER}(?:-(\d+))?", file.parent.name):
            folders[int(match[1] or 1)] = file.parent
    return [read_verdict(folders[number]) for number in sorted(folders)]
