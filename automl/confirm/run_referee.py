"""Compare commands with fresh paired seeds, without a search: `automl referee`.

Each command is a training in any language that prints its metric. The comparison is a confirmation whose
variants are commands, in the folder of a search without trials, so `automl status`, `report`, `sync` and
`confirm --again` work with it.
"""

import os
import secrets
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from automl.base.command_line import STORAGE, format_command
from automl.base.errors import InputError
from automl.callbacks.user import UserCallbacks
from automl.config.settings import REFEREE, Settings
from automl.confirm.confirm_result import ConfirmResult
from automl.confirm.protocol import Confirmation, Options
from automl.confirm.run_confirm import SEEDS, begin, run_confirm
from automl.confirm.trainings import run_trainings
from automl.confirm.variants import Variant, VariantSet
from automl.storage.folder import NamedSearch, find_search, new_folder, resolve_search
from automl.storage.logs import capture_library_logs
from automl.storage.provenance import collect_provenance
from automl.storage.working_dir import check_not_temporary
from search.callback import Callback
from search.config import COMMAND, CommandModel, CommandTraining, Data, TrialConfig
from search.config.command_config import OUT
from search.config.tasks import declare_metric
from search.metric import Chance, Metric
from search.record import Role
from search.trial_scheduler import Plan

FRESH = 10**6  # random first seeds are below it, so that every program takes them


def run_referee(
    baseline: str,
    candidates: str | Sequence[str],
    *,
    metric: str,
    metric_file: str | None = None,
    last: bool = False,
    minimize: bool | None = None,
    unit: str = "",
    margin: float = 0.0,
    chance: float | None = None,
    seeds: int = 10,
    seed: int | None = None,
    sequential: bool = True,
    equal: str = "time",
    name: str | None = None,
    storage: str = STORAGE,
    callbacks: Sequence[str | Callback] = (),
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    resource: Sequence[str] = (),
    label: Sequence[str] = (),
    concurrent: int | None = None,
) -> ConfirmResult:
    """Test with fresh paired seeds whether one of several commands is better than another.

    A command is a program with its arguments, and runs without a shell in the current folder. `{seed}` in it
    becomes the seed, and `{out}` the path of a folder that only this run has.

    Args:
        baseline: The command to compare with, such as `python train.py --seed {seed}`.
        candidates: A command, or several. p is adjusted for their number.
        metric: A regular expression with one group for the number, such as `val_acc=(.*)`, or the key of a
            JSON line, in what a command prints. With `metric_file`, its column or key.
        metric_file: The CSV or JSON file with the metric, which a command writes below `{out}`.
        last: Use the last value if a command prints several. By default that is a mistake.
        minimize: True if a smaller metric is better, False if a larger one is. By default larger, except for
            names of built-in metrics such as `loss`. Other names with such a word need a direction.
        unit: The unit of the metric, for the text of the verdict.
        margin: The smallest difference that matters, in the unit of the metric. With 0, no outcome is
            `equivalent`.
        chance: The score of guessing. No verdict is given unless a command is above it.
        seeds: The number of seeds of each command.
        seed: The first seed. By default a random one, so that nobody has tuned for it.
        sequential: Stop as soon as the outcome is final.
        equal: `time`: a command that takes longer cannot be called better. `none`: time does not matter.
        name: The name of the comparison, unique in `storage`. By default it contains the time.
        storage: The folder of all searches, or its address.
        callbacks: Callbacks, as in `Settings`.
        cpus_per_trial: The CPU cores of each run.
        gpus_per_trial: The GPUs of each run. By default 1 if the cluster has any.
        resource: Custom Ray resources of each run, as `NAME=AMOUNT`.
        label: Labels of the nodes that may run commands, as `KEY=VALUE`.
        concurrent: The largest number of runs at once. By default as many as fit.

    Returns:
        The comparison with its verdict.

    Raises:
        InputError: A value is invalid, or a command lacks `{seed}`.

    Example:
        >>> import automl
        >>> program = "import random; random.seed({seed}); print('acc', GAIN + random.random())"
        >>> baseline = f'python -c "{program}"'
        >>> candidate = baseline.replace("GAIN", "1")
        >>> baseline = baseline.replace("GAIN", "0")
        >>> compared = automl.run_referee(baseline, candidate, metric="acc (.*)", equal="none")
        >>> compared.verdict.final
        'better'
    """
    check_not_temporary(storage)
    commands = [baseline, *([candidates] if isinstance(candidates, str) else candidates)]
    if len(commands) < 2:
        raise InputError("there is nothing to compare; add --candidate with a command")
    if twice := next((command for command in commands if commands.count(command) > 1), None):
        raise InputError(f"each command must be given once; got {twice!r} twice")
    options = Options(
        top=len(commands) - 1, seeds=seeds, margin=margin, sequential=sequential, init="scratch"
    )
    training = CommandTraining(epochs=1, metric=metric, metric_file=metric_file or "", last=last)
    configs = [
        _configuration(command, training, minimize=minimize, unit=unit, margin=margin) for command in commands
    ]
    if chance is not None and not isfinite(chance):
        raise InputError(f"--chance must be a finite number; got {chance}")
    first = secrets.randbelow(FRESH) if seed is None else seed
    if first > SEEDS - seeds:
        raise InputError(f"--seed must be {SEEDS - seeds} or less with {seeds} seeds; got {first}")
    settings = Settings(
        space=REFEREE,
        seed=first,
        equal=equal,
        name=name,
        storage=storage,
        callbacks=callbacks,
        cpus_per_trial=cpus_per_trial,
        gpus_per_trial=gpus_per_trial,
        resource=resource,
        label=label,
        concurrent=concurrent,
    )
    confirmation = Confirmation(
        number=1,
        options=options,
        seeds=list(range(first, first + seeds)),
        variant_set=VariantSet(variants=_variants(configs), baseline_candidates=[], warnings=[]),
        provenance=collect_provenance(),
        inputs=0,
        chance=None if chance is None else Chance(value=chance, error=0.0, step=0.0),
    )
    reports = configs[0].training.reports  # type: ignore[attr-defined]
    plan = Plan(trials=0, budget=1.0, metric=reports, objectives=[reports.name], baseline_share=0.0)
    called = UserCallbacks(settings.callbacks)
    with new_folder(settings, plan, fingerprint="", data="") as (folder, metadata):
        path = begin(folder, confirmation)
        with capture_library_logs(path / "log.txt"):
            return run_trainings(path, metadata, confirmation, called, baseline=lambda: configs[0])


def resume_referee(search: str | NamedSearch | None = None, *, storage: str | None = None) -> ConfirmResult:
    """Resume a comparison of commands that was stopped, and repeat runs that failed.

    Args:
        search: The name of the comparison, or its result. By default the latest in `storage`.
        storage: The storage. By default that of the result, or `searches`.

    Returns:
        The comparison with its verdict.

    Raises:
        InputError: It does not exist, it is running, or it is a search.

    Example:
        After the example of `run_referee`:

        >>> automl.resume_referee(compared).verdict.final
        'better'
    """
    name, storage = resolve_search(search, storage)
    _, metadata = find_search(name, storage)
    if not metadata.settings.is_referee:
        raise InputError(
            f"{name!r} is a search. Resume it with {format_command('search --resume', name, storage)}, or "
            f"its confirmation with {format_command('confirm --search', name, storage)}"
        )
    return run_confirm(name, storage=storage)


def _configuration(
    command: str, training: CommandTraining, *, minimize: bool | None, unit: str, margin: float
) -> TrialConfig:
    """Return the configuration of a command, which runs in the current folder."""
    model = CommandModel(command=command)
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
    if problems:
        raise InputError(problems[0])
    declared = declare_metric(training.metric_name, minimize=minimize)
    reports = Metric(name=declared.name, maximize=declared.maximize, unit=unit, margin=margin)
    return TrialConfig(
        task=COMMAND,
        data=Data(path=str(Path.cwd())),
        model=model,
        training=CommandTraining(**{**vars(training), "reports": reports}),
    )


def _variants(configs: Sequence[TrialConfig]) -> list[Variant]:
    baseline, *candidates = configs
    names = (
        [f"candidate {i}" for i in range(1, len(candidates) + 1)] if len(candidates) > 1 else ["candidate"]
    )
    return [
        Variant(name="baseline", role=Role.BASELINE, config=baseline),
        *(
            Variant(name=name, role=Role.FINALIST, config=config, plain="baseline")
            for name, config in zip(names, candidates, strict=True)
        ),
    ]
