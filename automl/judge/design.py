"""The design of a confirmation: what it compares, and what it tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from automl.base import units
from automl.base.errors import InputError
from automl.judge.statistics import Difference
from search.metric import Chance, Metric, signed_unit


@dataclass(frozen=True, kw_only=True)
class TrainingKind:
    """Kind of trainings that are compared: its words, and what a comparison of them does.

    Attributes:
        name: The name in files.
        finalist: The noun of what may win.
        baseline: The noun of what it is compared with.
        doing: What a comparison of them does, as in "confirming".
        done: What it has done.
        resume: The command that resumes it, before its name.
        use: What to do with a winner.
        keep: What to do if no finalist is better.
        again: What tests again with more seeds, after the time that this takes.
        untimed: What to do if a finalist is ahead and its opponents cannot be trained as long.
        correct: What else to do if trainings failed.
        exports: True if automl can export the models.
        split: The split of the scores, or empty if only the program knows it.
        splits: The splits that are read.
        own: True if code of the user trains, which may fail because of its score.
        ignores: True if trainings may ignore their seed and their length, and work on another machine.
        alternates: True if the order of the variants alternates, so that a drift of the machine is fair.
        ends_early: True if running trainings end as soon as the verdict is final.
        patience: Failed trainings of a variant after which no others start, or None.
    """

    name: str
    finalist: str
    baseline: str
    doing: str
    done: str
    resume: str
    use: str
    keep: str
    again: str = ""
    untimed: str = ""
    correct: str = ""
    exports: bool = True
    split: str = ""
    splits: Sequence[str] = ()
    own: bool = False
    ignores: bool = False
    alternates: bool = False
    ends_early: bool = False
    patience: int | None = None

    def to_json(self) -> str:
        """Return the name."""
        return self.name

    @classmethod
    def from_json(cls, value: object) -> "TrainingKind":
        """Return the kind of a name. Raise InputError if there is none."""
        for kind in (MODELS, OWN_MODELS, COMMANDS):
            if kind.name == value:
                return kind
        raise InputError(f"there is no kind of trainings {value!r}")


MODELS = TrainingKind(
    name="models",
    finalist="finalist",
    baseline="tuned baseline",
    doing="confirming",
    done="confirmed",
    resume="confirm --search",
    use="Use it: automl export --best",
    keep="Use the baseline: automl export --baseline",
    again=": automl confirm --again --seeds {seeds}",
    split="test",
    splits=("training", "validation", "testing"),
)
OWN_MODELS = replace(MODELS, name="own models", own=True)
COMMANDS = TrainingKind(
    name="commands",
    finalist="candidate",
    baseline="baseline",
    doing="comparing",
    done="compared",
    resume="referee --resume",
    use="Use it.",
    keep="Keep the baseline.",
    untimed="Add {budget}, its length of training, to the baseline, or --any-time if time does not matter.",
    correct="or correct the command or --metric, if that was wrong, and compare anew",
    exports=False,
    own=True,
    ignores=True,
    alternates=True,
    ends_early=True,
    patience=2,
)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Design of a confirmation, fixed before it begins.

    Attributes:
        seeds: The planned seeds, in order.
        equal: The budget that all variants have in common: `time`, `epochs`, or for commands `none`.
        margin: The smallest difference that matters, in `unit`.
        sequential: Stop as soon as the verdict is final.
        inputs: The number of inputs of the test split. 0 if only the user's code knows it.
        chance: The score of guessing on the test split, or None if it is not known.
    """

    seeds: Sequence[int]
    equal: str
    margin: float
    sequential: bool
    metric: Metric
    inputs: int
    chance: Chance | None
    kind: TrainingKind = MODELS

    @property
    def decimals(self) -> int:
        """Number of decimals of a printed difference."""
        return units.decimals(self.margin)

    @property
    def unit(self) -> str:
        """Unit of differences, such as `points`."""
        return self.metric.gap_unit

    @property
    def signed(self) -> str:
        """Unit of a signed difference. Above 0 is better."""
        return signed_unit(self.unit, self.metric.maximize)

    def size(self, d: Difference) -> str:
        """Return a difference without its sign, with its interval."""
        low, high = sorted((abs(d.low), abs(d.high))) if d.low * d.high > 0 else (d.low, d.high)
        ends = f" ({low:.{self.decimals}f} to {high:.{self.decimals}f})" if d.bounds else ""
        return f"{abs(d.mean):.{self.decimals}f} {self.unit}{ends}"

    @property
    def resolution(self) -> float:
        """Effect of one test input on the score, in `unit`, or 0 if it is not known."""
        return self.metric.scale * self.chance.step if self.chance is not None else 0.0
