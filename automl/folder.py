"""The folder of a search, and `search.json` in it: what was asked, with which code, on which machine."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attention import InputError
from automl.settings import Settings, short_name
from search.ledger import Plan
from search.record import TRIALS

FILE = "search.json"
LOCK = ".lock"
FORMAT = 1

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
class About:
    """What `search.json` holds.

    identity: tells this search from any other of the same name.
    plan: the fields of the search's Plan.
    fingerprint: of the space's distributions. data: the digest of the training images.
    provenance: versions, hardware, the code's git commit and the command line.
    """

    identity: str
    settings: Settings
    plan: dict[str, Any]
    fingerprint: str
    data: str
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        assert self.settings.name is not None
        return self.settings.name

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **vars(self), "settings": self.settings.to_json()}


@contextmanager
def new_folder(
    settings: Settings, plan: Plan, *, fingerprint: str, data: str
) -> Iterator[tuple[Path, About]]:
    """A new folder for a search, which goes again if a mistake shows before the first trial.

    Raises InputError when it exists or cannot be written.
    """
    name = settings.name or f"{short_name(settings.space)}-{time.strftime('%Y%m%d-%H%M%S')}"
    about = About(
        identity=uuid.uuid4().hex,
        settings=replace(settings, name=name),
        plan=asdict(plan),
        fingerprint=fingerprint,
        data=data,
        provenance=provenance(),
    )
    folder = _place(settings.storage, name)
    try:
        folder.mkdir(parents=True, exist_ok=_is_void(folder))
    except FileExistsError:
        raise InputError(
            f"a search called {name!r} exists already in {settings.storage}; give this one another --name, "
            f"or go on with that one: automl search --resume {name}"
        ) from None
    except OSError as error:
        raise InputError(
            f"--storage {settings.storage} cannot be written ({error.strerror}); name a folder that can"
        ) from error
    try:
        with _locked(folder, name):
            write_about(folder, about)
            yield folder, about
    except InputError:
        if not (folder / TRIALS).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _is_void(folder: Path) -> bool:
    """Whether a search was killed here before it had written anything."""
    return folder.is_dir() and all(
        file.name == LOCK or file.name.startswith(f"{FILE}.") for file in folder.iterdir()
    )


@contextmanager
def old_folder(name: str, storage: str) -> Iterator[tuple[Path, About]]:
    """The folder of an earlier search, for this process alone. Raises InputError when there is none."""
    folder = find_folder(name, storage)
    with _locked(folder, name):
        yield folder, read_about(folder)


def find_folder(name: str, storage: str) -> Path:
    """The folder of the search called `name`. Raises InputError with the names that there are."""
    folder = _place(storage, name)
    if not (folder / FILE).is_file():
        root = folder.parent
        names = sorted(file.parent.name for file in root.glob(f"*/{FILE}")) if root.is_dir() else []
        there = f"there are {', '.join(names[-10:])}" if names else "there is none"
        raise InputError(f"no search called {name!r} in {storage}; {there}. Is --storage right?")
    return folder


def find_latest(storage: str) -> str:
    """The name of the search that was begun last. Raises InputError when there is none."""
    root = Path(storage).expanduser().resolve()
    files = sorted(root.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise InputError(f"there is no search in {storage}; run automl search first. Is --storage right?")
    return files[-1].parent.name


def read_about(folder: Path) -> About:
    """What `search.json` holds. Raises InputError when it is damaged."""
    try:
        value = json.loads((folder / FILE).read_text())
        if value.pop("format") != FORMAT:
            raise KeyError("format")
        return About(**{**value, "settings": Settings.from_json(value["settings"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / FILE} is damaged or not one of ours ({error!r})") from error


def write_about(folder: Path, about: About) -> None:
    """Write `search.json`, atomically."""
    new = folder / f"{FILE}.{os.getpid()}"
    new.write_text(json.dumps(about.to_json(), indent=2))
    os.replace(new, folder / FILE)


def is_running(folder: Path) -> bool:
    """Whether a process on this machine, or on one that shares the folder's locks, is at the search."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=1)  # `is_running` may hold it for a moment
    except Timeout:
        raise InputError(
            f"search {name!r} is running in another process; two cannot go on with one"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _place(storage: str, name: str) -> Path:
    return Path(storage).expanduser().resolve() / name


def provenance() -> dict[str, Any]:
    """Where and with what this is run."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "commit": _commit(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    """None where it is not installed, as this one in a checkout that was sent to a cluster."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of this code, with `+` where files differ from it; None outside of a repository."""
    here = Path(__file__).parent
    try:
        # Installed below a repository of somebody else's, this code is not of that repository.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=here, capture_output=True, timeout=10, check=True,
        )  # fmt: skip
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
