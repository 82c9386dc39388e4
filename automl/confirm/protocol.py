"""A confirmation on disk: its plan, fixed before the first trial, its study and its verdict."""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection

from attention import InputError, unknown
from automl.config.settings import INIT
from automl.confirm.design import Design
from automl.confirm.statistics import ALPHA, least_pairs
from automl.confirm.variants import CONTROL_ROLES, VariantSet
from automl.confirm.written import VERDICT_FILE, WrittenVerdict, read_verdict
from automl.storage.folder import SearchMetadata
from automl.storage.provenance import Provenance
from search.metric import Chance, Metric
from search.record import Role, State, TrialRecord
from search.serialise import from_json, read_json
from search.study import STUDY_FILE, create_study, resume_study
from search.trial_scheduler import Plan

CONFIRM_FOLDER, CONFIRM_FILE = "confirm", "confirm.json"
FORMAT = 3  # of confirm.json
SELECTION = 3  # seeds by whose validation the tuned baseline is chosen among the candidates


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen. Raises InputError for what cannot work.

    top: finalists. seeds: of each variant. margin: the least difference that matters, in the unit of the
    metric's differences; the metric's own where not given. sequential: stop adding seeds as soon as the
    design is decided, at levels that keep the error rate of all looks together. init: what trainings start
    from, `scratch` or `shared`; as in the search where not given.
    """

    top: int = 3
    seeds: int = 10
    margin: float | None = None
    sequential: bool = True
    init: str | None = None

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputError(f"--top must be 1 or more; got {self.top}")
        if self.seeds < 2:
            raise InputError(
                f"--seeds must be 2 or more, and {least_pairs(ALPHA / self.top)} or more to show anything: "
                f"one seed does not show the spread over seeds; got {self.seeds}"
            )
        if self.margin is not None and not 0 <= self.margin < inf:
            raise InputError(f"--margin must be 0 or more; got {self.margin:g}")
        if self.init is not None and self.init not in INIT:
            raise unknown("kind of start", self.init, INIT)


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What `confirm.json` holds: fixed before the first trial, so that no choice is made after seeing scores.

    number: 1 for a search's first. seeds: of each variant, in order. arm_set: the variants.
    inputs, chance: of the test split, as in `Design`.
    """

    number: int
    options: Options
    seeds: list[int]
    variant_set: VariantSet
    provenance: dict[str, Any]
    inputs: int
    chance: Chance | None

    def __post_init__(self) -> None:
        if not any(variant.role is Role.FINALIST for variant in self.variant_set.variants):
            raise InputError("arm_set.variants has no finalist")
        if len(self.seeds) < 2 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must be two or more different ones; got {self.seeds}")
        from_json(Provenance, self.provenance, "provenance", strict=False)

    @classmethod
    def read(cls, folder: Path) -> "Confirmation":
        """Raises InputError when the file is corrupt."""
        return read_json(cls, folder / CONFIRM_FILE, format=FORMAT)

    @property
    def least(self) -> int:
        """Seeds below which nothing can be shown."""
        return least_pairs(
            ALPHA / sum(variant.role is Role.FINALIST for variant in self.variant_set.variants)
        )

    @property
    def selection(self) -> list[int]:
        """The seeds with which the candidates for the tuned baseline are compared; none for a single one."""
        return self.seeds[:SELECTION] if self.variant_set.baseline_candidates else []

    def design(self, metric: Metric, equal: str) -> Design:
        """What is asked. equal: what all variants have the same of, time or epochs."""
        return Design(
            seeds=self.seeds,
            equal=equal,
            shared_trainings=self.variant_set.variants[0].config.training.insert_at > 0,
            margin=metric.margin if self.options.margin is None else self.options.margin,
            sequential=self.options.sequential,
            metric=metric.name,
            maximize=metric.maximize,
            scale=metric.scale,
            unit=metric.gap_unit,
            inputs=self.inputs,
            chance=self.chance,
        )

    def plan(self, search: Plan) -> Plan:
        """Of the trials that it takes in any case, each scored on the test split.

        search: the plan of the search.
        """
        metric = replace(search.metric, name=f"test_{search.metric.name}")
        compared = [variant for variant in self.variant_set.variants if variant.role not in CONTROL_ROLES]
        return Plan(
            trials=len(self.seeds) * len(compared)
            + len(self.selection) * len(self.variant_set.baseline_candidates),
            budget=search.budget,
            metric=metric,
            objectives=[metric.name],
            baseline_share=0,
        )


def confirmations(folder: Path) -> list[Path]:
    """The folders of a search's confirmations, the first one first."""
    files = folder.glob(f"{CONFIRM_FOLDER}*/{CONFIRM_FILE}")
    found = [file.parent for file in files if re.fullmatch(rf"{CONFIRM_FOLDER}(-\d+)?", file.parent.name)]
    return sorted(found, key=lambda path: Confirmation.read(path).number)


def study_name(folder: Path, metadata: SearchMetadata) -> str:
    """Of the confirmation in `folder`."""
    return f"{metadata.name}-{folder.name}"


def latest_verdict(folder: Path) -> tuple[Path, WrittenVerdict] | None:
    """Read the verdict of a search's latest confirmation that has one. Return it with that one's folder.

    Raises InputError when the file is damaged.
    """
    places = [place for place in confirmations(folder) if (place / VERDICT_FILE).exists()]
    return (places[-1], read_verdict(places[-1])) if places else None


def chosen_baseline(place: Path, variant_set: VariantSet) -> str | None:
    """Return the name of the tuned baseline of the confirmation in `place`, None before one is chosen."""
    try:
        name = read_verdict(place).variants[0].name
    except (InputError, IndexError):
        return None  # it follows from the study
    return name if any(variant.name == name for variant in variant_set.baselines) else None


def best_of_variant(records: Iterable[TrialRecord], variant: str, design: Design) -> TrialRecord | None:
    """Of a variant's trainings the one with the best validation, of equals the first: test chooses
    nothing.
    """
    sign = 1 if design.maximize else -1
    done = [record for record in records if record.variant == variant and record.state is State.COMPLETE]
    return max(done, key=lambda record: sign * record.value(design.metric), default=None)


def study_in(
    folder: Path, metadata: SearchMetadata, *, maximize: bool, needed: Collection[str] = ()
) -> optuna.Study:
    """Return the study of the confirmation in `folder`; create it where there is none yet.

    needed: metrics that each completed trial must have. Raises InputError when the study is damaged or lost.
    """
    name = study_name(folder, metadata)
    if (folder / STUDY_FILE).exists():
        with suppress(KeyError):  # killed between the file and the study in it
            return resume_study(folder, name=name, needed=needed)
    if (folder / VERDICT_FILE).exists() and read_verdict(folder).variants:
        raise InputError(
            f"{folder / STUDY_FILE} is missing or empty, but there is a verdict; restore it from a copy, or "
            f"delete {folder}"
        )
    direction = StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE
    return create_study(folder, name=name, directions=[direction])
