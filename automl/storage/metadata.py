"""The description of a search, `search.json`: its settings and its provenance."""

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.base.options import format_command
from automl.base.process import count_cores, may_have_gpu
from automl.base.serialise import read_json, write_json
from automl.config.nouns import REFEREE
from automl.config.settings import ParsedSettings
from automl.storage.git import GitError, run_git
from automl.storage.storage import Storage
from search.record import SearchRecord, TrialRecord
from search.space import Space, SpaceFunction, space_name
from search.trial_scheduler import Plan, select_leaders

if TYPE_CHECKING:
    from search.drawn import Drawn

PACKAGES = (
    "attention-automl", "ray", "torch", "torchvision", "optuna", "mlflow", "fastai", "numpy", "pyarrow",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Command line, start time, machine, git commit and package versions of a process."""

    command: Sequence[str] = ()
    started: str = ""
    python: str = ""
    system: str = ""
    cores: int | None = None
    gpus: Sequence[str] = ()
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def collect_provenance() -> Provenance:
    """Return the provenance of this process."""
    gpus: list[str] = []
    if may_have_gpu():
        from automl.config.device import gpu_names  # it imports torch

        gpus = gpu_names()
    return Provenance(
        command=_command(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        python=platform.python_version(),
        system=platform.platform(),
        cores=count_cores(),
        gpus=gpus,
        commit=_commit(),
        versions={name: installed for name in PACKAGES if (installed := _version(name))},
    )


def _command() -> list[str]:
    """Return the command line. It is empty in a notebook, where it would be that of the kernel."""
    program = Path(sys.argv[0]).name
    return [] if program.startswith("ipykernel") else [program, *map(redact, sys.argv[1:])]


def _version(package: str) -> str | None:
    """Return the version, or None if the package is not installed, as in a checkout sent to a cluster."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the git commit, with `+` if files differ from it, or None outside of a repository."""
    file = Path(__file__)
    describe = ("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    try:
        # If this code is installed below another repository, that repository's commit is not its own.
        run_git("ls-files", "--error-unmatch", file.name, folder=file.parent, timeout=10)
        return run_git(*describe, folder=file.parent, timeout=10) or None
    except GitError:
        return None


SEARCH_FILE = "search.json"
SPACE_FILE = "space.py"  # the source of a space that is a function
# Prefix of the names of functions that no other process can import. The same holds for names with `<`.
NOTEBOOK = "__main__:"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SearchMetadata:
    """Content of `search.json`: of a search, or of a comparison of commands, which has no space.

    Attributes:
        identity: Unique identifier, which differs between searches of the same name.
        plan: Number of trials, budget and metric.
        fingerprint: Digest of the space's distributions and configurations.
        data: Digest of all splits.
        gpu_fraction: Fraction of a GPU for each worker of a trial, once it is measured.
        scale: What a study trains and how this differs from its source. Empty for other searches.
    """

    identity: str
    settings: ParsedSettings
    plan: Plan
    fingerprint: str
    data: str
    provenance: Provenance
    gpu_fraction: float | None = None
    scale: str = ""

    @property
    def name(self) -> str:
        assert self.settings.place.name is not None
        return self.settings.place.name

    @property
    def has_trials(self) -> bool:
        """True if it has trials of its own, drawn from a space. False for a comparison of commands."""
        return bool(self.settings.question.space != REFEREE)

    @property
    def resume_command(self) -> str:
        """The command that resumes it, before its name."""
        return "search --resume" if self.has_trials else "referee --resume"

    @property
    def storage(self) -> str:
        """The storage of the search."""
        return self.settings.place.storage

    @property
    def location(self) -> Storage:
        """Folder of the search in its storage, with the checkpoints of trials."""
        return Storage(self.storage) / self.name

    @property
    def origin(self) -> Mapping[str, str]:
        """The space and the data, in words. Empty for commands, which name their data themselves."""
        if not self.has_trials:
            return {}
        question = self.settings.question
        data = (
            "those of the training function" if question.train else f"all splits, with the digest {self.data}"
        )
        return {"space": f"{question.space_name} (fingerprint {self.fingerprint})", "data": data}

    def record(self, folder: Path) -> SearchRecord:
        """Return the record that callbacks get. `folder` is that of the search or the confirmation."""
        metric = self.plan.metric
        return SearchRecord(
            name=self.name,
            folder=folder,
            storage=self.storage,
            metric=metric.name,
            maximize=metric.maximize,
            trials=self.plan.trials,
            settings=MappingProxyType(self.settings.to_json()),
        )

    def leaders(
        self, records: Sequence[TrialRecord], plan: Plan
    ) -> tuple[TrialRecord | None, TrialRecord | None]:
        """Return the best trial and the best baseline. Of commands, a verdict decides which is better."""
        return select_leaders(records, plan) if self.has_trials else (None, None)

    def milestones(self, plan: Plan) -> list[float]:
        """Return the resources of the rungs, where weak trials are pruned. Commands and grids have none."""
        return plan.rungs().milestones if self.has_trials and not self.settings.plan.is_grid else []

    def draw_space(self, moved: str | SpaceFunction | Space | None = None) -> "Drawn":
        """Load and draw the space of the search. Raise InputError if it cannot be loaded or has changed.

        `moved` replaces its name, if it was a function of a notebook or its file has moved.
        """
        question = self.settings.question
        if not self.has_trials:
            raise InputError(
                f"{self.name!r} compares commands and has no search space. Resume it: "
                f"{format_command(self.resume_command, self.name, self.storage)}"
            )
        try:
            drawn = (question if moved is None else question.with_space(moved)).open()
        except InputError as error:
            name = question.space_name
            if moved is not None or not (name.startswith(NOTEBOOK) or "<" in name):
                raise
            raise InputError(
                f"search {self.name!r} uses the function {name.removeprefix(NOTEBOOK)} of a notebook or "
                f"script, which is not available here. Define it and give it as space=FUNCTION. Or put it "
                f"with its imports into a file, and add --space file.py:function. Its source is in "
                f"{self.location}/{SPACE_FILE}"
            ) from error
        if drawn.fingerprint != self.fingerprint:
            raise InputError(
                f"space {space_name(question.space if moved is None else moved)!r} differs from that of "
                f"search {self.name!r}, so new trials would not be comparable. Restore the old space, or "
                f"start another search with --warm-start {self.name}."
            )
        return drawn


def read_metadata(folder: Path, storage: str) -> SearchMetadata:
    """Read `search.json` of a search in `storage`. Raise InputError if it is corrupt.

    The search gets the name of its folder, which may have been renamed.
    """
    metadata = read_json(SearchMetadata, folder / SEARCH_FILE, format=FORMAT)
    try:
        settings = metadata.settings.change(place={"storage": storage, "name": folder.name})
    except InputError as error:
        raise InputError(
            f"the folder {folder} has a name that no search may have; rename it: {error}"
        ) from error
    return replace(metadata, settings=settings)


def write_metadata(folder: Path, metadata: SearchMetadata) -> None:
    """Write `search.json`, atomically."""
    write_json(folder / SEARCH_FILE, metadata, format=FORMAT)


def write_gpu_fraction(folder: Path, storage: str, gpus: float) -> None:
    """Record the fraction of a GPU for each trial in `search.json`."""
    write_metadata(folder, replace(read_metadata(folder, storage), gpu_fraction=gpus))
