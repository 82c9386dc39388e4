"""The noise of a baseline alone, and the difference that a comparison with it can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.optimize import brentq

from automl.base.units import format_duration, pluralize
from automl.confirm.decision import EXTRA_PAIRS, POWER, compute_power, pairs_needed
from automl.confirm.design import Design
from automl.confirm.judge import CONSTANT, Judge
from automl.confirm.scores import Scores
from automl.confirm.statistics import ALPHA
from automl.confirm.variants import Variant
from automl.confirm.verdict import Verdict

PAIRS = 10  # of a referee


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise of a baseline over seeds.

    Attributes:
        sd: The standard deviation of its score, in the unit of the metric.
        difference: The difference that ten pairs show with 80 % power, if pairs have nothing in common.
        pairs_for_half: The pairs that show half of it.
        seconds: The mean time of a run [s].
    """

    mean: float
    sd: float
    difference: float
    pairs_for_half: int | None
    seconds: float | None


def judge_noise(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """Return the noise of the baseline, the only variant, once all of its seeds have ended."""
    trained = scores[variants[0].name]
    used = [seed for seed in design.seeds if seed in trained.scores]
    warnings = Judge(design, variants, scores).warnings(used)
    if len(used) < len(design.seeds):
        return Verdict(design=design, used=used, warnings=warnings)
    values = [design.metric.scale * trained.scores[seed] for seed in used]
    sd, seconds = stdev(values), [cost.seconds for cost in trained.costs.values() if cost.seconds]
    if sd == 0:
        warnings.append(f"Check that the command uses its seed: its {len(used)} scores are equal.")
    of_pairs = 2**0.5 * sd
    size = of_pairs * float(brentq(lambda d: compute_power(d, 1, PAIRS - EXTRA_PAIRS, ALPHA) - POWER, 0.1, 9))
    noise = Noise(
        mean=fmean(values),
        sd=sd,
        difference=size,
        pairs_for_half=pairs_needed(size / 2, of_pairs) if sd else None,
        seconds=fmean(seconds) if seconds else None,
    )
    return Verdict(
        design=design,
        outcome="undecided",
        words=f"A score varies by {sd:.3g} {design.unit} over seeds",
        explanation=_explain(noise, design),
        complete=True,
        used=used,
        is_constant=sd == 0 and len(used) >= CONSTANT,
        warnings=warnings,
        noise=noise,
    )


def _explain(noise: Noise, design: Design) -> str:
    cost, half = "", ""
    if noise.seconds is not None:
        cost = f", in {pluralize(2 * PAIRS, 'run')} of {format_duration(noise.seconds)} each"
    if noise.pairs_for_half is not None:
        half = f" {noise.pairs_for_half} pairs show half of that."
    return (
        f"Mean {noise.mean:.4g}, standard deviation {noise.sd:.3g}, {len(design.seeds)} seeds. {PAIRS} "
        f"pairs show a difference of {noise.difference:.3g} {design.unit} with {POWER:.0%} power{cost}."
        f"{half} Fewer are enough if a seed shifts both commands alike."
    )
