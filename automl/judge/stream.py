"""A change of a ledger: which seeds it needs, and its verdict from the scores so far.

The first seeds screen the change against runs of the baseline that were kept. Then fresh pairs test it, and
spend a part of the level. See `automl.judge.evalues`. A change that may have taken more time must also beat
the head trained for longer with the same seeds.
"""

import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.lazy import numpy as np
from automl.base.options import format_option
from automl.judge import evalues
from automl.judge.decision import Outcome
from automl.judge.design import Design
from automl.judge.judge import CONSTANT, Judge
from automl.judge.ledger import (
    ACCEPTED,
    COMPARISON,
    LEDGER_FILE,
    POOL,
    STALE,
    TEST,
    VERDICT,
    Decision,
    Head,
    Ledger,
    Program,
    split_command,
)
from automl.judge.options import RefereeOptions
from automl.judge.protocol import Confirmation
from automl.judge.rules import Evidence, Opponent
from automl.judge.scores import Scores, time_ratio, unequal_failures
from automl.judge.statistics import ALPHA, NO_LONGER, Difference, Interval, Ratio
from automl.judge.variants import Variant, lengthen
from automl.judge.verdict import Comparison, Verdict, word_fields
from automl.storage import git
from automl.storage.contents import digest_of, read_contents
from automl.storage.user_code import check_trusted, command_in
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import Report, Role, State, TrialRecord

METRIC = "metric"  # the fact of a ledger that all comparisons share
LARGEST = 700.0  # logarithm of the largest e-value that is written
HOPELESS, UNSHOWN, TIME, SEED = "no gain in sight", "not shown", "unequal time", "seed ignored"
# The outcome of a verdict and its words, by that of the decision.
WORDS: Mapping[str, tuple[Outcome, str]] = {
    "": ("undecided", ""),
    ACCEPTED: ("better", "Better by {difference}, {seeds}: {winner} is the new head"),
    HOPELESS: (
        "undecided",
        "Undecided: no gain of {winner} in sight after {count} pairs, {screen} of the screen",
    ),
    UNSHOWN: ("undecided", "Undecided: no gain of {winner} shown in {count} pairs"),
    TIME: ("undecided", "Undecided: better than the {baseline} by {difference}, but {equal}"),
    STALE: ("cannot tell", "another change became the head meanwhile; compare with that"),
    SEED: ("cannot tell", "{constant} gives the same score with every seed"),
}


class Stream:
    """The ledger as one of its comparisons sees it.

    It records one that is new. Raises InputError if the ledger does not have one that has runs.
    """

    def __init__(
        self, ledger: Ledger, name: str, confirmation: Confirmation, equal: str, *, is_new: bool
    ) -> None:
        self.ledger, self.name = ledger, name
        self.screen, self.any_time = confirmation.options.screen, equal == "none"
        self.baseline = confirmation.variant_set.variants[0]
        check_metric(self.ledger, self.baseline.config, self.any_time)
        if is_new and confirmation.change is not None:
            begun = {**confirmation.change, "seeds": confirmation.seeds}
            row = self.ledger.set_once(self.name, {**begun, "began": time.time()}, COMPARISON)
            if not begun.items() <= row.items():
                raise InputError(
                    f"{self.ledger.file} has a comparison {self.name!r}, whose folder was removed; choose "
                    "another --name"
                )
        if (row := self.ledger.rows(COMPARISON).get(self.name)) is None:
            raise InputError(
                f"{self.ledger.file} has no comparison {self.name!r}; give the folder of its ledger"
            )
        self.head: int = row["head"]
        self.pool, self.seeds = POOL.format(self.head), confirmation.seeds[: self.screen]
        self.seen = self.ledger.check({})

    def reuse(self, planned: FixedScheduler) -> None:
        """Add runs of the baseline that earlier comparisons have kept, as finished trials."""
        known = {record.config.seed for record in planned.standing if record.variant == self.baseline.name}
        pool = self.ledger.rows(self.pool)
        for seed in self.seeds:
            if (run := pool.get(str(seed))) is not None and seed not in known:
                config = replace(self.baseline.config, seed=seed)
                record = planned._add(self.baseline.role, config, variant=self.baseline.name)
                planned.end(record.number, Report(history=run["history"], finished=True))

    def keep(self, records: Iterable[TrialRecord]) -> None:
        """Keep new runs of the baseline for later screens. Raise InputError if the metric is another one."""
        pool = self.ledger.rows(self.pool)
        for record in records:
            seed = record.config.seed
            new = record.variant == self.baseline.name and record.state is State.COMPLETE
            if new and seed in self.seeds and str(seed) not in pool:
                check_metric(self.ledger, record.config, self.any_time, begin=True)
                run = {"comparison": self.name, "history": [dict(metrics) for metrics in record.history]}
                self.ledger.set_once(str(seed), run, self.pool)

    def needed(self, trials: Sequence[PlannedTrial], seeds: Sequence[int]) -> list[PlannedTrial]:
        """Return those of the trials that are needed now."""
        count = len(seeds) if self.name in self.ledger.rows(TEST) else self.screen
        if (decision := self.ledger.decision(self.name)) is not None:
            count = decision.screened + decision.pairs
        return [trial for trial in trials if trial.config.seed in seeds[:count]]

    def judge(self, design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
        """Return the verdict on the candidate, the second variant. Record it in the ledger once it is final.

        A test stops at what the latest pairs show, and never at what earlier ones showed, since the level may
        have become larger meanwhile.
        """
        before, own = self.seen, f"{VERDICT} {self.name}"
        self.seen = self.ledger.check(before)
        if own in self.seen and own not in before:
            raise InputError(
                f"{self.ledger.file} has a verdict on {self.name} that a command must have written"
            )
        judge = Judge(design, variants, scores)
        trained = [scores[variant.name] for variant in variants[:2]]
        baseline, candidate = trained[0].scores, trained[1].scores
        ended = list(takewhile(lambda seed: seed in baseline and seed in candidate, design.seeds))
        decision = self.ledger.decision(self.name)
        if decision is not None:
            ended = ended[: decision.screened + decision.pairs]
        d, measured = _differences(design, trained[1], trained[0], ended)
        futile = np.flatnonzero(evalues.is_futile(d))
        if len(futile):
            end = futile[0] + 1
            ended, d, measured = ended[:end], d[:end], measured[:end]
        warnings = [*judge.warnings(ended), *evalues.find_doubts(measured)]
        if len(ended) < 2:
            return Verdict(
                design=design,
                variants=judge.trained,
                warnings=warnings,
                failed_attempts=judge.failed_attempts,
            )
        warnings += judge.equal_scores(variants[1:2], ended)
        used = ended[self.screen :] or ended
        (time,) = judge.times(variants[1:2], used)
        constant = judge.constant(variants[:2], ended) if len(ended) >= CONSTANT else ""
        awaited, opponents = list[Variant](), list[Opponent]()
        if decision is None:
            decision = self._evidence(d, measured, blocked=bool(constant or len(futile)))
        outcome = UNSHOWN if len(ended) == len(design.seeds) else ""
        if decision.level is not None and (decision.e_value or 0.0) >= 1 / decision.level:
            outcome, time, opponents, awaited = self._check_time(judge, decision, used)
        if not decision.outcome:
            stop = HOPELESS if len(futile) else STALE if self._is_stale() else outcome
            if outcome := SEED if constant else stop:
                runs = sum(len(scored.scores) for scored in scores.values()) - decision.reused
                kept = {
                    name: {str(seed): scored.scores[seed] for seed in ended if seed in scored.scores}
                    for name, scored in scores.items()
                }
                decision = replace(decision, outcome=outcome, trainings=runs, scores=kept)
                decision = self.ledger.decide(self.name, decision)
                self.seen = self.ledger.check(self.seen)
        head = self.ledger.heads()[-1]
        accepted = f"accepted in {head.comparison}" if head.comparison else "its first baseline"
        decision = replace(decision, head=f"{head.program}, {accepted}")
        shown = _difference(measured[-len(used) :], decision.e_value, decision.interval)
        lead = Comparison(
            variant=variants[1].name,
            role=variants[1].role,
            difference=shown,
            p_holm=shown.p,
            opponents=opponents,
            most_time=None if time is None else time.high,
            time=time,
        )
        level = decision.level or ALPHA
        evidence = Evidence(
            differences=[shown], opponents=[opponents], level=lambda _: level, constant=constant
        )
        words = word_fields(design, variants[1].title, lead, evidence) | {
            "count": len(ended),
            "screen": min(self.screen, len(ended)),
        }
        return Verdict(
            design=design,
            outcome=WORDS[decision.outcome][0],
            words=WORDS[decision.outcome][1].format(**words),
            complete=bool(decision.outcome),
            finalist=lead.variant,
            comparisons=[lead],
            variants=judge.trained,
            used=used,
            awaited=[] if decision.outcome else awaited,
            is_constant=bool(constant),
            warnings=warnings,
            failed_attempts=judge.failed_attempts,
            decision=decision,
        )

    def _evidence(self, d: "np.ndarray", measured: "np.ndarray", *, blocked: bool) -> Decision:
        """Return the evidence so far, without an outcome. After the screen, begin the test."""
        # `measured` are the differences of the scores, and `d` those that count.
        screen, test = d[: self.screen], d[self.screen :]
        index = self.ledger.rows(TEST).get(self.name)
        if index is None and len(screen) == self.screen and not blocked and not self._is_stale():
            index = self.ledger.begin_test(self.name)
        origins = {seed: run["comparison"] for seed, run in self.ledger.rows(self.pool).items()}
        decision = Decision(
            pairs=len(test),
            screened=len(screen),
            index=index,
            difference=float(measured[self.screen if len(test) else 0 :].mean()),
            left=evalues.share_left(len(self.ledger.rows(TEST))),
            reused=sum(origins.get(str(seed), self.name) != self.name for seed in self.seeds),
        )
        if index is None or not len(test):
            return decision
        both = [evalues.interval(row[self.screen :], screen) for row in (d, measured)]
        interval = both[0][0], both[1][1]
        outcomes = [verdict["outcome"] for verdict in self.ledger.rows(VERDICT).values()]
        return replace(
            decision,
            level=float(evalues.level(index, outcomes.count(ACCEPTED))),
            e_value=math.exp(min(float(evalues.log_e_values(test, screen)[-1]), LARGEST)),
            interval=interval if math.isfinite(interval[0]) else None,
        )

    def _check_time(
        self, judge: Judge, now: Decision, seeds: Sequence[int]
    ) -> tuple[str, Ratio | None, list[Opponent], list[Variant]]:
        """Return the outcome of a change that is ahead, its time ratio, its opponents, and what to train.

        The outcome is empty if more runs are needed.
        """
        design, scores, candidate = judge.design, judge.scores, judge.variants[1]
        ours, head = scores[candidate.name], scores[self.baseline.name]
        time = time_ratio(ours, head, seeds, find=_lasting_ratio)
        if design.equal != "time" or (time is not None and time.high <= NO_LONGER):
            return ACCEPTED, time, [], []
        is_last = now.screened + now.pairs == len(design.seeds)
        low, high = (math.inf, math.inf) if time is None else (time.low, time.high)
        begun = (v for v in judge.variants if v.role is Role.LONGER and v.config.longer >= high)
        if (longer := next(begun, None) or lengthen(self.baseline, high)) is None:
            outcome = TIME if is_last or low > NO_LONGER else ""
            return outcome, time, [judge.meet(candidate, None, seeds)], []
        theirs = scores.get(longer.name, Scores())
        both = list(takewhile(theirs.scores.__contains__, seeds))
        if len(both) < 2:
            return "", time, [], [longer]
        d, measured = _differences(design, ours, theirs, both)
        is_lost = evalues.is_futile(d).any() or (is_last and len(both) == len(seeds))
        e_value = math.exp(min(float(evalues.log_e_values(d, np.empty(0))[-1]), LARGEST))
        opponent = judge.meet(candidate, longer, both)
        if opponent.difference is not None:
            difference = _difference(measured, e_value, evalues.interval(d, np.empty(0)))
            opponent = replace(opponent, difference=difference)
            if now.level is not None and e_value >= 1 / now.level:
                return ACCEPTED, time, [opponent], []
        return TIME if is_lost else "", time, [opponent], [longer]

    def _is_stale(self) -> bool:
        return self.ledger.heads()[-1].number != self.head


def _differences(
    design: Design, ours: Scores, theirs: Scores, seeds: Sequence[int]
) -> "tuple[np.ndarray, np.ndarray]":
    """Return the differences that count, and those that were measured, above 0 if `ours` is better."""
    factor = design.metric.sign * design.metric.scale
    measured = np.array([factor * (ours.scores[seed] - theirs.scores[seed]) for seed in seeds])
    # Of a pair with failed runs, one may be a lucky one. Such a pair counts as the largest loss so far.
    largest = np.maximum.accumulate(np.abs(measured))
    return np.where(unequal_failures(ours, theirs, seeds), -largest, measured), measured


def _difference(d: "np.ndarray", e_value: float | None, interval: Sequence[float] | None) -> Difference:
    low, high = interval or (-math.inf, math.inf)
    return Difference(
        mean=float(d.mean()),
        sd=float(d.std(ddof=1)) if len(d) > 1 else None,
        p=1.0 if e_value is None else min(1.0, 1 / e_value),
        p_margin=1.0,
        count=len(d),
        ahead=int((d > 0).sum()),
        behind=int((d < 0).sum()),
        interval=Interval(lambda: (low, high)),
    )


def _lasting_ratio(ours: Sequence[float], theirs: Sequence[float], alpha: float) -> Ratio:
    """Return the ratio of positive numbers, with an interval that holds whenever the test stops."""
    logs = np.log(ours) - np.log(theirs)
    mean, (low, high) = float(logs.mean()), evalues.interval(logs, np.empty(0), alpha)
    return Ratio(mean=math.exp(mean), low=math.exp(low), high=math.exp(high))


def check_metric(ledger: Ledger, config: TrialConfig, any_time: bool, *, begin: bool = False) -> None:
    """Raise InputError if the ledger has another metric. With `begin`, it gets this one if it has none."""
    training: Any = config.training
    own = {name: getattr(training, name) for name in ("metric", "metric_file", "last")}
    own |= {"minimize": not training.reports.maximize, "unit": training.reports.unit}
    own["any_time"] = any_time
    own["evaluate"] = training.guard.evaluate.replace(str(config.data.path), ".")
    own |= {"evaluator": Path(training.guard.evaluator).name, "protect": dict(training.guard.protect)}
    fact = ledger.set_once(METRIC, own) if begin else ledger.rows().get(METRIC, own)
    kept = fact.get("protect", {})
    if changed := [path for path, digest in own["protect"].items() if kept.get(path, digest) != digest]:
        raise InputError(
            f"{', '.join(changed)} has changed since the ledger in {ledger.folder} began. Restore it, or "
            f"begin another ledger"
        )
    if fact != own:
        key = next(key for key, value in own.items() if fact.get(key) != value)
        raise InputError(
            f"the ledger in {ledger.folder} has {format_option(key, fact.get(key))} and not "
            f"{format_option(key, own[key])}, and keeps its metric. Use that, or begin another ledger"
        )


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
    if asked.command != head.command:  # otherwise it is the caller's own
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
    check_metric(ledger, configs[0], asked.any_time)
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
