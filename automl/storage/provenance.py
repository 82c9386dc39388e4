"""Provenance of a search: the command line, machine, git commit and package versions."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from automl.base.escape import redact

PACKAGES = (
    "attention-automl",
    "ray",
    "torch",
    "torchvision",
    "optuna",
    "mlflow",
    "fastai",
    "numpy",
    "pyarrow",
)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Types of the values that `collect_provenance` returns."""

    command: Sequence[str] = ()
    started: str = ""
    python: str = ""
    system: str = ""
    cores: int | None = None
    gpus: Sequence[str] = ()
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def collect_provenance() -> dict[str, Any]:
    """Return the command line, start time, machine, git commit and package versions of this process."""
    from automl.config.device import gpu_names  # it imports torch

    return {
        "command": _command(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpu_names(),
        "commit": _commit(),
        "versions": {name: installed for name in PACKAGES if (installed := _version(name))},
    }


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
    folder = Path(__file__).parent
    try:
        # If this code is installed below another repository, that repository's commit is not its own.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=folder, capture_output=True, timeout=10, check=True,
        )  # fmt: skip
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
