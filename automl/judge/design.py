"""The design of a confirmation: what it compares, and what it tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.base import units
from automl.judge.statistics import Difference
from search.metric import Chance, Metric, signed_unit


@dataclass(frozen=True, kw_only=True)
class TrainingKind:
    """Kind of trainings that a confirmation compares, with its words.

    Attributes:
        finalist: The noun of what may win.
        baseline: The noun of what it is compared with.
        doing: What a confirmation of them does, as in "confirming".
        done: What it has done.
        resume: The command that resumes it, before its name.
        split: The split of the scores, or empty if only the program knows it.
        opaque: True if only the metric of a training is known, as of a command. No search chose it. It may
            ignore its seed, fail because of it, or work on another machine.
        own: True if code of the user trains, which may fail because of its score.
    """

    finalist: str
    baseline: str
    doing: str
    done: str
    resume: str
    split: str
    opaque: bool = False
    own: bool = False


MODELS = TrainingKind(
    finalist="finalist",
    baseline="tuned baseline",
    doing="confirming",
    done="confirmed",
    resume="confirm --search",
    split="test",
)
COMMANDS = TrainingKind(
    finalist="candidate",
    baseline="baseline",
    doing="comparing",
    done="compared",
    resume="referee --resume",
    split="",
    opaque=True,
    own=True,
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
        shared_trainings: True if placements are inserted into shared partial trainings, one for each seed,
            which all variants continue.
    """

    seeds: Sequence[int]
    equal: str
    margin: float
    sequential: bool
    metric: Metric
    inputs: int
    chance: Chance | None
    shared_trainings: bool = False
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
        ends = f" ({low:.{self.decimals}f} to {high:.{self.decimals}f})" if d.bounded else ""
        return f"{abs(d.mean):.{self.decimals}f} {self.unit}{ends}"

    @property
    def resolution(self) -> float:
        """Effect of one test input on the score, in `unit`, or 0 if it is not known."""
        return self.metric.scale * self.chance.step if self.chance is not None else 0.0
