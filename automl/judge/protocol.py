"""A confirmation on disk: its plan, fixed before the first trial, its study and its verdict."""

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from automl.base.errors import InputError
from automl.base.escape import redact_all
from automl.base.serialise import parse_json, read_file, read_json, to_json
from automl.base.units import pluralize
from automl.judge.design import COMMANDS, MODELS, OWN_MODELS, Design, TrainingKind
from automl.judge.statistics import ALPHA, least_pairs
from automl.judge.variants import CONTROL_ROLES, VariantSet
from automl.judge.verdict import CONFIRM_FOLDER, VERDICT_FILE, confirm_folder, read_verdict
from automl.storage.metadata import Provenance, SearchMetadata
from automl.storage.storage import Storage
from automl.storage.user_code import command_in
from automl.tracking.run_spec import CONFIRMS, RunSpec, below, source
from search.config.sections import OwnTraining
from search.metric import Chance, Metric
from search.record import Role, State, TrialRecord
from search.study import STUDY_FILE, create_study, resume_study
from search.trial_scheduler import Plan

if TYPE_CHECKING:
    import optuna

CONFIRM_FILE = "confirm.json"
FORMAT = 3  # version of confirm.json
MAX_SEEDS = 1000  # beyond, a test takes minutes and gigabytes
SELECTION = 3  # number of seeds whose validation chooses the tuned baseline among the candidates


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that a confirmation keeps, as in `ConfirmOptions`. Raises InputError if one is out of range.

    Attributes:
        screen: The number of seeds that screen a change of a ledger, before those of its test. 0 without one.
        noise: True if the baseline is trained alone, to measure its noise.
    """

    REMOVED: ClassVar = {"init": None}

    top: int = 3
    seeds: int = 10
    margin: float | None = None
    sequential: bool = True
    screen: int = 0
    noise: bool = False

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputError(f"--top must be 1 or more; got {self.top}")
        if self.seeds < 2:
            raise InputError(f"--seeds must be 2 or more; got {self.seeds}")
        if self.seeds > MAX_SEEDS:
            raise InputError(f"--seeds must be {MAX_SEEDS} or less; got {self.seeds}")
        if self.margin is not None and not 0 <= self.margin < inf:
            raise InputError(f"--margin must be 0 or more; got {self.margin:g}")

    def check_new(self) -> "Options":
        """Return these options. Raise InputError if a new confirmation with them cannot show a difference."""
        least = 0 if self.noise else least_pairs(ALPHA / self.top)
        if self.seeds < least:
            raise InputError(
                f"--seeds must be {least} or more to compare {pluralize(self.top, 'variants')} with the "
                f"baseline: fewer cannot show a difference, whatever the scores are; got {self.seeds}"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The content of `confirm.json`, fixed before the first trial so that no choice depends on scores.

    Attributes:
        number: The number of the confirmation, 1 for a search's first.
        seeds: The seeds of each variant, in order.
        inputs: The number of inputs of the test split.
        chance: The score of guessing on the test split, or None if it is not known.
        change: For a change of a ledger, the number of the head that it is compared with, and its program.
    """

    number: int
    options: Options
    seeds: list[int]
    variant_set: VariantSet
    provenance: Provenance
    inputs: int
    chance: Chance | None
    change: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.options.noise and all(v.role is not Role.FINALIST for v in self.variant_set.variants):
            raise InputError("variant_set.variants has no finalist")
        if len(self.seeds) < 2 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must be two or more different numbers; got {self.seeds}")

    @classmethod
    def read(cls, folder: Path) -> "Confirmation":
        """Read `confirm.json` in `folder`. Raise InputError if it is corrupt."""
        return read_json(cls, folder / CONFIRM_FILE, format=FORMAT)

    @property
    def folder(self) -> str:
        """Name of its folder in that of the search."""
        return confirm_folder(self.number)

    @property
    def least(self) -> int:
        """Least number of seeds that can show a difference."""
        count = sum(variant.role is Role.FINALIST for variant in self.variant_set.variants)
        return least_pairs(ALPHA / count) if count else 0

    @property
    def kind(self) -> TrainingKind:
        """Kind of the trainings."""
        own = isinstance(self.variant_set.variants[0].config.training, OwnTraining)
        return COMMANDS if self.commands() else OWN_MODELS if own else MODELS

    def commands(self) -> list[str]:
        """Return the commands that the variants run, each in its folder, as names of user-defined code."""
        configs = [variant.config for variant in self.variant_set.variants]
        commands = [(config.data.path, getattr(config.model, "command", "")) for config in configs]
        return [command_in(folder, command) for folder, command in commands if command]

    @property
    def selection(self) -> list[int]:
        """Seeds at which the candidates for the baseline are compared. Empty for a single candidate."""
        return self.seeds[:SELECTION] if self.variant_set.baseline_candidates else []

    def design(self, metric: Metric, equal: str) -> Design:
        """Return the design. `equal` is as in `Design`."""
        step = metric.scale * self.chance.step if self.chance is not None else 0.0
        return Design(
            seeds=self.seeds,
            equal=equal,
            margin=metric.margin_over(step) if self.options.margin is None else self.options.margin,
            sequential=self.options.sequential,
            metric=metric,
            inputs=self.inputs,
            chance=self.chance,
            kind=self.kind,
        )

    def plan(self, search: Plan) -> Plan:
        """Return the plan of the trials that are needed in any case, scored on the kind's split."""
        metric, split = search.metric, self.kind.split
        if split:
            metric = replace(metric, name=f"{split}_{metric.name}")
        compared = [variant for variant in self.variant_set.variants if variant.role not in CONTROL_ROLES]
        return Plan(
            trials=len(self.seeds) * len(compared)
            + len(self.selection) * len(self.variant_set.baseline_candidates),
            budget=search.budget,
            metric=metric,
            baseline_share=0,
            pruning=False,
        )

    def run_spec(self, location: Storage, metadata: SearchMetadata) -> RunSpec:
        """Return the confirmation's run in MLflow, below that of the search. `location` is its folder.

        Commands have no search. Their first comparison is the run of the whole folder.
        """
        number = self.number
        alone = number == 1 and not metadata.has_trials
        name = f"{metadata.name} confirm" + (f" {number}" if number > 1 else "")
        return RunSpec(
            name=metadata.name if alone else name,
            tags={CONFIRMS: metadata.name},
            source=source(self.provenance, metadata.scale),
            data=metadata.data,
            splits=self.kind.splits,
            identity=metadata.identity if alone else f"{metadata.identity}-confirm-{number}",
            above="" if alone else metadata.identity,
            experiment=metadata.settings.question.title,
            checkpoint=partial(below, location),
            params={**vars(self.options), "first_seed": self.seeds[0]},
            settings=redact_all(to_json(self)),
        )


def confirmations(folder: Path, file: str = CONFIRM_FILE) -> list[Path]:
    """Return the folders of a search's confirmations that have a file, in order of their numbers."""
    folders = {}
    for path in folder.glob(f"{CONFIRM_FOLDER}*/{file}"):
        if match := re.fullmatch(rf"{CONFIRM_FOLDER}(?:-(\d+))?", path.parent.name):
            folders[int(match[1] or 1)] = path.parent
    return [folders[number] for number in sorted(folders)]


def study_name(folder: Path, search: str) -> str:
    """Return the name of the study of the confirmation in `folder`."""
    return f"{search}-{folder.name}"


def trials_of(folder: Path, metadata: SearchMetadata) -> tuple[Path, str, Plan]:
    """Return the folder, the name of the study and the plan of a search's trials.

    Commands have no search. Their trials are those of their latest comparison, once it has begun.
    """
    if not metadata.has_trials and (compared := confirmations(folder)):
        plan = Confirmation.read(compared[-1]).plan(metadata.plan)
        return compared[-1], study_name(compared[-1], metadata.name), plan
    return folder, metadata.name, metadata.plan


def is_open(plan: Plan, records: Collection[TrialRecord]) -> bool:
    """Return whether trials of a search have not begun or have not ended."""
    missing = len(records) < (plan.trials or 0)
    return missing or any(record.state is State.RUNNING for record in records)


def chosen_baseline(folder: Path, variant_set: VariantSet) -> str | None:
    """Return the name of the tuned baseline of the confirmation in `folder`, or None before it is chosen."""
    try:
        name = parse_json(read_file(folder / VERDICT_FILE))["variants"][0]["name"]
    except (InputError, LookupError, TypeError):
        return None  # The scheduler chooses it again from the study.
    return name if any(variant.name == name for variant in variant_set.baselines) else None


def best_of_variant(records: Iterable[TrialRecord], variant: str, design: Design) -> TrialRecord | None:
    """Return a variant's training with the best validation score, the first of equals.

    The test split has no part in the choice.
    """
    done = [record for record in records if record.variant == variant and record.state is State.COMPLETE]
    return max(done, key=lambda record: design.metric.sign * record.value(design.metric.name), default=None)


def study_in(
    folder: Path, search: str, *, maximize: bool, needed: Collection[str] = ()
) -> "optuna.Study | Callable[[], optuna.Study]":
    """Return the study of the confirmation of `search` in `folder`, or a function that creates it.

    Each completed trial must have the metrics `needed`. Raises InputError if the study is damaged or lost.
    """
    name = study_name(folder, search)
    if (folder / STUDY_FILE).exists():
        with suppress(KeyError):  # The process was killed after it created the file, before the study.
            return resume_study(folder, name=name, needed=needed)
    if (folder / VERDICT_FILE).exists() and any(v.scores for v in read_verdict(folder).variants):
        raise InputError(
            f"{folder / STUDY_FILE} is missing or empty, but there is a verdict. Restore the file from a "
            f"copy, or delete {folder}."
        )
    direction: Any = "maximize" if maximize else "minimize"
    return partial(create_study, folder, name=name, direction=direction)
