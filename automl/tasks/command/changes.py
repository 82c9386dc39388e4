"""A change of a ledger, before it is compared: its program, its baseline, and its seeds."""

import hashlib
import secrets
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from automl.base.errors import InputError
from automl.base.options import format_option
from automl.base.units import pluralize
from automl.confirm import evalues
from automl.confirm.ledger import LEDGER_FILE, Head, Ledger, Program, draw_pool
from automl.confirm.options import RefereeOptions
from automl.confirm.stream import check_metric
from automl.storage.user_code import check_trusted, command_in
from search.config import TrialConfig

# Options that --ledger does not take.
REFUSED = ("margin", "chance", "seed", "sequential", "storage")
LEAST = 10  # smallest number of pairs that may be enough, whatever the level


def complete(asked: RefereeOptions) -> RefereeOptions:
    """Return the options of a comparison in a ledger, with the head as the baseline if none was given.

    Raise InputError for options that a ledger decides.
    """
    default, folder = RefereeOptions(), str(asked.ledger)
    if refused := [name for name in REFUSED if getattr(asked, name) != getattr(default, name)]:
        text = ", ".join(format_option(name, getattr(asked, name)) for name in refused)
        raise InputError(f"--ledger decides seeds, stopping and storage itself; leave {text} out")
    if "://" in folder:
        raise InputError(f"--ledger must be a folder on this machine; got {folder}")
    if asked.seeds is not None and asked.seeds < LEAST:
        raise InputError(f"--seeds must be {LEAST} or more with --ledger; got {asked.seeds}")
    for option, value in (("--candidate", asked.candidates), ("--candidate-ref", asked.candidate_refs)):
        if not isinstance(value, str) and len(value) > 1:
            raise InputError(f"a ledger compares one change at a time; give one {option}, not {len(value)}")
    name = asked.name or f"change-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    asked = replace(asked, storage=folder, name=name, seeds=asked.seeds or evalues.MOST)
    baseline = asked.baseline if not asked.candidate_refs else asked.baseline_ref
    if baseline is not None or not (Path(folder) / LEDGER_FILE).is_file():
        return asked
    if not (heads := Ledger(Path(folder)).heads()):
        return asked
    head = heads[-1].program
    if Path(head.folder) != Path.cwd():
        raise InputError(f"the head of the ledger runs in {head.folder}; run this there")
    check_trusted("the baseline", [command_in(head.folder, head.command)], trust=asked.trust)
    if asked.candidate_refs:
        return replace(asked, baseline_ref=head.commit or None, command=asked.command or head.command)
    if head.commit:
        raise InputError(f"the head of the ledger is {head}; give the change as --candidate-ref")
    return replace(asked, baseline=head.command)


def describe(command: str, *, commit: str = "") -> Program:
    """Return the program of a command in the current folder, or of a commit of its repository."""
    if commit:
        tree = git("rev-parse", f"{commit}^{{tree}}") or commit
        return Program(command=command, folder=str(Path.cwd()), commit=commit, tree=tree)
    files = {word: digest for word in shlex.split(command) if (digest := _digest(Path(word)))}
    root = Path(git("rev-parse", "--show-toplevel") or ".")
    names = (git("diff", "--name-only", "HEAD") or "").splitlines()
    changed = {name: digest for name in names if (digest := _digest(root / name))}
    return Program(command=command, folder=str(Path.cwd()), files=files, changed=changed)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    except OSError:
        return ""


def git(*words: str) -> str | None:
    """Return what git prints, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_head(folder: str, baseline: Program, candidate: Program) -> tuple[Ledger, Head]:
    """Return the ledger and its head, which must be the baseline.

    Raise InputError if the baseline is another program, or the same as the candidate.
    """
    if baseline.identity == candidate.identity:
        raise InputError(
            f"the candidate {candidate} is the same program as the baseline, with equal files; change it "
            f"first"
        )
    ledger = Ledger(Path(folder), create=True)
    head = ledger.begin_head(baseline, draw_pool())
    if head.program.identity == baseline.identity:
        return ledger, head
    known = "It is no accepted change of this ledger"
    for earlier, later in zip(heads := ledger.heads(), heads[1:], strict=False):
        if earlier.program.identity == baseline.identity:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(later.time))
            known = f"{later.program} replaced it on {when}, in {later.comparison}"
    if baseline.command == head.program.command and not baseline.commit:
        names = [name for name, digest in head.program.files.items() if baseline.files.get(name) != digest]
        known = (
            f"{pluralize(len(names), 'file')} changed since: {', '.join(names)}. Restore it, or use commits"
        )
    raise InputError(
        f"the baseline {baseline} is not the head of the ledger in {folder}, which is {head.program}. "
        f"{known}. Leave the baseline out to compare with the head, or begin another --ledger"
    )


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

    def record(self, name: str, seeds: Sequence[int]) -> None:
        """Record that its comparison begins."""
        self.ledger.add(name, self.head.number, self.candidate, seeds)


def enter(
    folder: str, commands: Sequence[str], commits: Sequence[str], configs: Sequence[TrialConfig], equal: str
) -> Change:
    """Return a change that may be compared in the ledger: two commands, or the command of two commits.

    Raise InputError if the metric or the baseline are not the ledger's.
    """
    programs = [describe(commands[0], commit=commit) for commit in commits] or [*map(describe, commands)]
    ledger, head = find_head(folder, *programs)
    check_metric(ledger, configs[0], equal)
    return Change(ledger=ledger, head=head, candidate=programs[1])
