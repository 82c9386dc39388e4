"""Declare the options of `confirm` and `referee`, in a module that imports nothing slow."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from automl.base.options import STORAGE, WRITES, option

if TYPE_CHECKING:
    from automl.storage.folder import NamedSearch
    from search.record import Callback
    from search.space import Space, SpaceFunction

# The groups of the options in `automl referee --help`.
METRIC, TEST, RESOURCES = "Metric", "Comparison", "Resources"
LISTED = list[str] | None


@dataclass(frozen=True)
class ConfirmOptions:
    """Arguments of `run_confirm`, and options of `automl confirm`.

    Attributes:
        search: Name of the search. Or its result. By default the latest search in `storage`.
        top: Number of finalists. By default 3. A resumed confirmation keeps the options it began with.
        seeds: Number of seeds of each variant. By default 10.
        margin: Least difference that matters, in the metric's unit. By default the metric's own, and at least
            the effect of one test input.
        sequential: Stop as soon as the verdict is certain. True by default.
        solve: Finalist, in a file of solve --out. No trial may have had its placement.
        controls: Train controls even if no finalist is better.
        ablate: Also train the winner without each of its modules. Without a winner, the leading finalist.
        again: Start a new confirmation with unused seeds. The earlier ones stay.
        space: Space, if that of the search was in a notebook or its file has moved.
        storage: Folder of all searches, or its address. By default that of the result, or `searches`.
        callbacks: Callback: file.py:Name; may be repeated. In Python a list. They replace those that the
            search was given by name.
        trust: Allow running user-defined code that only the files name. Code that was named on this machine
            needs none.
    """

    search: "str | NamedSearch | None" = option(None, shown="the latest", kind=str | None)
    _: KW_ONLY
    top: int | None = option(None, shown="3")
    seeds: int | None = option(None, shown="10")
    margin: float | None = option(None, shown="the task's")
    sequential: bool | None = option(None, None, "--sequential/--no-sequential", shown="sequential")
    solve: str | None = option(None)
    controls: bool = option(False, None, "--controls")
    ablate: bool = option(False, None, "--ablate")
    again: bool = option(False, None, "--again")
    space: "str | SpaceFunction | Space | None" = option(None, kind=str | None)
    storage: str | None = option(None, kind=str, cli_default=STORAGE, effect=WRITES)
    callbacks: "Sequence[str | Callback] | None" = option(None, None, "--callback", rare=True, kind=LISTED)
    trust: bool = option(False, None, "--trust", rare=True)


@dataclass(frozen=True)
class RefereeOptions:
    """Arguments of `run_referee`, and options of `automl referee`.

    Attributes:
        baseline: Command to compare with. {seed} is the seed, {out} a folder of the run. {budget} is the
            length of training, 1 or more, and {budget:1000} is 1000 steps or more.
        candidates: Command that may be better. Repeatable. In Python a command or a list.
            p is adjusted for their number.
        command: With --baseline-ref, the command of every commit. It runs in a clean copy of the repository.
        baseline_ref: Commit to compare with: a branch, a tag or a hash. In place of `baseline`.
        candidate_refs: Commit that may be better. Repeatable. In Python a commit or a list.
        resume: Name of a comparison to resume. Failed runs are repeated, and count as losses. Or its result,
            in place of all other arguments but `storage`.
        metric: Regular expression with a group, or key of a JSON line, in the output. The group is the
            number, as in `val_acc=(.*)`. With `metric_file`, its column or key.
        metric_file: CSV or JSON file below {out} with that column or key. A command writes it.
        last: Use the last of several printed values. By default several are a mistake.
        evaluate: Command that alone prints the metric, such as `python eval.py {out}`. It runs in a copy
            of its files that was made at the beginning.
        protect: File or folder that no run may change, such as data. Repeatable. In Python a path or a list.
        cache: File or folder that runs may write. Repeatable. In Python a path or a list. Other new files in
            the folder of a command are a warning, and checkpoints a mistake with `evaluate`.
        minimize: A smaller metric is better, or a larger one. By default larger, except for names of built-in
            metrics such as `loss`. Other names with such a word need a direction.
        unit: Unit of the metric, for the verdict.
        margin: Least difference that matters, in the metric's unit. With 0, no outcome is `equivalent`.
        chance: Score of guessing, which a command must beat. Otherwise no verdict is given.
        seeds: Number of seeds of each command. By default 10, with `ledger` up to 60, with `noise` 5.
        seed: First seed. By default a random one, so that nobody has tuned for it.
        sequential: Stop as soon as the verdict is certain.
        any_time: A candidate may take longer without beating the baseline with a larger {budget}, too.
        name: Name of the comparison. It is unique in `storage`. By default it contains the time.
        cpus_per_trial: CPU cores of each run.
        gpus_per_trial: GPUs of each run; default 1 if the cluster has any.
        resource: Custom Ray resource of each run, NAME=AMOUNT. In Python a list of them.
        label: Label of the nodes that may run commands, KEY=VALUE. In Python a list of them.
        concurrent: Maximum number of runs at once. By default as many as fit.
        storage: Folder of all searches, or its address.
        callbacks: Callback: file.py:Name; may be repeated. In Python a list, as in `Settings`.
        ledger: Folder of a stream of changes, in which at most 5 % of accepted changes are false. Without
            `baseline`, the change is compared with the last accepted one.
        noise: Train the baseline alone, and print which difference 10 pairs can show.
        trust: Allow running what only files name: commands with --resume or --ledger, hooks and filters of
            the repository with --baseline-ref. Commands that were compared on this machine need none.
    """

    baseline: str | None = option(None, shown=False, sentences=2)
    candidates: str | Sequence[str] = option((), None, "--candidate", kind=LISTED, shown=False, sentences=2)
    _: KW_ONLY
    command: str | None = option(None, shown=False, rare=True)
    baseline_ref: str | None = option(None, shown=False, rare=True)
    candidate_refs: str | Sequence[str] = option(
        (), None, "--candidate-ref", kind=LISTED, shown=False, rare=True
    )
    resume: "str | NamedSearch | None" = option(None, kind=str | None, shown=False, sentences=2)
    metric: str | None = option(None, METRIC, shown=False)
    metric_file: str | None = option(None, METRIC, shown=False)
    last: bool = option(False, METRIC, "--last", rare=True)
    evaluate: str | None = option(None, METRIC, shown=False, rare=True)
    protect: str | Sequence[str] = option((), METRIC, kind=LISTED, shown=False, rare=True)
    cache: str | Sequence[str] = option((), METRIC, kind=LISTED, shown=False, rare=True)
    minimize: bool | None = option(None, METRIC, "--minimize/--maximize", shown="by name")
    unit: str = option("", METRIC, shown=False, rare=True)
    margin: float = option(0.0, TEST)
    chance: float | None = option(None, TEST, shown=False, rare=True)
    seeds: int | None = option(None, TEST, shown="10")
    seed: int | None = option(None, TEST, shown="random", rare=True)
    sequential: bool = option(True, TEST, "--sequential/--no-sequential", rare=True)
    any_time: bool = option(False, TEST, "--any-time")
    name: str | None = option(None, shown="the time")
    cpus_per_trial: float = option(1, RESOURCES, rare=True)
    gpus_per_trial: float | None = option(None, RESOURCES, shown=False, rare=True)
    resource: Sequence[str] = option((), RESOURCES, rare=True, kind=LISTED)
    label: Sequence[str] = option((), RESOURCES, rare=True, kind=LISTED)
    concurrent: int | None = option(None, RESOURCES, shown="as many as fit", rare=True)
    storage: str = option(STORAGE, effect=WRITES)
    ledger: str | None = option(None, TEST, shown=False, effect=WRITES)
    noise: bool = option(False, TEST, "--noise")
    callbacks: "Sequence[str | Callback]" = option((), None, "--callback", rare=True, kind=LISTED)
    trust: bool = option(False, None, "--trust", rare=True)
