"""How many epochs a search needs to find a good placement, replayed on recorded learning curves.

Ours, Ray's OptunaSearch with ASHAScheduler (both as they come) and random search that trains every trial to
its end, each on two slots in a simulated clock where an epoch takes one unit. Counted are the epochs that all
trials together have taken until the search has a finished trial whose placement is within 0.5 points of the
table's best by the mean of its three seeds. Median of 50 runs; the spread is that of the peer's quartiles.
Whether early stopping can help at all depends on whether early epochs foretell the last one, so their rank
correlations are printed, too.
"""

import argparse
import heapq
import multiprocessing
import os
import random
import statistics
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import optuna
import pyarrow.parquet as pq
from curves import EPOCHS, FILE, SEEDS, name_of, space
from harness import Row, show, write
from scipy.stats import spearmanr

from search.metric import ACCURACY
from search.record import Report
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.spaces import Space, random_draws
from search.trial_scheduler import Plan

SLOTS = 2
NEAR = 0.005
MOST = 3_000  # epochs after which a run is given up, and counts as that many

Table = dict[tuple[str, int], list[float]]


class Goal:
    """Knows the table, and notes when a run has found what it looks for."""

    def __init__(self, table: Table) -> None:
        self.table = table
        names = {name for name, _ in table}
        self.means = {n: statistics.fmean(table[n, s][-1] for s in range(SEEDS)) for n in names}
        self.best = max(self.means.values())

    def begin(self) -> None:
        self.spent = 0
        self.found: int | None = None

    def finished(self, name: str) -> None:
        if self.means[name] >= self.best - NEAR and self.found is None:
            self.found = self.spent

    @property
    def over(self) -> bool:
        return self.found is not None or self.spent >= MOST


def run(goal: Goal, ask: Callable[[], object], step: Callable[[object, int], bool]) -> None:
    """Two slots in simulated time: `step(trial, epoch)` is whether the trial continues after it."""
    goal.begin()
    queue: list[tuple[float, int, object, int]] = []
    count = 0
    now = 0.0
    while not goal.over:
        while len(queue) < SLOTS:
            heapq.heappush(queue, (now + 1, count, ask(), 1))
            count += 1
        now, order, trial, epoch = heapq.heappop(queue)
        goal.spent += 1
        if step(trial, epoch):
            heapq.heappush(queue, (now + 1, order, trial, epoch + 1))


def ours(goal: Goal, seed: int) -> None:
    study = optuna.create_study(direction="maximize")
    plan = Plan(trials=None, budget=EPOCHS, metric=ACCURACY, objectives=["accuracy"])
    scheduler = SearchScheduler(
        study,
        Space(name="curves", draw=space, baseline={"modules": 0}, summary=""),
        plan,
        load_sampler("tpe", seed=seed),
        adjust=lambda config: config.change(seed=seed),
    )

    def step(trial, epoch: int) -> bool:
        name = name_of(trial.config)
        curve = goal.table[name, trial.config.seed % SEEDS]
        history = [
            {"epoch": i, "resource": float(i), "accuracy": a} for i, a in enumerate(curve[:epoch], start=1)
        ]
        report = Report(history=history, finished=epoch == EPOCHS)
        if scheduler.report(trial.number, report):
            return True
        scheduler.end(trial.number, report)
        if report.finished:
            goal.finished(name)
        return False

    run(goal, scheduler.ask, step)


def stock(goal: Goal, seed: int) -> None:
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(
        space=lambda trial: space(trial) and None, metric="accuracy", mode="max", seed=seed
    )
    scheduler = ASHAScheduler(metric="accuracy", mode="max", max_t=EPOCHS)
    counter = iter(range(10**9))

    def ask() -> SimpleNamespace:
        trial = SimpleNamespace(trial_id=f"trial{next(counter)}")
        params = searcher.suggest(trial.trial_id)
        trial.name = name_of(space(optuna.trial.FixedTrial(params)))
        scheduler.on_trial_add(None, trial)
        return trial

    def step(trial, epoch: int) -> bool:
        curve = goal.table[trial.name, seed % SEEDS]
        result = {"training_iteration": epoch, "accuracy": curve[epoch - 1], "trial_id": trial.trial_id}
        if epoch < EPOCHS and scheduler.on_trial_result(None, trial, result) == scheduler.CONTINUE:
            searcher.on_trial_result(trial.trial_id, result)
            return True
        scheduler.on_trial_complete(None, trial, result)
        searcher.on_trial_complete(trial.trial_id, result)
        if epoch == EPOCHS:
            goal.finished(trial.name)
        return False

    run(goal, ask, step)


def at_random(goal: Goal, seed: int) -> None:
    chooser = random.Random(seed)
    names = [
        name_of(config)
        for _, config in random_draws(
            Space(name="curves", draw=space, baseline={}, summary=""), 4000, seed=seed
        )
    ]

    def step(name, epoch: int) -> bool:
        if epoch == EPOCHS:
            goal.finished(name)
        return epoch < EPOCHS

    run(goal, lambda: chooser.choice(names), step)


METHODS: dict[str, Callable[[Goal, int], None]] = {"ours": ours, "stock": stock, "random": at_random}


def replay(work: tuple[str, int]) -> int:
    """Epochs that one run of a method needs."""
    quiet()
    name, seed = work
    goal = Goal(read())
    METHODS[name](goal, seed)
    return goal.found or MOST


def quiet() -> None:
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")


def read() -> Table:
    rows = pq.read_table(FILE).to_pylist()
    return {(row["placement"], row["seed"]): row["accuracy"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    quiet()
    goal = Goal(read())
    means = sorted(goal.means.values(), reverse=True)
    near = sum(mean >= goal.best - NEAR for mean in means)
    print(
        f"{len(means)} placements, {near} of them within 0.5 points of the best: "
        f"best {100 * means[0]:.1f} %, median {100 * statistics.median(means):.1f} %, "
        f"worst {100 * means[-1]:.1f} %, plain {100 * goal.means['plain']:.1f} %"
    )
    names = list(goal.means)
    for epoch in (2, 6, 12):
        early, late = ([goal.table[name, 0][i - 1] for name in names] for i in (epoch, EPOCHS))
        print(f"rank correlation of epoch {epoch} with the last: {spearmanr(early, late).statistic:.2f}")
    needed: dict[str, list[int]] = {}
    with multiprocessing.get_context("spawn").Pool() as pool:
        for name in METHODS:
            needed[name] = pool.map(replay, [(name, seed) for seed in range(runs)], chunksize=1)
            print(name, statistics.median(needed[name]), sorted(needed[name]), flush=True)
    rows = []
    mine = statistics.median(needed["ours"])
    for peer, title in (("random", "random, no early stopping"), ("stock", "OptunaSearch + ASHAScheduler")):
        theirs = statistics.median(needed[peer])
        low, _, high = statistics.quantiles(needed[peer], n=4)
        rows.append(
            Row(
                case=f"epochs until one of the best {near} of {len(means)} placements is found, {runs} runs",
                peer=title,
                ours=mine,
                theirs=theirs,
                unit="epochs",
                spread=(low / mine, high / mine),
                ratio=theirs / mine,
            )
        )
        show(rows[-1])
    write("search", rows)


if __name__ == "__main__":
    main()
