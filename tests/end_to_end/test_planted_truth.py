"""A confirmation as a person runs it, where the truth is known: nothing differs, or one thing does.

The truth is planted in every process by a sitecustomize.py: the rest is the real thing.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from search.study import open_study, read_history
from tests.helpers.killable import left, processes_of

AUTOML = Path(sys.executable).parent / "automl"
pytestmark = pytest.mark.heavy("a planted gain is found")

SPACE = """
from attention import Spec
from automl.tasks.image_classification import ImageData, ImageTraining
from search.config import Model, TrialConfig

SITES, TYPES = ["stage1.block2.branch", "stage2.block2.branch"], ["sagan", "ssa"]


def little(trial):
    placement = {}
    if trial.suggest_int("modules", 0, 1):
        site, kind = trial.suggest_categorical("site", SITES), trial.suggest_categorical("type", TYPES)
        placement = {site: Spec(kind)}
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-2, log=True)
    return TrialConfig(
        data=ImageData(source="digits", size=24, subset=0.2),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement),
        training=ImageTraining(epochs=1, batch_size=32, learning_rate=rate),
    )


little.free = [{"modules": 1, "site": site, "type": kind} for site in SITES for kind in TYPES]
"""

# Wraps the making of one module in whichever process imports it.
PLANT = """
import importlib.abc
import importlib.util
import sys


class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        make = spec.loader.exec_module

        def exec_module(module):
            make(module)
            plant(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Plant())
"""

# Every attention is the identity, whatever it learns.
IDENTITY = """
MODULE = "attention.gated"


def plant(gated):
    gated.Gated.forward = lambda self, x: x + 0 * self.gamma
"""

# SAGAN's attention at one site makes a model better by more than three standard deviations of the difference
# between two trainings with one seed, which is about 0.06 here.
GAIN = """
MODULE = "automl.tasks.image_classification.task"


def plant(classification):
    kind = classification.ImageClassification
    evaluate = kind.evaluate

    def better(self, model, split, evaluator=None):
        scores = evaluate(self, model, split, evaluator)
        spec = self.config.model.placement.get("stage1.block2.branch")
        if spec is not None and spec.type == "sagan":
            scores["accuracy"] = scores["accuracy"] + 0.25
        return scores

    kind.evaluate = better
"""


SEARCH = ["--space", "space.py:little", "--name", "s", "--trials", 5, "--equal", "epochs", "--concurrent", 1]


class Planted:
    """A folder with a space, a truth, a local MLflow, and the command."""

    def __init__(self, folder: Path, truth: str, store: Path) -> None:
        self.folder = folder
        shutil.copy(store, folder / "mlflow.db")
        (folder / "space.py").write_text(SPACE)
        (folder / "truth").mkdir()
        (folder / "truth" / "sitecustomize.py").write_text(truth + PLANT)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(folder / "truth"), os.environ.get("PYTHONPATH")])
            ),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(AUTOML), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object) -> dict:
        """The command's JSON."""
        out, err = (process := self.start(*arguments, "--json")).communicate(timeout=500)
        assert process.returncode == 0, out + err
        for noise in ("Traceback", "WARNING", "ray::"):
            assert noise not in out + err
        return json.loads(out)

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        folder = self.folder / "searches" / "s" / "confirm"
        if not (folder / "verdict.json").exists():
            return []  # the study may just be being made
        return open_study(folder, name="s-confirm").trials


@pytest.fixture(scope="module")
def gain(tmp_path_factory, empty_store):
    return Planted(tmp_path_factory.mktemp("gain"), GAIN, empty_store)


@pytest.fixture(scope="module")
def verdict(gain):
    """The verdict of a search that was killed, with which its Ray goes, and is resumed and confirmed."""
    confirm = ("--confirm", "--top", 1, "--seeds", 6)
    process = gain.start("search", *SEARCH, *confirm)
    while not any(gain.folder.glob("searches/s/trials/*/checkpoint.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    below = processes_of(process.pid)
    process.kill()
    process.communicate()
    assert left(below) == []
    return gain.run("search", "--resume", "s", *confirm)["confirmation"]


def test_killed_it_loses_no_trial_and_counts_none_twice(gain, verdict):
    trials = open_study(gain.folder / "searches" / "s", name="s").trials
    assert [trial.number for trial in trials] == list(range(5))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert [[record["epoch"] for record in read_history(trial.user_attrs)] for trial in trials] == [[1]] * 5
    store = sqlite3.connect(gain.folder / "mlflow.db")
    below = """select value from tags where key = 'automl.trial' and value <> '-1' and run_uuid in (
        select run_uuid from tags where key = 'mlflow.parentRunId' and value = (
            select run_uuid from tags where key = 'automl.search'))"""
    assert sorted(int(number) for (number,) in store.execute(below)) == list(range(5)), "a run a trial"


def test_a_planted_gain_is_found_with_its_type_and_place(verdict):
    assert verdict["verdict"] == "better"
    assert verdict["winner"].startswith("sagan @ stage1.block2.branch")
    assert verdict["interval"][0] < 25 < verdict["interval"][1]
    assert verdict["p"] == pytest.approx(2 / 2**6)
    assert verdict["seeds"] == 6
    check_roles(verdict, "baseline", "control", "finalist", "plain", "random")


def check_roles(verdict, *expected):
    """The plain backbone with the finalist's hyperparameters may be the baseline.

    Rounding, which differs between processors, decides which of two plain models is better.
    """
    roles = {"plain", *(variant["role"] for variant in verdict["variants"])}
    assert sorted(roles) == [*expected]


@pytest.mark.slow("the killed referee, whose runs are a confirmation, is always resumed")
def test_killed_half_way_it_repeats_nothing(tmp_path, empty_store):
    planted = Planted(tmp_path, GAIN, empty_store)
    planted.run("search", *SEARCH)
    options = ("--top", 1, "--seeds", 6)
    process = planted.start("confirm", *options)
    while process.poll() is None and sum(t.state.is_finished() for t in planted.trials()) < 9:
        time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {t.number: t for t in planted.trials() if t.state.is_finished()}
    verdict = planted.run("confirm", *options, "--ablate")
    check_roles(verdict, "ablation", "baseline", "control", "finalist", "plain", "random")
    (ablation,) = (c for c in verdict["comparisons"] if c["role"] == "ablation")
    assert ablation["lead"]["interval"][0] > 10, "without its module the gain is gone"
    after = planted.trials()
    assert len(before) >= 9
    assert all(after[number] == trial for number, trial in before.items())
    assert {trial.state for trial in after} == {TrialState.COMPLETE}
    once = [(t.user_attrs["variant"], t.user_attrs["config"]["seed"]) for t in after]
    assert len(set(once)) == len(once)
    assert planted.run("confirm")["variants"] == verdict["variants"]
    assert len(planted.trials()) == len(after), "a third time trains nothing"


def test_its_seeds_are_fresh_and_its_scores_are_of_the_test_split(gain, verdict):
    file = gain.folder / "searches" / "s" / "study.journal"
    search = open_study(file.parent, name="s").trials
    seeds = {int(seed) for variant in verdict["variants"] for seed in variant["scores"]}
    assert len(seeds) == 6
    assert not seeds & {trial.user_attrs["config"]["seed"] for trial in search}
    for trial in gain.trials():
        assert trial.value == read_history(trial.user_attrs)[-1]["test_accuracy"]
    assert not any("test_accuracy" in read_history(t.user_attrs)[-1] for t in search)


def test_mlflow_has_it_below_the_search(gain, verdict):
    store = sqlite3.connect(gain.folder / "mlflow.db")

    def tagged(key):
        return dict(store.execute("select run_uuid, value from tags where key = ?", (key,)).fetchall())

    ((search, _),) = tagged("automl.search").items()
    ((confirmation, name),) = tagged("automl.confirms").items()
    assert name == "s"
    parents = tagged("mlflow.parentRunId")
    assert parents[confirmation] == search
    runs = [run for run, parent in parents.items() if parent == confirmation]
    assert len(runs) == len(gain.trials())
    assert tagged("automl.verdict")[search] == verdict["headline"]
    winner = tagged("automl.confirmed_run")[search]
    assert winner in runs
    assert Path(tagged("automl.checkpoint")[winner], "checkpoint.pt").is_file()


@pytest.mark.slow("a whole search")
def test_where_nothing_differs_nothing_is_better(tmp_path, empty_store):
    planted = Planted(tmp_path, IDENTITY, empty_store)
    planted.run("search", *SEARCH)
    verdict = planted.run("confirm", "--top", 1, "--seeds", 6)
    assert verdict["verdict"] in ("equivalent", "undecided", "worse")
    assert verdict["winner"] is None
    assert "automl.confirmed_run" not in (tmp_path / "mlflow.db").read_bytes().decode("latin1")
