"""Compare commands with fresh paired seeds, without a search: `automl referee`.

Each command is a training in any language that prints its metric. The comparison is a confirmation whose
variants are commands, in the folder of a search without trials, so `automl status`, `report`, `sync` and
`confirm --again` work with it. Commits of a repository are compared in clean copies of it.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.options import STORAGE, format_command, with_keywords_of
from automl.base.process import capture_library_logs
from automl.callbacks.user import UserCallbacks
from automl.config.nouns import REFEREE, Place, Question, SearchPlan, Terms
from automl.config.settings import ParsedSettings, normalise
from automl.judge.evalues import SCREEN
from automl.judge.options import RefereeOptions
from automl.judge.protocol import Confirmation, Options
from automl.judge.scheduler import PAIRS
from automl.judge.stream import complete, enter
from automl.judge.trainings import SEEDS, begin, run_trainings
from automl.judge.variants import Variant, VariantSet
from automl.judge.verdict import ConfirmResult
from automl.storage.cache_folder import cache_root
from automl.storage.folder import find_search, new_folder, resolve_search
from automl.storage.metadata import collect_provenance
from automl.storage.storage import check_not_temporary
from automl.storage.user_code import command_in, remember
from automl.tasks.command import COMMAND, OUT, CommandModel, CommandTraining
from automl.tasks.command.commits import SHORT, copy_commits, find_commits, find_tracked
from automl.tasks.command.evaluator import COPIES, make_guard, named_paths
from search.config import Data, TrialConfig
from search.config.tasks import declare_metric
from search.metric import Chance, Metric
from search.record import Role
from search.trial_scheduler import Plan

# Options that are settings of the comparison's folder and of its runs.
RESOURCES_OF_RUNS = ("cpus_per_trial", "gpus_per_trial", "resource", "label", "concurrent")
OF_RUNS = ("name", "storage", "callbacks", *RESOURCES_OF_RUNS)
NOISE_SEEDS = 5
FRESH = 10**6  # random first seeds are below it, so that every program takes them


@with_keywords_of(RefereeOptions)
def run_referee(*arguments: Any, **options: Any) -> ConfirmResult:
    """Test with fresh paired seeds whether one of several commands is better than another.

    A command is a program with its arguments, and runs without a shell in the current folder. `{seed}` in it
    becomes the seed, and `{out}` the path of a folder that only this run has. With `baseline_ref`, one
    command runs in clean copies of the repository at several commits. With `resume`, continue a
    comparison that was stopped, and repeat runs that failed, whose pairs then count as losses.

    Returns:
        The comparison with its verdict.

    Raises:
        InputError: A value is invalid, or a command lacks `{seed}`. Or the comparison to resume does not
            exist, or is running.

    Example:
        >>> import automl
        >>> program = "import random; random.seed({seed}); print('acc', GAIN + random.random())"
        >>> baseline = f'python -c "{program}"'
        >>> candidate = baseline.replace("GAIN", "1")
        >>> baseline = baseline.replace("GAIN", "0")
        >>> compared = automl.run_referee(baseline, candidate, metric="acc (.*)", any_time=True)
        >>> compared.verdict.final
        'better'
        >>> automl.run_referee(resume=compared).verdict.final
        'better'
    """
    asked = RefereeOptions(*arguments, **options)
    if asked.ledger is not None and asked.resume is None:
        asked = complete(asked)
    if asked.resume is not None:
        return _resume(replace(asked, storage=asked.ledger or asked.storage, ledger=None))
    check_not_temporary(asked.storage)
    commands = _commands(asked)
    commits = find_commits(asked.baseline_ref, _listed(asked.candidate_refs)) if asked.baseline_ref else []
    seeds = (NOISE_SEEDS if asked.noise else PAIRS) if asked.seeds is None else asked.seeds
    protocol = Options(
        top=max(1, len(commits) - 1, len(commands) - 1),
        seeds=seeds,
        margin=asked.margin,
        sequential=asked.sequential,
        screen=0 if asked.ledger is None else SCREEN,
        noise=asked.noise,
    ).check_new()
    configs = [_configuration(command, asked) for command in commands]
    names = [f"candidate {i}" for i in range(1, len(commands))] if len(commands) > 2 else ["candidate"]
    if asked.chance is not None and not isfinite(asked.chance):
        raise InputError(f"--chance must be a finite number; got {asked.chance}")
    named = [*named_paths(asked.evaluate or ""), *_listed(asked.protect)]
    tracked = find_tracked(named, commits) if commits else None
    first = secrets.randbelow(FRESH) if asked.seed is None else asked.seed
    if first > SEEDS - seeds:
        raise InputError(f"--seed must be {SEEDS - seeds} or less with {seeds} seeds; got {first}")
    warnings: Sequence[str] = ()
    if commits:  # the checks are done
        folders, imports, warnings = copy_commits(commits, commands[0], trust=asked.trust)
        config = configs[0].change(training={"imports": imports})
        configs = [config.change(data={"path": str(folder)}) for folder in folders]
        names = [f"candidate {commit.digest[:SHORT]}" for commit in commits[1:]]
    ignored, folder = [*_listed(asked.cache), asked.storage], Path(configs[0].data.path or ".")
    evaluators, evaluate = Path(asked.ledger or cache_root()) / COPIES, asked.evaluate or ""
    guard = make_guard(evaluate, _listed(asked.protect), ignored, folder, evaluators, tracked)
    configs = [config.change(training={"guard": guard}) for config in configs]
    change = None
    if asked.ledger is not None:
        change = enter(asked, commands, [commit.digest for commit in commits], configs)
    settings = ParsedSettings(
        question=Question(space=REFEREE, seed=first),
        plan=SearchPlan(),
        terms=Terms(equal="none" if asked.any_time else "time"),
        place=Place(**normalise({name: getattr(asked, name) for name in OF_RUNS})),
    )
    variants = [Variant(name="baseline", role=Role.BASELINE, config=configs[0])]
    variants += [
        Variant(name=name, role=Role.FINALIST, config=config, plain="baseline")
        for name, config in zip(names, configs[1:], strict=not asked.noise)
    ]
    confirmation = Confirmation(
        number=1,
        options=protocol,
        seeds=list(range(first, first + seeds)) if change is None else change.draw_seeds(seeds),
        variant_set=VariantSet(variants=variants, baseline_candidates=[], warnings=list(warnings)),
        provenance=collect_provenance(),
        inputs=0,
        chance=None if asked.chance is None else Chance(value=asked.chance, error=0.0, step=0.0),
        change=None if change is None else change.to_json(),
    )
    reports = configs[0].training.reports  # type: ignore[attr-defined]
    plan = Plan(trials=0, budget=1.0, metric=reports, baseline_share=0.0)
    called = UserCallbacks(settings.place.callbacks)
    here = [command_in(str(Path.cwd()), command) for command in commands]  # beside those in copies of commits
    remember([*settings.user_code(), *confirmation.commands(), *here])
    prepare = partial(begin, confirmation=confirmation)
    with new_folder(settings, plan, fingerprint="", data="", prepare=prepare) as (folder, metadata):
        path = folder / confirmation.folder
        with capture_library_logs(path / "log.txt"):
            return run_trainings(path, metadata, confirmation, called)


def _commands(asked: RefereeOptions) -> list[str]:
    """Return the commands, the baseline first, or the one of all commits."""
    # Raise InputError if an argument is missing, or a command was given twice.
    if asked.noise and (asked.candidates or asked.candidate_refs or asked.baseline_ref or asked.ledger):
        raise InputError("--noise trains the baseline alone; leave candidates, commits and --ledger out")
    of_commits = {"--command": asked.command, "--candidate-ref": asked.candidate_refs}
    if asked.baseline_ref is not None or any(of_commits.values()):
        needed = {"--baseline-ref": asked.baseline_ref, "--metric": asked.metric, **of_commits}
        if asked.baseline or asked.candidates or (missing := [name for name in needed if not needed[name]]):
            lacking = "" if asked.baseline or asked.candidates else f"; {missing[0]} is missing"
            raise InputError(
                f"commits are compared with --baseline-ref, --candidate-ref, --command and --metric, and "
                f"without --baseline and --candidate{lacking}"
            )
        return [str(asked.command)]
    needed = {"--baseline": asked.baseline, "--metric": asked.metric}
    needed |= {} if asked.noise else {"--candidate": asked.candidates}
    if missing := [option for option, value in needed.items() if not value]:
        raise InputError(
            f"automl referee needs {missing[0]}, as in: automl referee --baseline 'python train.py --seed "
            f"{{seed}}' --candidate 'python train.py --wide --seed {{seed}}' --metric 'accuracy=(.*)'"
        )
    commands = [str(asked.baseline), *_listed(asked.candidates)]
    if twice := next((command for command in commands if commands.count(command) > 1), None):
        raise InputError(f"each command must be given once; got {twice!r} twice")
    return commands


def _listed(values: str | Sequence[str]) -> list[str]:
    return [values] if isinstance(values, str) else list(values)


def _resume(asked: RefereeOptions) -> ConfirmResult:
    """Resume a comparison of commands that was stopped, and repeat runs that failed."""
    if asked != RefereeOptions(resume=asked.resume, storage=asked.storage, trust=asked.trust):
        raise InputError("a comparison keeps its commands and options; with resume give storage alone")
    assert asked.resume is not None
    name, storage = resolve_search(asked.resume, None if asked.storage == STORAGE else asked.storage)
    _, metadata = find_search(name, storage)
    if metadata.has_trials:
        raise InputError(
            f"{name!r} is a search. Resume it with {format_command('search --resume', name, storage)}, or "
            f"its confirmation with {format_command('confirm --search', name, storage)}"
        )
    from automl.judge.run_confirm import run_confirm  # it imports torch for searches

    return run_confirm(name, storage=storage, trust=asked.trust)


def _configuration(command: str, asked: RefereeOptions) -> TrialConfig:
    """Return the configuration of a command, which runs in the current folder."""
    model = CommandModel(command=command)
    training = CommandTraining(
        epochs=1, metric=asked.metric or "", metric_file=asked.metric_file or "", last=asked.last
    )
    if os.path.isdir(command):  # False for a command that is too long for a path
        raise InputError(
            f"a command must be a program with its options, since a referee trains with fresh seeds; got the "
            f"folder {command!r}"
        )
    problems = [*model.problems(), *training.problems()]
    if training.metric_file and OUT not in command:
        problems.append(
            f"a command must contain {OUT} with --metric-file, since each run writes a file of its own; got "
            f"{command!r}. Give the training script an option such as --out {OUT}"
        )
    if asked.evaluate is not None:
        if asked.metric_file or asked.last:
            option = "--metric-file" if asked.metric_file else "--last"
            problems.append(f"--evaluate must print the metric once, so leave {option} out")
        rule = f"--evaluate reads what a command writes to {OUT}, so both have it; got"
        problems += [f"{rule} {text!r}" for text in (asked.evaluate, command) if OUT not in text]
    if problems:
        raise InputError(problems[0])
    declared = declare_metric(training.metric_name, minimize=asked.minimize)
    reports = Metric(name=declared.name, maximize=declared.maximize, unit=asked.unit, margin=asked.margin)
    return TrialConfig(
        task=COMMAND,
        data=Data(path=str(Path.cwd())),
        model=model,
        training=CommandTraining(**{**vars(training), "reports": reports}),
    )
