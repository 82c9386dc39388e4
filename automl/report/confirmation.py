"""Read the confirmations in a search's folder: `confirm/verdict.json`, `confirm-2/...`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from attention import InputError
from automl.confirm.decision import OUTCOMES
from automl.confirm.protocol import CONFIRM_FOLDER
from automl.confirm.written import VERDICT_FILE
from search.serialise import from_json, parse_json, read_file


@dataclass(frozen=True, kw_only=True)
class ReportedComparison:
    """A variant compared with the baseline.

    Attributes:
        variant: The name of the variant.
        role: Its role.
        difference: Its difference from the baseline.
        interval: The 95 % interval over seeds.
        interval_inputs: The interval over seeds and test inputs.
        time: The ratio of its training time to the baseline's.
        p: The p-value.
        p_holm: For a finalist, p adjusted for all finalists.
        sentence: The comparison in words.
    """

    variant: str
    role: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    interval_inputs: tuple[float, float] | None = None
    time: float | None = None
    p: float | None = None
    p_holm: float | None = None
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportedVariant:
    """Configuration that was trained with every seed.

    Attributes:
        name: The name.
        role: The role.
        trial: The number of its trial in the search.
        config: The configuration.
        scores: The scores from 0 to 1 by seed.
        failed: The reason of a missing score by seed.
        costs: The `steps`, `seconds` and `processor_seconds` of each training, where they are known.
    """

    name: str
    role: str
    trial: int | None
    config: Mapping[str, Any]
    scores: Mapping[str, float]
    failed: Mapping[str, str]
    costs: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def mean_cost(self, name: str) -> float | None:
        """Return the mean cost of its trainings, or None if not all have it."""
        values = [cost.get(name) for cost in self.costs.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class ReportedVerdict:
    """A confirmation, finished or not. Differences and `margin` are in `unit`.

    Attributes:
        verdict: The outcome, or None before it is final or if too many trainings failed.
        finalist: The name of the leading finalist.
        remarks: Lines with reasons, advice and the results of the other variants.
    """

    confirmation: int
    complete: bool
    verdict: str | None
    headline: str
    figures: str
    seeds: int
    margin: float
    unit: str
    metric: str
    split: str
    comparisons: Sequence[ReportedComparison]
    variants: Sequence[ReportedVariant]
    finalist: str | None = None
    sequential: bool = False
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()


def read_verdicts(folder: Path) -> list[ReportedVerdict]:
    """Read the confirmations of a search, the latest last. Raise InputError for a damaged one."""
    verdicts = {}
    for file in folder.glob(f"{CONFIRM_FOLDER}*/{VERDICT_FILE}"):
        if match := re.fullmatch(rf"{CONFIRM_FOLDER}(?:-(\d+))?", file.parent.name):
            verdicts[int(match[1] or 1)] = file
    return [_read(verdicts[number], number) for number in sorted(verdicts)]


def _read(file: Path, number: int) -> ReportedVerdict:
    try:
        value = parse_json(read_file(file))
        if not isinstance(value, dict) or not isinstance(value.get("comparisons"), list):
            raise InputError("it holds no comparisons")
        comparisons = [_with_ratio(comparison) for comparison in value["comparisons"]]
        value = {**value, "confirmation": number, "comparisons": comparisons}
        verdict = from_json(ReportedVerdict, value, "content", strict=False)
        if verdict.verdict not in (*OUTCOMES, None):
            raise InputError(f"unknown verdict {verdict.verdict!r}")
    except InputError as error:
        raise InputError(
            f"{file} is corrupt or in an unsupported format ({error}); move it away, or make it again "
            f"with automl confirm"
        ) from error
    return verdict


def _with_ratio(comparison: object) -> object:
    """Replace the time of a comparison by its ratio, without the interval."""
    if not isinstance(comparison, dict) or not isinstance(comparison.get("time"), dict):
        return comparison
    return {**comparison, "time": comparison["time"].get("ratio")}
