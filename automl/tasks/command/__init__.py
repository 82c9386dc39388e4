"""A training that is any command.

evaluator   Score what commands write with an evaluator, and check files before and after runs
commits     Commits that a command runs in: find them, copy each, and import its packages from the copy
loop        Runs a trial that is a command, measures it, and finds the metric that it printed or wrote
run_ledger  List a ledger, and compare its head with its first baseline
referee     Compare commands with fresh paired seeds, without a search: `automl referee`
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from automl.base.serialise import to_json
from search.config.sections import Data, Model, OwnTraining
from search.config.tasks import TaskSpec

COMMAND = "command"  # the task, and the backbone of its configurations
SEED, OUT = "{seed}", "{out}"  # placeholders of a command: its seed, and the run's own folder
LENGTH = re.compile(r"\{budget(?::([1-9]\d*))?\}")  # placeholder of the length of its training
SHELL = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"))


@dataclass(frozen=True, kw_only=True)
class CommandModel(Model):
    """A command, which builds and trains a model of its own.

    Attributes:
        command: The command. `{seed}` is the seed, and `{out}` the path of a folder that only this run has.
            `{budget}` is the length of its training, from 1 on, and `{budget:1000}` 1000 times that.
    """

    backbone: str = COMMAND
    command: str = ""

    def problems(self) -> Iterator[str]:
        if SEED not in self.command:
            yield (
                f"a command must contain {SEED}, since each run needs another seed; got {self.command!r}. "
                f"Give the training script an option such as --seed {SEED}"
            )
        if "{budget" in LENGTH.sub("", self.command):
            yield (
                f"a command has its length of training as {{budget}}, a factor, or as {{budget:N}}, with N "
                f"steps from 1 on; got {self.command!r}"
            )
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            yield f"a command must be words as in a shell; got {self.command!r} ({error})"
            return
        if SHELL & {*words} or re.match(r"\w+=", self.command):
            yield (
                f"a command runs without a shell, so pipes and variables have no effect; got "
                f"{self.command!r}. Put it into a shell: sh -c '...'"
            )

    def arguments(self, seed: int, out: str, longer: float = 1.0) -> list[str]:
        """Return the program and its arguments. Braces other than the three placeholders stay."""

        def length(match: re.Match[str]) -> str:
            return str(ceil(int(match[1]) * Fraction(str(longer)))) if match[1] else f"{longer:g}"

        words = [LENGTH.sub(length, word) for word in shlex.split(self.command)]
        return [word.replace(SEED, str(seed)).replace(OUT, out) for word in words]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The evaluator of what commands write, and the files that they must not change.

    Attributes:
        evaluate: The command of the evaluator, which runs in a copy of its files. Empty without an evaluator.
        evaluator: That copy, a folder with the name of its hash.
        protect: The hash of each protected path, as seen from the folder of the commands.
        ignored: Paths that runs may write.
    """

    evaluate: str = ""
    evaluator: str = ""
    protect: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class CommandTraining(OwnTraining):
    """The training of a command, of which only the metric is known.

    Attributes:
        metric: A regular expression with one group, or the key of a JSON line, in what the command prints.
            With `metric_file`, the column or key in that file.
        metric_file: A CSV or JSON file that the command writes, relative to its folder `{out}`.
        last: Use the last of several printed values.
        guard: The evaluator, and the protected files.
        imports: Folders from which Python imports first, as seen from the folder of the command.
    """

    metric: str = ""
    metric_file: str = ""
    last: bool = False
    guard: Guard = Guard()
    imports: Sequence[str] = ()

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.metric:
            yield "--metric must name the metric of the command, or be a regular expression with a group"
        elif self.is_pattern:
            try:
                groups = re.compile(self.metric).groups
            except re.error as error:
                yield f"--metric {self.metric!r} is no regular expression ({error})"
            else:
                if groups != 1:
                    yield (
                        f"--metric must have one group, in parentheses, for the number, as in 'acc=(.*)'; "
                        f"{self.metric!r} has {groups}"
                    )
        if self.metric_file.startswith("/") or ".." in self.metric_file.split("/"):
            yield (
                f"--metric-file is a path in the run's own folder, {OUT}, such as results.csv; "
                f"got {self.metric_file!r}"
            )

    @property
    def is_pattern(self) -> bool:
        """Return True if `metric` is a regular expression."""
        return not self.metric_file and re.fullmatch(r"[\w./@-]+", self.metric) is None

    @property
    def metric_name(self) -> str:
        """Return the name of the metric: the name of the group, the last word before it, or `metric`."""
        if not self.is_pattern:
            return self.metric
        named = re.search(r"\?P<(\w+)>", self.metric)
        if named:
            return named[1]
        text = re.sub(r"\\.|\[.*?\]", " ", self.metric)  # without classes such as \s and [a-z]
        words = re.findall(r"[A-Za-z]\w*(?:/\w+)*", re.split(r"\((?!\?)", text)[0])
        return words[-1] if words else "metric"

    def to_json(self) -> dict[str, Any]:
        """Convert to dictionaries and values."""
        names = ("metric", "metric_file", "last", "guard", "imports")
        return {**super().to_json(), **{name: to_json(getattr(self, name)) for name in names}}


SPEC = TaskSpec(
    order=90,
    data=Data,
    model=CommandModel,
    training=CommandTraining,
    metrics=(),
    loop="automl.tasks.command.loop:train",
)

__all__ = ["SPEC", "CommandModel", "CommandTraining"]
