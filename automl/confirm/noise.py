"""The noise of a baseline alone, and the difference that a comparison with it can show."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from scipy.optimize import brentq

from automl.base.units import format_duration, pluralize
from automl.confirm.decision import EXTRA_PAIRS, POWER, compute_power
from automl.confirm.design import Design
from automl.confirm.judge import CONSTANT, Judge
from automl.confirm.scores import Scores
from automl.confirm.variants import Variant
from automl.confirm.verdict import Verdict

PAIRS = 10  # of a referee


def judge_noise(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """Return the noise of the baseline, the only variant, once all of its seeds have ended.

    The difference that ten pairs show is that of a t test, if pairs have nothing in common.
    """
    trained = scores[variants[0].name]
    used = [seed for seed in design.seeds if seed in trained.scores]
    warnings = Judge(design, variants, scores).warnings(used)
    if len(used) < len(design.seeds):
        return Verdict(design=design, used=used, warnings=warnings)
    values = [design.metric.scale * trained.scores[seed] for seed in used]
    sd, seconds = stdev(values), fmean(cost.seconds or 0.0 for cost in trained.costs.values())
    if sd == 0:
        warnings.append(f"Check that the command uses its seed: its {len(used)} scores are equal.")
    shown = float(brentq(lambda d: compute_power(d, 1, PAIRS - EXTRA_PAIRS) - POWER, 0.1, 9)) * 2**0.5 * sd
    return Verdict(
        design=design,
        outcome="undecided",
        words=f"A score varies by {sd:.3g} {design.unit} over seeds",
        explanation=f"Mean {fmean(values):.4g}, standard deviation {sd:.3g}, "
        f"{pluralize(len(used), 'seeds')}. {PAIRS} pairs show a difference of {shown:.3g} {design.unit} with "
        f"{POWER:.0%} power, in {2 * PAIRS} runs of "
        f"{format_duration(seconds)} each. Fewer are "
        "enough if a seed shifts both commands alike.",
        complete=True,
        used=used,
        is_constant=sd == 0 and len(used) >= CONSTANT,
        warnings=warnings,
        noise={"mean": fmean(values), "sd": sd, "difference": shown, "seconds": seconds},
    )
