"""Replay comparisons of commands from numbers: error rate, power, and searches that a lucky seed has won.

The noise of 200 comparisons is that of recorded trainings on Imagenette (`nette.py`): 46 models with six
seeds each. A score is a training's deviation from the mean of its model. Two commands at one seed have
deviations of different models at one recorded seed. Their true difference is 0, or one standard deviation
of the paired difference, which is added. Half of the comparisons are of accuracies, half of losses. The
same is repeated 4,000 times, as 200 comparisons show a rate to three points only. Each comparison is judged
as `automl referee` does, with ten seeds.

Two public searches have kept a lucky seed. Winner and baseline are the same code, so every claim is wrong.
Each search is replayed 1,000 times until its winner has at least the published lead. Then ten fresh seeds
of both are judged.

- karpathy/autoresearch, issues 131, 251 and 466: of 83 experiments, the last one that was kept changes the
  seed from 42 to 137. Its gain, read from the published figure, is 0.00043 bits per byte. Pull request 560
  puts the noise of a run at a few 1e-4; 3e-4 is used.
- wandb/senpai, pull requests 992 to 1015: a search whose best loss, 2.1997, was one of eleven runs of
  unchanged code. Their losses are listed there, and are drawn here.

`stream` replays hundreds of changes in a row instead, see `streams.py`.

Takes about a minute on one core.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import nette
import numpy as np
import streams
from bench_fidelity import score_of
from harness import write_values

from automl.judge.design import COMMANDS, Design
from automl.judge.judge import judge
from automl.judge.scores import Scores, TrainingCost
from automl.judge.variants import Variant
from automl.judge.verdict import Verdict
from automl.tasks.command import COMMAND, CommandModel, CommandTraining
from search.config import TrialConfig
from search.metric import Metric
from search.record import Role

COMPARISONS, REPEATED, REPLAYS = 200, 4000, 1000
SEEDS = 10
TIME_NOISE = 0.01  # relative standard deviation of the processor time of a run
SENPAI = (2.1997, 2.2065, 2.2155, 2.2269, 2.2532, 2.2566, 2.2590, 2.2650, 2.2667, 2.2679, 2.2760)
AUTORESEARCH_BEST, AUTORESEARCH_NOISE, AUTORESEARCH_LEAD, AUTORESEARCH_TRIES = 0.9773, 3e-4, 4.3e-4, 83

# Draws the scores of both commands, `(seeds,)` each.
Draw = Callable[[np.random.Generator], Sequence[np.ndarray]]


def configuration(command: str) -> TrialConfig:
    return TrialConfig(
        task=COMMAND, model=CommandModel(command=command), training=CommandTraining(metric="score")
    )


VARIANTS = [
    Variant(name="baseline", role=Role.BASELINE, config=configuration("train {seed}")),
    Variant(
        name="candidate", role=Role.FINALIST, config=configuration("train --new {seed}"), plain="baseline"
    ),
]
DESIGN = Design(
    seeds=range(SEEDS),
    equal="time",
    margin=0.0,
    sequential=True,
    metric=Metric(name="score", maximize=True),
    inputs=0,
    chance=None,
    kind=COMMANDS,
)


def compare(
    rng: np.random.Generator, draw: Draw, *, sequential: bool = True, maximize: bool = True
) -> Verdict:
    """Return the verdict of a referee whose commands have the scores and times that are drawn."""
    scored = {}
    for variant, values in zip(VARIANTS, draw(rng), strict=True):
        seconds = 100 * np.exp(TIME_NOISE * rng.standard_normal(SEEDS))
        scored[variant.name] = Scores(
            scores=dict(enumerate(values.tolist())),
            costs={i: TrainingCost(processor_seconds=float(second)) for i, second in enumerate(seconds)},
        )
    metric = Metric(name="score", maximize=maximize)
    return judge(replace(DESIGN, sequential=sequential, metric=metric), VARIANTS, scored)


def deviations(score: str) -> np.ndarray:
    """Return the deviation of each recorded training from its model's mean, `(models, seeds)`.

    They are scaled up, since the mean is of the same few trainings.
    """
    table: dict[str, dict[int, float]] = {}
    for row in nette.read():
        if row["at"] == 0:
            table.setdefault(row["placement"], {})[row["seed"]] = score_of(row, score)
    values = np.array([[scores[seed] for seed in sorted(scores)] for scores in table.values()])
    count = values.shape[1]
    return (values - values.mean(axis=1, keepdims=True)) * (count / (count - 1)) ** 0.5


def pairs(noise: np.ndarray, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw runs of two models, each pair at one recorded seed."""
    models, seeds = noise.shape
    seed, first = rng.integers(seeds, size=count), rng.integers(models, size=count)
    second = (first + rng.integers(1, models, size=count)) % models
    return noise[first, seed], noise[second, seed]


def noise_of(noise: np.ndarray) -> float:
    """Return the standard deviation of a paired difference."""
    baseline, candidate = pairs(noise, np.random.default_rng(0), 100_000)
    return float((candidate - baseline).std())


def resampled(noise: np.ndarray, gain: float) -> Draw:
    """Return a draw of two commands whose true difference is `gain` standard deviations of the difference."""
    size = gain * noise_of(noise)

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        baseline, candidate = pairs(noise, rng, SEEDS)
        return baseline, candidate + size

    return draw


def rates(count: int, gain: float, *, sequential: bool) -> dict[str, float]:
    """Return the rate of each outcome, and the mean number of seeds."""
    rng, outcomes, used = np.random.default_rng(0), Counter[str](), []
    noises = [resampled(deviations(score), gain) for score in ("accuracy", "loss")]
    for i in range(count):
        verdict = compare(rng, noises[i % 2], sequential=sequential)
        outcomes[str(verdict.final)] += 1
        used.append(len(verdict.used))
    return {**{name: n / count for name, n in sorted(outcomes.items())}, "seeds": float(np.mean(used))}


def autoresearch(rng: np.random.Generator) -> tuple[float, Draw]:
    """Return the lead of the best of the runs over another, and a draw of fresh seeds of both."""
    lead = 0.0
    while lead < AUTORESEARCH_LEAD:
        runs = AUTORESEARCH_BEST + AUTORESEARCH_NOISE * rng.standard_normal(AUTORESEARCH_TRIES)
        lead = float(runs[0] - runs.min())
    return lead, lambda rng: tuple(AUTORESEARCH_NOISE * rng.standard_normal((2, SEEDS)))


def senpai(rng: np.random.Generator) -> tuple[float, Draw]:
    """Return the lead of the published best over the mean of its runs, and a draw of fresh seeds of both."""
    return float(np.mean(SENPAI)) - min(SENPAI), lambda rng: tuple(rng.choice(SENPAI, (2, SEEDS)))


def replay(search: Callable[[np.random.Generator], tuple[float, Draw]]) -> dict[str, float]:
    """Return the mean lead of a search's winner in one seed, and the rate of each outcome of the referee."""
    rng, outcomes, leads = np.random.default_rng(0), Counter[str](), []
    for _ in range(REPLAYS):
        lead, draw = search(rng)
        leads.append(lead)
        outcomes[str(compare(rng, draw, maximize=False).final)] += 1
    return {
        "lead of one seed": float(np.mean(leads)),
        **{name: n / REPLAYS for name, n in sorted(outcomes.items())},
    }


def judged(gain: float) -> list[tuple[bool, float, int]]:
    """Return single calls of the referee: better or not, the gain in standard deviations, and pairs."""
    rng, calls = np.random.default_rng(1), []
    draws = [resampled(deviations(score), gain) for score in ("accuracy", "loss")]
    units = [noise_of(deviations(score)) for score in ("accuracy", "loss")]
    for i in range(REPEATED):
        verdict = compare(rng, draws[i % 2])
        assert verdict.lead is not None
        mean = verdict.lead.difference.mean / units[i % 2]
        calls.append((verdict.final == "better", mean, len(verdict.used)))
    return calls


def compare_streams() -> dict[str, dict[str, float]]:
    """Return the figures of each rule for a stream of changes."""
    tables = [deviations(score) for score in ("accuracy", "loss")]
    values = {}
    rules = {
        "ledger": streams.ledger,
        "single call": lambda noise, sizes: streams.single_call(noise, sizes, judged),
        "two seeds": streams.two_seeds,
        "one run": streams.one_run,
    }
    for name, rule in rules.items():
        rng = np.random.default_rng(0)
        sizes = streams.effects(rng, streams.STREAMS)
        values[name] = rule(streams.Noise(tables, streams.STREAMS, rng), sizes)
        print(f"{name}: {values[name]}", flush=True)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("single", "stream"), default="single")
    if parser.parse_args().what == "stream":
        write_values("referee-stream", compare_streams())
        return
    values: dict[str, dict[str, float]] = {}
    for count in (COMPARISONS, REPEATED):
        for gain in (0.0, 1.0):
            for sequential in (True, False):
                kind = "sequential" if sequential else "fixed"
                case = f"{count} comparisons, {gain:g} sd, {kind}"
                values[case] = rates(count, gain, sequential=sequential)
                print(f"{case}: {values[case]}", flush=True)
    for name, search in (("karpathy/autoresearch", autoresearch), ("wandb/senpai", senpai)):
        values[name] = replay(search)
        print(f"{name}: {values[name]}", flush=True)
    write_values("referee", values)


if __name__ == "__main__":
    main()
