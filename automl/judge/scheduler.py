"""Decide which trainings a confirmation still needs, whenever a score arrives."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean, stdev

from automl.base.errors import InputError
from automl.base.lazy import numpy as np
from automl.base.serialise import parse_json, read_file, write_json
from automl.base.terminal import tell
from automl.base.units import format_duration, pluralize
from automl.judge.decision import POWER, detectable
from automl.judge.design import Design
from automl.judge.judge import CONSTANT, Judge, judge
from automl.judge.ledger import Ledger
from automl.judge.protocol import (
    Confirmation,
    best_of_variant,
    chosen_baseline,
    confirmations,
    study_in,
)
from automl.judge.scores import Scores, collect, find_rise
from automl.judge.statistics import paired
from automl.judge.stream import Stream
from automl.judge.variants import CONTROL_ROLES, LONGER, Variant, ablations, best_validated, lengthen
from automl.judge.verdict import FORMAT, VERDICT_FILE, Verdict, read_verdict
from automl.storage.metadata import SearchMetadata
from automl.storage.trial_files import describe_original, read_answers, read_left
from search.config.tasks import find_spec
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import NOT_STARTED, Callback, Role, State, TrialRecord

PAIRS = 10  # of a referee
MIN_SECONDS, MIN_PROCESSOR_SHARE = 10, 0.05  # processor time below that share of a longer run is doubtful
MAX_NAMES = 5  # largest number of files in a warning
OPTIONS_OF_RUNS = ("--metric", "--evaluate", "--protect")  # in the reason of a failure that all runs share


class ConfirmationScheduler(Callback):
    """Callback that judges the scores as they arrive and plans the trainings that are still missing.

    The candidates for the tuned baseline are trained first, with the first seeds. The finalists, which do not
    depend on that choice, are trained beside them. Then the best candidate is trained with all seeds. If a
    finalist is ahead of it, its other opponents are trained with the same seeds: the plain backbone with its
    hyperparameters and, if it may have taken more time, that and the baseline for as much longer. If a
    finalist is better, the controls follow for the seeds that showed it. Ablations come last, if they are
    asked for. All of this is computed from the study, so a confirmation resumes where it stopped.

    `retry` trains again after an error. `controls` trains the controls with the finalists, whatever the
    verdict. `variants` are the judged ones, the baseline first. `location` has the trials' folders.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SearchMetadata,
        confirmation: Confirmation,
        *,
        retry: bool = True,
        controls: bool = False,
    ) -> None:
        self.folder, self.confirmation, self.controls = folder, confirmation, controls
        self.name, self.location = metadata.name, metadata.location / folder.name
        self._command = metadata.provenance.command
        metric, plan = metadata.plan.metric, confirmation.plan(metadata.plan)
        needed = [metric.name, plan.metric.name]
        study = study_in(folder, self.name, maximize=metric.maximize, needed=needed)
        self.planned = FixedScheduler(study, plan, [], retry=retry)
        self.design = confirmation.design(metric, metadata.settings.terms.equal)
        self._values: dict[int, np.ndarray | None] = {}  # by the number of a finished trial
        self._left: dict[int, list[str]] = {}  # as above
        self.variants: list[Variant] = []
        self.verdict = self._complete(Verdict(design=self.design))
        self._announced: set[str] = set()
        self.stream = None
        if confirmation.options.screen:
            ledger, is_new = Ledger(Path(metadata.storage)), not self.planned.standing
            self.stream = Stream(ledger, self.name, confirmation, self.design.equal, is_new=is_new)
            self.stream.reuse(self.planned)
        # Once chosen, the tuned baseline stays, even if trials are repeated.
        self._chosen = chosen_baseline(folder, confirmation.variant_set)

    def on_trial_end(self, trial: TrialRecord) -> None:
        self.update(False)

    def update(self, ablate: bool) -> None:
        """Judge the scores, plan the next trainings, and write `verdict.json`.

        `ablate` trains the ablations after the rest.
        """
        variant_set, planned, seeds = self.confirmation.variant_set, self.planned, list(self.design.seeds)
        # All of these are needed before the first interim analysis, whatever the scores.
        needed = seeds[: self.confirmation.least] if self.design.sequential else seeds
        known = {record.variant for record in planned.records.values()}
        controls = [variant for variant in variant_set.variants if variant.role in CONTROL_ROLES]
        later = [] if self.controls or any(variant.name in known for variant in controls) else controls
        now = [variant for variant in variant_set.variants[1:] if variant not in later]
        ended = {(r.variant, r.config.seed): r for r in planned.standing if r.state is not State.RUNNING}
        selection: list[PlannedTrial] = []
        if self._chosen is None:
            selection = _planned_trials(variant_set.baselines, self.confirmation.selection)
            if any(planned_trial.key not in ended for planned_trial in selection):
                planned.planned_trials = [*selection, *_planned_trials(now, needed)]
                return
            self._chosen = self._baseline(ended).name
        (baseline,) = (variant for variant in variant_set.baselines if variant.name == self._chosen)
        own = self._find_opponents(baseline, known)
        self.variants = [baseline, *variant_set.variants[1:], *own]
        self._judge()
        self._announce(known)
        if self.verdict.complete and self.stream is None:  # The other trials are pruned, or do not begin.
            seeds = [seed for seed in seeds if seed in self.verdict.used]
        own_trials = [trial for trial in _planned_trials(own, seeds) if trial.key in ended]
        awaited = _planned_trials(self.verdict.awaited, self.verdict.used)
        compared = _planned_trials([baseline, *now], seeds, alternate=self.design.kind.alternates)
        if self.stream is not None:
            compared = self.stream.needed(compared, self.design.seeds)
        trials = [*selection, *own_trials, *awaited, *compared]
        unique = {trial.key: trial for trial in reversed(trials)}  # the first of each variant and seed
        planned.planned_trials = list(unique.values())[::-1]
        if self.verdict.winner is not None:
            planned.planned_trials += _planned_trials(later, seeds)
        if self.verdict.complete and self.verdict.leader is not None:
            without = ablations(self.verdict.leader)
            if ablate or any(variant.name in known for variant in without):
                self.variants += without
                planned.planned_trials += _planned_trials(without, seeds)
                self._judge()
        if self._is_hopeless:
            started = {(record.variant, record.config.seed) for record in planned.standing}
            planned.planned_trials = [trial for trial in planned.planned_trials if trial.key in started]
        if self.verdict.complete:  # The list of trials is complete, too.
            planned.plan = replace(planned.plan, trials=len(planned.planned_trials))
        self.verdict = self._complete(self.verdict)
        write_json(self.folder / VERDICT_FILE, self.verdict, format=FORMAT)

    def _find_opponents(self, baseline: Variant, known: set[str]) -> list[Variant]:
        """Return the plain variants with finalists' hyperparameters, and the longer ones that have begun."""
        variant_set = self.confirmation.variant_set
        names = {variant.plain for variant in variant_set.variants}
        own = [
            replace(v, role=Role.PLAIN) for v in variant_set.baselines if v.name in names and v != baseline
        ]
        longer = (lengthen(each, factor) for each in (baseline, *own) for factor in LONGER)
        return [*own, *(variant for variant in longer if variant is not None and variant.name in known)]

    def _announce(self, known: set[str]) -> None:
        """Print which opponents are to be trained longer, and what that takes, before the first of them."""
        verdict, known = self.verdict, known | self._announced
        new = [v for v in verdict.awaited if v.config.longer > 1 and v.name not in known]
        self._announced |= {variant.name for variant in new}
        if not new:
            return
        count, spent = len(new) * len(verdict.used), ""
        if verdict.seconds is not None:
            seconds = verdict.seconds / 2 * sum(v.config.longer for v in new) * len(verdict.used)
            spent = f", about {format_duration(seconds)} of training"
        tell(
            f"longer    {pluralize(count, 'trainings')}{spent}: a finalist leads and may have taken more "
            f"time, so its opponents get it too: {', '.join(variant.name for variant in new)}"
        )

    def _baseline(self, ended: Mapping[tuple[str, int], TrialRecord]) -> Variant:
        """Return the candidate with the best validation over the seeds of the selection."""
        metric, seeds = self.design.metric, self.confirmation.selection
        scores: dict[str, list[float]] = {}
        for variant in self.confirmation.variant_set.baselines:
            records = [ended[variant.name, seed] for seed in seeds]
            if all(record.state is State.COMPLETE for record in records):
                scores[variant.name] = [metric.sign * record.value(metric.name) for record in records]
        return best_validated(self.confirmation.variant_set.baselines, scores)

    @property
    def has_stopped(self) -> bool:
        """Return True if the trainings that are running cannot change the verdict, nor explain it."""
        return self.design.kind.ends_early and self.verdict.complete

    @property
    def _is_hopeless(self) -> bool:
        """Return True if a variant has failed too often in this run, or once with a mistaken option."""
        if (patience := self.design.kind.patience) is None:
            return False
        broken = [record for record in self.planned.standing if record.state is State.ERROR]
        if any(option in (record.reason or "") for record in broken for option in OPTIONS_OF_RUNS):
            return True
        return any(count >= patience for count in Counter(record.variant for record in broken).values())

    def _judge(self) -> None:
        if self.stream is not None:
            self.stream.keep(self.planned.standing)
        rule = judge if self.stream is None else self.stream.judge
        rule = _judge_noise if self.confirmation.options.noise else rule
        self.verdict = rule(self.design, self.variants, self._scores())
        if self.verdict.complete and self.verdict.finalist is not None:
            done = [record for record in self.planned.standing if record.state is State.COMPLETE]
            known = {(record.variant, record.config.seed): record.history for record in done}
            rises = []
            for name in (self.verdict.finalist, self.variants[0].name):
                histories = [known[name, seed] for seed in self.verdict.used if (name, seed) in known]
                rises.append(find_rise(histories, self.design.metric, self.design.margin))
            self.verdict = replace(self.verdict, rises=(rises[0], rises[1]))

    def _scores(self) -> dict[str, Scores]:
        metric, seeds = self.planned.plan.metric.name, self.design.seeds
        records = self.planned.records.values()
        broken = [record for record in records if record.state is State.ERROR]
        failed = [record for record in broken if not (record.reason or "").startswith(NOT_STARTED)]
        return collect(self.variants, self.planned.standing, metric, seeds, self._values_of, failed)

    def _values_of(self, record: TrialRecord) -> "np.ndarray | None":
        if record.number not in self._values:
            answers = read_answers(self.location / record.folder)
            self._values[record.number] = None if answers is None else answers.values
        return self._values[record.number]

    def _complete(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the names of its confirmation, and with all warnings."""
        baseline_candidates = {variant.name for variant in self.confirmation.variant_set.baseline_candidates}
        broken = [
            f"{record.variant} could not be trained: {record.reason}"
            for record in self.planned.standing
            if record.variant in baseline_candidates
            and record.config.seed in self.confirmation.selection
            and record.state in (State.INFEASIBLE, State.ERROR)
        ]
        warnings = [*self.confirmation.variant_set.warnings, *broken, *verdict.warnings]
        if (winner := verdict.winner) is not None:
            metric = self.design.metric.name
            warnings += lost_metrics(winner, self.variants[0], self.planned.standing, verdict.used, metric)
        if self.design.kind.ignores and self.design.equal == "time":
            warnings += self._unseen_work()
        done = [record for record in self.planned.standing if record.state is State.COMPLETE]
        new = [record for record in done if record.number not in self._left]
        self._left |= {record.number: read_left(self.location / record.folder) for record in new}
        if names := ", ".join(sorted(set().union(*self._left.values()))[:MAX_NAMES]):
            warnings.append(f"Check that no run reads what another one left outside of {{out}}: {names}.")
        number = self.confirmation.number
        leading = next(
            (r for r in self.planned.standing if r.variant == verdict.finalist and r.profile), None
        )
        return replace(
            verdict,
            search=self.name,
            confirmation=number,
            warnings=warnings,
            original=describe_original(self.folder, self.design.metric, leading),
            command=self._command,
        )

    def _unseen_work(self) -> list[str]:
        """Return a warning for each command that spends its time where its processor time is not seen."""
        names = {
            record.variant
            for record in self.planned.standing
            for metrics in record.history
            if metrics["seconds"] > MIN_SECONDS
            and metrics.get("processor_seconds", inf) < MIN_PROCESSOR_SHARE * metrics["seconds"]
        }
        return [
            f"Do not rely on the time of {name}: its processor time is below {MIN_PROCESSOR_SHARE:.0%} of "
            f"the time by the clock, so it seems to work in a container or on another machine."
            for name in sorted(names)
        ]

    def summary(self) -> str:
        lead = self.verdict.lead
        if lead is None:
            return "" if self.variants else "looking for the best baseline"
        d, decimals = lead.difference, self.design.decimals
        return (
            f"{pluralize(len(self.verdict.used), 'seeds')}, {lead.variant} {d.mean:+.{decimals}f} "
            f"{self.design.unit} ({d.in_words(decimals)})"
        )

    def best_of_lead(self) -> TrialRecord | None:
        """Return the leading finalist's training with the best validation, or None without a leader."""
        if self.verdict.finalist is None:
            return None
        return best_of_variant(self.planned.records.values(), self.verdict.finalist, self.design)


def _judge_noise(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """Return the noise of the baseline, the only variant, once all of its seeds have ended."""
    # The difference that ten pairs show is that of a t test, if pairs have nothing in common.
    judge = Judge(design, variants, scores)
    trained = scores[variants[0].name]
    used = [seed for seed in design.seeds if seed in trained.scores]
    warnings = judge.warnings(used)
    if len(used) < len(design.seeds):
        return Verdict(design=design, variants=judge.trained, used=used, warnings=warnings)
    values = [design.metric.scale * trained.scores[seed] for seed in used]
    sd, seconds = stdev(values), fmean(cost.seconds or 0.0 for cost in trained.costs.values())
    if sd == 0:
        warnings.append(f"Check that the command uses its seed: its {len(used)} scores are equal.")
    shown = detectable(2**0.5 * sd, PAIRS) or 0.0
    return Verdict(
        design=design,
        outcome="undecided",
        words=f"A score varies by {sd:.3g} {design.unit} over seeds",
        explanation=f"Mean {fmean(values):.4g}, standard deviation {sd:.3g}, "
        f"{pluralize(len(used), 'seeds')}. {PAIRS} pairs show a difference of {shown:.3g} {design.unit} with "
        f"{POWER:.0%} power, in {2 * PAIRS} runs of {format_duration(seconds)} each. Fewer are enough if a "
        f"seed shifts both commands alike.",
        complete=True,
        variants=judge.trained,
        used=used,
        is_constant=sd == 0 and len(used) >= CONSTANT,
        warnings=warnings,
        noise={"mean": fmean(values), "sd": sd, "difference": shown, "seconds": seconds},
    )


def _planned_trials(
    variants: Iterable[Variant], seeds: Iterable[int], *, alternate: bool = False
) -> list[PlannedTrial]:
    """Return each variant with each seed, seed after seed, so that pairs are complete early."""
    # With `alternate`, every second seed has the variants in reverse order, so that a drift of the machine
    # affects all alike.
    variants = list(variants)
    return [
        PlannedTrial(variant=variant.name, role=variant.role, config=variant.with_seed(seed))
        for i, seed in enumerate(seeds)
        for variant in (reversed(variants) if alternate and i % 2 else variants)
    ]


def lost_metrics(
    winner: Variant, baseline: Variant, records: Iterable[TrialRecord], seeds: Sequence[int], metric: str
) -> list[str]:
    """Return a warning for each other metric of the test in which the winner is worse than the baseline.

    `metric` is that of the verdict, and `seeds` are those that it is based on.
    """
    ends = {
        (record.variant, record.config.seed): record.history[-1]
        for record in records
        if record.state is State.COMPLETE
    }
    warnings = []
    for other in find_spec(winner.config.task).metrics:
        key, factor = f"test_{other.name}", other.sign * other.scale
        scores = [[ends[v.name, seed].get(key, nan) for v in (winner, baseline)] for seed in seeds]
        differences = [factor * (own - plain) for own, plain in scores]
        if metric in (key, other.name) or not all(map(isfinite, differences)):
            continue
        difference = paired(differences, margin=other.margin)
        if difference.high < 0:
            warnings.append(
                f"{winner.name} is worse than {baseline.name} in {other.name}: {difference.mean:+.2f} "
                f"{other.gap_unit} ({difference.in_words(2)}). Decide which metric counts."
            )
    return warnings


def read_verdicts(folder: Path, metadata: SearchMetadata) -> list[tuple[Path, Verdict]]:
    """Read the verdicts on a search, the latest last, each with its folder.

    Those of an earlier version are judged again by their scores. Raise InputError for a damaged one.
    """
    return [(path, _read(path, metadata)) for path in confirmations(folder, VERDICT_FILE)]


def latest_verdict(
    folder: Path, metadata: SearchMetadata, *, complete: bool = False
) -> tuple[Path, Verdict] | None:
    """Return the latest verdict on a search, with its folder. With `complete`, skip unfinished ones."""
    folders = reversed(confirmations(folder, VERDICT_FILE))
    verdicts = ((path, _read(path, metadata)) for path in folders)
    return next((pair for pair in verdicts if pair[1].complete or not complete), None)


def _read(path: Path, metadata: SearchMetadata) -> Verdict:
    value = None
    with suppress(InputError):  # `read_verdict` reports it
        value = parse_json(read_file(path / VERDICT_FILE))
    if isinstance(value, dict) and "headline" in value and "format" not in value:
        scheduler = ConfirmationScheduler(path, metadata, Confirmation.read(path), retry=False)
        scheduler.update(False)
        return scheduler.verdict
    return read_verdict(path)
