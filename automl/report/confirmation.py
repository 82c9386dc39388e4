"""Read the files of `automl confirm` in a search's folder: `confirm/verdict.json`, `confirm-2/...`."""

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
    """A variant against the baseline. `p_holm` is None for those that are no finalists.

    interval_inputs: over seeds and test inputs. time: its training time, as times of the baseline's.
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
    """One configuration that was trained on every seed.

    trial: its number in the search. scores: from 0 to 1 by seed. failed: why there is none.
    costs: of each training, `steps`, `seconds` and `processor_seconds`, as far as they are known.
    """

    name: str
    role: str
    trial: int | None
    config: Mapping[str, Any]
    scores: Mapping[str, float]
    failed: Mapping[str, str]
    costs: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def mean_cost(self, name: str) -> float | None:
        """Return the mean of a cost over the trainings, or None if one has none."""
        values = [cost.get(name) for cost in self.costs.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class ReportedVerdict:
    """A confirmation, finished or not; differences and `margin` are in `unit`.

    verdict: None until there is one, which is never where the trainings of too many seeds failed.
    finalist: the variant that leads. remarks: sentences on the other variants.
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
    """The confirmations of the search in `folder`, the latest last. Raises InputError for a damaged one."""
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
    """A comparison with its ratio of times alone, in the place of that and its interval."""
    if not isinstance(comparison, dict) or not isinstance(comparison.get("time"), dict):
        return comparison
    return {**comparison, "time": comparison["time"].get("ratio")}
