"""A change of a ledger, before it is compared: its program, its baseline, and its seeds."""

import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.options import format_option
from automl.judge import evalues
from automl.judge.ledger import LEDGER_FILE, Head, Ledger, Program, split_command
from automl.judge.options import RefereeOptions
from automl.judge.stream import check_metric
from automl.storage import git
from automl.storage.contents import digest_of, read_contents
from automl.storage.user_code import check_trusted, command_in
from search.config import TrialConfig

REFUSED = ("margin", "chance", "seed", "sequential", "storage")  # options that a ledger decides


def complete(asked: RefereeOptions) -> RefereeOptions:
    """Return the options of a comparison in a ledger, with the head as the baseline if none is named.

    Raise InputError for options that a ledger decides.
    """
    default, folder = RefereeOptions(), str(asked.ledger)
    if refused := [name for name in REFUSED if getattr(asked, name) != getattr(default, name)]:
        text = ", ".join(format_option(name, getattr(asked, name)) for name in refused)
        raise InputError(f"--ledger decides seeds, stopping and storage itself; leave {text} out")
    path = Path(folder).absolute()
    above = next(path for path in (path, *path.parents) if os.path.exists(path))
    if not folder.strip() or "://" in folder or not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise InputError(f"--ledger must be a folder on this machine that can be written; got {folder!r}")
    if asked.seeds is not None and asked.seeds < (least := evalues.least_pairs()):
        raise InputError(f"--seeds must be {least} or more with --ledger; got {asked.seeds}")
    if any(
        not isinstance(value, str) and len(value) > 1 for value in (asked.candidates, asked.candidate_refs)
    ):
        raise InputError("a ledger compares one change at a time; give one candidate")
    name = asked.name or f"change-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    asked = replace(asked, storage=folder, name=name, seeds=asked.seeds or evalues.MOST)
    baseline = asked.baseline_ref if asked.candidate_refs else asked.baseline
    if baseline is not None or not os.path.isfile(Path(folder) / LEDGER_FILE):
        return asked
    if not (heads := Ledger(Path(folder)).heads()):
        return asked
    head = heads[-1].program
    if Path(head.folder) != Path.cwd():
        raise InputError(f"the head of the ledger runs in {head.folder}; run this there")
    if bool(head.commit) != bool(asked.candidate_refs):
        option = "--candidate-ref" if head.commit else "--candidate"
        raise InputError(f"the head of the ledger is {head}; give the change as {option}")
    check_trusted("the baseline", [command_in(head.folder, head.command)], trust=asked.trust)
    if head.commit:
        return replace(asked, baseline_ref=find_again(head).commit, command=asked.command or head.command)
    return replace(asked, baseline=head.command)


def find_again(program: Program) -> Program:
    """Return a program whose commit the repository has: its own, or one with the same files.

    Raise InputError if there is none.
    """
    if not program.commit or git.find_object(f"{program.commit}^{{commit}}"):
        return program
    lines = git.run_git("log", "--all", "--format=%T %H").splitlines()
    commit = next((line.split()[1] for line in lines if line.startswith(f"{program.tree} ")), None)
    if commit is None:
        raise InputError(
            f"the ledger has {program}, and the repository around {Path.cwd()} has neither that commit nor "
            f"another one with the same files. Fetch it, or commit these files again: their tree is "
            f"{program.tree}, as git rev-parse COMMIT^{{tree}} prints it"
        )
    return replace(program, commit=commit)


def describe(command: str, *, commit: str = "") -> Program:
    """Return the program of a command in the current folder, or of a commit of its repository."""
    folder = str(Path.cwd())
    if commit:
        tree = git.run_git("rev-parse", f"{commit}^{{tree}}")
        return Program(command=command, folder=folder, commit=commit, tree=tree)
    changed: dict[str, str] = {}
    with suppress(git.GitError):  # outside of a repository
        root = git.find_root()
        changed = {name: digest_of(read_contents(root / name)) for name in git.changed_files(root)}
    return Program(command=command, folder=folder, files=find_files(command), changed=changed)


def find_files(command: str) -> dict[str, str]:
    """Return the digest of each file that a command names, by the part of the command that names it.

    A part may be in quotes, in the command of a shell, the value of an option, a module after `-m`, or
    relative to a folder that the command also names.
    """
    parts = list(split_command(command))
    folders = [Path(), *(Path(part) for part in parts if os.path.isdir(part))]
    modules = {name for option, name in pairwise(parts) if re.fullmatch(r"-\w*m", option)}
    files: dict[str, str] = {}
    for part in (*parts, *modules, *(part[2:] for part in parts if part.startswith("-m"))):
        module = part.replace(".", "/")
        ends = (part, f"{part}/__main__.py", f"{module}.py", f"{module}/__main__.py")
        paths = (folder / end for folder in folders for end in ends)
        if file := next((path for path in paths if os.path.isfile(path)), None):
            files[part] = digest_of(read_contents(file))
    return files


@dataclass(frozen=True, kw_only=True)
class Change:
    """A candidate for the next head of a ledger."""

    ledger: Ledger
    head: Head
    candidate: Program

    def draw_seeds(self, count: int) -> list[int]:
        """Draw some of the head's seeds for the screen, and `count` fresh ones for the test."""
        screen = secrets.SystemRandom().sample(list(self.head.seeds), evalues.SCREEN)
        fresh: dict[int, None] = {}
        while len(fresh) < count:
            if (seed := secrets.randbelow(evalues.SEEDS)) not in self.head.seeds:
                fresh[seed] = None
        return [*screen, *fresh]

    def to_json(self) -> dict[str, Any]:
        """Return what the ledger records when its comparison begins."""
        return {"head": self.head.number, "candidate": vars(self.candidate)}


def enter(
    asked: RefereeOptions, commands: Sequence[str], commits: Sequence[str], configs: Sequence[TrialConfig]
) -> Change:
    """Return a change that may be compared in the ledger: two commands, or the command of two commits.

    Raise InputError if the metric or the baseline are not the ledger's, or the programs are the same.
    """
    programs = [describe(commands[0], commit=commit) for commit in commits] or [*map(describe, commands)]
    baseline, candidate = programs
    if baseline.identity == candidate.identity:
        raise InputError(f"the candidate {candidate} is the same program as the baseline, with equal files")
    ledger = Ledger(Path(str(asked.ledger)), create=True)
    check_metric(ledger, configs[0], asked.any_time or asked.equal == "none")
    head = ledger.begin_head(baseline)
    if head.program.identity == baseline.identity:
        return Change(ledger=ledger, head=head, candidate=candidate)
    known = "It is no accepted change of this ledger"
    for earlier, later in pairwise(ledger.heads()):
        if earlier.program.identity == baseline.identity:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(later.time))
            known = f"{later.program} replaced it on {when}, in {later.comparison}"
    if baseline.command == head.program.command and not baseline.commit:
        files = [name for name, digest in head.program.files.items() if baseline.files.get(name) != digest]
        known = f"These have changed since: {', '.join(files)}. Restore them, or use commits"
    raise InputError(
        f"the baseline {baseline} is not the head of the ledger in {asked.ledger}, which is {head.program}. "
        f"{known}. Leave the baseline out to compare with the head, or begin another --ledger"
    )
