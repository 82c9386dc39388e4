"""Confirmations from the search's study to the verdict, without training."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import automl.judge.trainings
import automl.search.driver
import automl.tracking.writer
import automl.trials.session
from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.base.terminal import wrap
from automl.judge import variants
from automl.judge.protocol import confirmations
from automl.judge.run_confirm import run_confirm
from automl.judge.scheduler import read_verdicts
from automl.report.per_class import per_class
from automl.report.read import read_search
from automl.search.driver import run_sync
from automl.search.status import read_status
from automl.storage.metadata import read_metadata
from automl.task import open_task
from automl.tracking.run_spec import RunSpec, below
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from automl.trials.session import Stopped
from search.choices import PUBLISHED
from search.study import open_study
from tests.helpers.automl_cases import HERE
from tests.helpers.confirm_cases import RECORDS, FakeWorkers, fake_search

BASELINE, LEAD = "baseline (trial 0)", "ssa @ stage1.block2.branch (trial 1)"
CANDIDATE = "baseline: plain as trial 1"


def noise(variant: str, seed: int) -> float:
    return 0.01 * float(np.random.default_rng([len(variant), seed]).normal())


def noise_alone(variant: str, seed: int) -> float:
    return 0.9 + noise(variant, seed)


def gain(variant: str, seed: int) -> float:
    """Return a score that is two points higher for the leading finalist."""
    return 0.9 + noise(variant, seed) / 4 + (0.02 if variant == LEAD else 0)


GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"


@pytest.fixture
def search(untracked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a search whose confirmation does not use MLflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variants, "DRAWS", 60)  # which takes half a second less
    return fake_search(tmp_path / "searches")


@pytest.fixture
def at_work(monkeypatch):
    """Replace Ray's workers."""

    def put(workers: FakeWorkers) -> FakeWorkers:
        monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
        return workers

    return put


def test_all_variants_get_the_same_fresh_seeds(search, at_work):
    workers = at_work(FakeWorkers(gain))
    result = run_confirm("mine", top=2, seeds=8, sequential=False)
    assert workers.trained[:6] == [(variant, seed) for seed in (1, 2, 3) for variant in (BASELINE, CANDIDATE)]
    names = [variant["name"] for variant in result.value["variants"]]
    assert names[:3] == [BASELINE, LEAD, "sagan @ stage2.block1 (trial 2)"]
    assert names[-1] == CANDIDATE, "the plain backbone with the finalist's hyperparameters"
    assert sorted(workers.trained) == sorted((name, seed) for name in names for seed in range(1, 9))
    assert (result.verdict.final, result.value["winner"]) == ("better", LEAD)
    assert json.loads((search / "confirm" / "verdict.json").read_text()) == {"format": 2, **result.value}
    status = read_status("mine")
    assert (status.verdict, status.verdict_lines) == (result.verdict.headline, result.verdict.lines)


@pytest.mark.slow("a comparison")
def test_answer_of_solve_is_the_finalist(search, at_work, tmp_path):
    workers = at_work(FakeWorkers(noise_alone))
    content = {
        "search": "mine",
        "identity": json.loads((search / "search.json").read_text())["identity"],
        "trial": 1,
        "params": {**PUBLISHED, "modules": 1, "site1": 0, "type1": "multihead", "heads1": 2},
        "best": {"gain": 0.01},
    }
    file = tmp_path / "solved.json"
    file.write_text(json.dumps(content))
    result = run_confirm("mine", solve=str(file), seeds=6)
    (finalist,) = [v["name"] for v in result.value["variants"] if v["role"] == "finalist"]
    assert re.fullmatch(r"multihead @ .* \(solved\)", finalist)
    assert (finalist, 1) in workers.trained
    config = next(v["config"] for v in result.value["variants"] if v["name"] == finalist)
    assert config["training"]["learning_rate"] == 2e-3, "of trial 1, whatever the parameters say"
    run_confirm("mine", solve=str(file))  # resumes
    file.write_text(json.dumps({**content, "identity": "other", "search": "b"}))
    with pytest.raises(InputError, match="of another search, 'b'"):
        run_confirm("mine", solve=str(file))


def takes_longer(variant: str, seed: int) -> float:
    return 60.0 * (1.09 if variant == LEAD else 1.0) + noise(variant, seed)


@pytest.mark.parametrize("gain_of_time", [0.0, 0.02])
def test_the_opponents_of_a_longer_training_get_the_time(search, at_work, cli, gain_of_time):
    """Stopped while they train, the confirmation resumes without training any of them twice."""

    def score(variant: str, seed: int) -> float:
        return gain(variant, seed) + (gain_of_time if variant.endswith("1.1 times as long") else 0)

    first = at_work(FakeWorkers(score, seconds=takes_longer, most=3 + 2 * 7 + 4))
    code, _, err = cli("confirm", "--top", "1", "--seeds", "7")
    assert code == 128 + 15
    longer = [f"{name}, 1.1 times as long" for name in (BASELINE, CANDIDATE)]
    (line,) = [line for line in err.splitlines() if line.startswith("longer ")]
    assert line.endswith(f"so its opponents get it too: {', '.join(longer)}")
    assert re.match(r"longer    1[24] trainings, about 1[3-6]m\d\ds of training: ", line)
    begun = json.loads((search / "confirm" / "verdict.json").read_text())
    assert begun["headline"] == "No verdict yet: 2 opponents of a finalist still to train"
    later = at_work(FakeWorkers(score, seconds=takes_longer))
    code, out, err = cli("confirm", "--json")
    assert code == 0
    assert "longer  " not in err, "it was announced"
    value = json.loads(out)
    trained = first.trained + later.trained
    assert len(set(trained)) == len(trained)
    of_longer = [(name, seed) for name in longer for seed in range(1, value["seeds"] + 1)]
    assert sorted(pair for pair in trained if pair[0] in longer) == sorted(of_longer)
    configs = {variant["name"]: variant["config"].get("longer") for variant in value["variants"]}
    assert [configs[name] for name in (BASELINE, LEAD, *longer)] == [None, None, 1.1, 1.1]
    assert value["verdict"] == ("undecided" if gain_of_time else "better")
    first_line = f"{value['headline']}. {value['advice']}" if value["advice"] else value["headline"]
    lines = [*wrap("verdict", first_line), *wrap("", value["figures"]), *wrap("", value["cost"])]
    shown = err[err.index("confirmed ") :].splitlines()
    assert shown[: 1 + len(lines)] == [f"confirmed mine: {value['verdict']}", *lines]
    status = cli("status")[1].splitlines()
    assert status[status.index(lines[0]) :][: len(lines)] == lines
    lead = value["variants"][1]
    assert lead["costs"]["3"] == {"steps": 20, "seconds": takes_longer(LEAD, 3), "processor_seconds": None}


def test_search_of_equal_epochs_ignores_time(search, at_work):
    metadata = json.loads((search / "search.json").read_text())
    metadata["settings"]["equal"] = "epochs"
    (search / "search.json").write_text(json.dumps(metadata))
    at_work(FakeWorkers(gain, seconds=lambda variant, seed: 2.0 if variant == LEAD else 1.0))
    result = run_confirm("mine", top=1, seeds=8)
    assert result.verdict.final == "better"
    assert result.verdict.cost == "Equal epochs, time 2.00 (2.00 to 2.00) of the baseline's."


def test_answers_are_kept_and_widen_the_interval(search, at_work):
    plan = run_plan(search)
    at_work(FakeWorkers(gain, images=plan["inputs"]))
    result = run_confirm("mine", top=1, seeds=8, sequential=False)
    low, high = result.value["interval_inputs"]
    assert low < result.value["interval"][0] < result.value["interval"][1] < high
    assert len(list(result.folder.glob("trials/*/answers.npz"))) == 8 * 5
    assert len(list(result.folder.glob("trials/*/checkpoint.pt"))) == 2
    assert plan.items() <= json.loads((search / "confirm" / "confirm.json").read_text()).items()
    file = result.folder / "verdict.json"
    file.write_text(json.dumps({"verdict": "better", "headline": "of an earlier version"}))
    ((_, again),) = read_verdicts(search, read_metadata(search, "searches"))
    assert (again.to_json(), json.loads(file.read_text())["format"]) == (result.value, 2)
    assert run_confirm("mine").value == result.value, "they are read again"
    (section,) = per_class(read_search("mine", "searches"))
    assert f"Of the leading finalist, {LEAD} and the tuned baseline, baseline (trial " in section.lead
    table = section.plots[0].table
    assert [row[:2] for row in table.rows] == [["cat", 8 * plan["inputs"]]], "all seeds together"


def run_plan(search: Path) -> dict[str, Any]:
    """Return the fields of the plan that describe the test split."""
    task = open_task(RECORDS[0].config, HERE)
    return {"inputs": task.size("test"), "chance": to_json(task.chance("test"))}


@pytest.mark.parametrize(
    ("valid", "chosen"),
    [
        ({1: 0.6, 2: 0.6, 3: 0.4}, CANDIDATE),
        ({1: 0.9, 2: 0.2, 3: 0.3}, BASELINE),  # lucky with one seed
        ({4: 0.9, 5: 0.9, 6: 0.9}, BASELINE),  # the choice was made before
    ],
)
def test_the_tuned_baseline_is_the_candidate_that_validates_best_over_seeds(search, at_work, valid, chosen):
    """Here all variants are alike in the test split, which has no part in it."""
    at_work(
        FakeWorkers(noise_alone, lambda variant, seed: valid.get(seed, 0.5) if variant == CANDIDATE else 0.5)
    )
    result = run_confirm("mine", top=2, seeds=8, sequential=False)
    assert result.value["variants"][0]["name"] == chosen
    assert len(result.value["variants"][0]["scores"]) == 8


def test_failed_candidate_does_not_become_the_baseline(search, at_work):
    def score(variant: str, seed: int) -> float | None:
        return None if (variant, seed) == (CANDIDATE, 2) else noise_alone(variant, seed)

    at_work(FakeWorkers(score, lambda variant, seed: 0.9 if variant == CANDIDATE else 0.5))
    result = run_confirm("mine", top=1, seeds=8, sequential=False)
    assert result.value["variants"][0]["name"] == BASELINE
    assert f"{CANDIDATE} could not be trained" in " ".join(result.value["warnings"])


@pytest.mark.parametrize("sequential", [False, True])
def test_better_than_a_badly_chosen_baseline_is_not_better(search, at_work, sequential):
    """The plain backbone is as good as the finalist with the finalist's hyperparameters."""

    def score(variant: str, seed: int) -> float:
        return 0.9 + noise(variant, seed) / 4 + (0.05 if variant in (LEAD, CANDIDATE) else 0)

    workers = at_work(FakeWorkers(score, lambda variant, seed: 0.6 if variant == BASELINE else 0.5))
    result = run_confirm("mine", top=1, seeds=8, sequential=sequential)
    assert (result.verdict.final, result.value["winner"]) == ("undecided", None)
    assert "but the baseline with its hyperparameters " in result.verdict.headline
    (own,) = result.verdict.lead.opponents
    assert own.difference.low < 0 < own.difference.high
    assert sorted(seed for variant, seed in workers.trained if variant == CANDIDATE) == list(range(1, 9))


def test_plain_backbone_of_a_losing_finalist_is_not_trained_further(search, at_work):
    workers = at_work(FakeWorkers(noise_alone))
    run_confirm("mine", top=1, seeds=8, sequential=False)
    assert [seed for variant, seed in workers.trained if variant == CANDIDATE] == [1, 2, 3]


@pytest.mark.parametrize(("sequential", "first"), [(False, 8), (True, 6)])
def test_finalists_do_not_wait_for_the_baseline(search, at_work, sequential, first):
    """With interim analyses up to the first of them: later seeds may not be needed."""
    workers = at_work(
        FakeWorkers(gain, lambda variant, seed: 0.9 if variant == CANDIDATE else 0, shuffled=True)
    )
    result = run_confirm("mine", top=1, seeds=8, sequential=sequential)
    beside, after = workers.trained[: 6 + first], workers.trained[6 + first :]
    assert beside[:6] == [(variant, seed) for seed in (1, 2, 3) for variant in (BASELINE, CANDIDATE)]
    assert {variant for variant, _ in beside[6:]} & {BASELINE, CANDIDATE} == set()
    assert after[: first - 3] == [(CANDIDATE, seed) for seed in range(4, first + 1)]
    assert result.value["variants"][0]["name"] == CANDIDATE


def test_resume_before_the_baseline_is_chosen(search, at_work):
    at_work(FakeWorkers(gain, shuffled=True, most=8))
    with pytest.raises(Stopped):
        run_confirm("mine", top=1, seeds=8, sequential=False)
    later = at_work(FakeWorkers(gain, valid=lambda variant, seed: 0.9 if variant == CANDIDATE else 0))
    result = run_confirm("mine")
    assert result.value["variants"][0]["name"] == CANDIDATE
    assert len(set(later.trained)) == len(later.trained) == 3 + 4 * 8, "all of those that ran, too"


def test_resume_continues_where_it_stopped(search, at_work):
    workers = at_work(FakeWorkers(gain, most=21))
    with pytest.raises(Stopped) as stopped:
        run_confirm("mine", top=2, seeds=8, sequential=False)
    assert stopped.value.code == 128 + 15
    unfinished = json.loads((search / "confirm" / "verdict.json").read_text())
    assert (unfinished["complete"], unfinished["verdict"], unfinished["winner"]) == (False, None, None)
    assert unfinished["headline"] == "No verdict yet: 6 of 8 seeds are complete"
    later = at_work(FakeWorkers(gain))
    result = run_confirm("mine")
    assert result.verdict.final == "better"
    assert not set(workers.trained) & set(later.trained)
    assert len(workers.trained) + len(later.trained) == 6 * 8
    idle = at_work(FakeWorkers(gain))
    assert run_confirm("mine").value == result.value
    assert idle.trained == []


def test_controls_are_trained_where_there_is_a_gain_to_explain(search, at_work):
    workers = at_work(FakeWorkers(noise_alone))
    result = run_confirm("mine", top=1, seeds=8, sequential=False)
    assert len(workers.trained) == 3 + 2 * 8
    later = at_work(FakeWorkers(gain))
    result = run_confirm("mine", controls=True)
    of_controls = [seed for variant, seed in later.trained if variant not in (BASELINE, LEAD, CANDIDATE)]
    assert of_controls == [seed for seed in range(1, 9) for _ in range(2)]
    assert {"control", "random"} <= {str(comparison["role"]) for comparison in result.value["comparisons"]}
    assert run_confirm("mine").value == result.value
    words = re.findall(r"^\| ([a-z][a-z- ]+) \| (?!meaning)", GLOSSARY.read_text(), re.MULTILINE)
    needed = [word for word in words if re.search(rf"\b{word}s?\b", " ".join(result.verdict.lines))]
    assert len(needed) <= 8, f"to read a verdict, with {needed}"


def test_controls_that_are_asked_for_train_with_the_rest(search, at_work):
    """Stopped while the baseline is still chosen, they are completed without being asked for again."""
    workers = at_work(FakeWorkers(gain, most=9, shuffled=True))
    with pytest.raises(Stopped):
        run_confirm("mine", top=1, seeds=8, sequential=False, controls=True)
    assert [seed for _, seed in workers.trained] == [1, 1, 2, 2, 3, 3, 1, 1, 1]
    later = at_work(FakeWorkers(noise_alone))
    run_confirm("mine")
    assert len(set(later.trained)) == len(later.trained) == 3 + 4 * 8, "all of those that ran, too"


def test_a_gain_is_not_explained_before_its_controls(search, at_work):
    at_work(FakeWorkers(gain, most=3 * 8 + 3))
    with pytest.raises(Stopped):
        run_confirm("mine", top=1, seeds=8, sequential=False)
    open_yet = json.loads((search / "confirm" / "verdict.json").read_text())
    assert open_yet["verdict"] == "better"
    assert "Train control: conv1x1" in " ".join(open_yet["remarks"])
    assert "not shown to come from" not in " ".join(open_yet["remarks"]), "of two seeds"
    assert read_status("mine").outcome == "unfinished"
    assert "confirm --search mine" in read_status("mine").resume
    at_work(FakeWorkers(gain))
    assert "the cause of the gain" not in " ".join(run_confirm("mine").value["remarks"])
    assert read_status("mine").outcome == "better"


def test_sequential_confirmation_stops_once_the_outcome_is_final(search, at_work):
    workers = at_work(FakeWorkers(gain))
    result = run_confirm("mine", top=1, seeds=30)
    assert result.verdict.final == "better"
    assert len(result.verdict.used) < 15
    assert {seed for _, seed in workers.trained} == set(result.verdict.used)


def test_the_winner_without_its_module(search, at_work):
    workers = at_work(FakeWorkers(gain))
    run_confirm("mine", top=2, seeds=7)
    later = at_work(FakeWorkers(gain))
    result = run_confirm("mine", ablate=True)
    assert {variant for variant, _ in later.trained} == {"without ssa @ stage1.block2.branch"}
    assert len(later.trained) == 7
    assert len(workers.trained) == 6 * 7
    assert result.value["comparisons"][-1]["role"] == "ablation"
    assert run_confirm("mine").value == result.value


def test_another_confirmation_has_other_seeds_and_folders(search, at_work):
    at_work(FakeWorkers(gain))
    run_confirm("mine", top=1, seeds=6)
    workers = at_work(FakeWorkers(gain))
    result = run_confirm("mine", top=2, seeds=7, again=True)
    assert {seed for _, seed in workers.trained} == set(range(7, 14))
    assert (result.number, result.folder.name) == (2, "confirm-2")
    assert [folder.name for folder in confirmations(search)] == ["confirm", "confirm-2"]
    (search / "confirm").rename(search / "confirm-old")
    assert [folder.name for folder in confirmations(search)] == ["confirm-2"]
    assert run_confirm("mine", top=1, seeds=6, again=True).folder.name == "confirm-3"


@pytest.mark.parametrize("over", [False, True])
def test_the_best_of_each_variant_keeps_its_checkpoint_until_it_is_over(search, at_work, over):
    """Afterwards only those of the leading finalist and the baseline are kept, for export."""
    most = 10**9 if over else 5 * 8 - 1
    at_work(FakeWorkers(gain, valid=lambda variant, seed: seed / 100 if seed != 8 else 0, most=most))
    try:
        variants = {LEAD, run_confirm("mine", top=1, seeds=8, sequential=False).value["variants"][0]["name"]}
    except Stopped:
        verdict = json.loads((search / "confirm/verdict.json").read_text())
        variants = {variant["name"] for variant in verdict["variants"]}
        assert len(variants) == 5
    assert with_checkpoint(search) == {(variant, 7) for variant in variants}


def with_checkpoint(search: Path) -> set[tuple[str, int]]:
    """The variants and seeds of a confirmation whose checkpoints are there."""
    folder = search / "confirm"
    return {
        (trial.user_attrs["variant"], trial.user_attrs["config"]["seed"])
        for trial in open_study(folder, name="mine-confirm").get_trials(deepcopy=False)
        if (folder / "trials" / f"{trial.number:04d}" / "checkpoint.pt").exists()
    }


def test_winner_is_logged_to_mlflow_and_synced_to_another(search, at_work, store, monkeypatch):
    here = automl.judge.trainings
    monkeypatch.setattr(here, "MlflowProcess", lambda spec: nullcontext(MlflowWriter(spec)))
    monkeypatch.setattr(here, "Tracker", Tracker)
    at_work(FakeWorkers(gain, valid=lambda variant, seed: seed / 100))
    identity = read_metadata(search, "searches").identity
    parent = store.create_run(store.create_experiment("digits"), tags={"automl.identity": identity})
    result = run_confirm("mine", top=1, seeds=6)
    tags = store.get_run(parent.info.run_id).data.tags
    assert tags["automl.verdict"] == result.verdict.headline
    assert tags["automl.figures"] == f"{result.verdict.figures} {result.verdict.cost}"
    winner = store.get_run(tags["automl.confirmed_run"])
    assert winner.info.run_name.endswith(f"{LEAD} seed 6")
    assert winner.data.metrics["test_accuracy"] == result.value["variants"][1]["scores"]["6"]
    # The confirmation's own run has the verdict in numbers, and no luckiest seed.
    own = store.get_run(winner.data.tags["mlflow.parentRunId"]).data
    assert (own.tags["verdict"], own.tags["automl.verdict"]) == ("better", result.verdict.headline)
    low, high = result.value["interval"]
    assert own.metrics == {
        "complete": 6 * 5, "pruned": 0, "infeasible": 0, "error": 0, "seeds_used": 6,
        "difference": result.value["difference"], "interval_low": low, "interval_high": high,
        "p": result.value["p"], "time_ratio": 1, "time_ratio_low": 1, "time_ratio_high": 1,
    }  # fmt: skip

    MlflowWriter(RunSpec(experiment="digits", checkpoint=below)).conclude(identity, result.value, None)
    assert "automl.confirmed_run" not in store.get_run(parent.info.run_id).data.tags

    # `automl sync` brings it to another, empty MLflow.
    monkeypatch.setattr(automl.tracking.writer, "MlflowWriter", Recorder)
    assert run_sync("mine") == 4 + 6 * 5
    (of_search, of_confirmation) = Recorder.all
    assert (len(of_search.written), len(of_confirmation.written)) == (4, 6 * 5)
    assert of_confirmation.verdict["headline"] == result.verdict.headline
    assert of_confirmation.written[of_confirmation.winner].variant == LEAD


class Recorder:
    """Stands for MLflow's writer, and keeps what it is given. A run is the number of its trial."""

    all: ClassVar[list["Recorder"]] = []

    def __init__(self, spec: object) -> None:
        self.written, self.verdict, self.winner = {}, {}, ""
        self.all.append(self)

    def write(self, trial):
        self.written[trial.number] = trial
        return trial.number

    def runs(self):
        return {}

    def finish(self, *arguments):
        pass

    def conclude(self, identity, verdict, winner):
        self.verdict, self.winner = verdict, winner


def test_no_winner_is_logged_without_one(search, at_work, monkeypatch):
    writer = Recorder(None)
    monkeypatch.setattr(automl.judge.trainings, "MlflowProcess", lambda spec: nullcontext(writer))
    monkeypatch.setattr(automl.judge.trainings, "Tracker", Tracker)
    at_work(FakeWorkers(noise_alone))
    result = run_confirm("mine", top=1, seeds=6)
    assert result.verdict.winner is None
    assert (writer.verdict, writer.winner) == (result.value, None)


def test_errors_are_retried(search, at_work):
    workers = at_work(FakeWorkers(gain, broken={(LEAD, 3), (CANDIDATE, 2)}))
    result = run_confirm("mine", top=1, seeds=8, sequential=False)
    assert result.verdict.complete
    assert 3 not in result.verdict.used
    assert f"{CANDIDATE} could not be trained: boom" in result.value["warnings"]
    later = at_work(FakeWorkers(gain, valid=lambda variant, seed: 0.99))
    result = run_confirm("mine")
    assert (LEAD, 3) in later.trained
    assert result.value["variants"][0]["name"] == BASELINE, "it was compared: it stays"
    assert len(later.trained) <= len(workers.trained) / 4
    assert list(result.verdict.used) == list(range(1, 9))
    assert run_confirm("mine").value == result.value


def test_killed_while_the_study_was_made(search, at_work):
    at_work(FakeWorkers(gain))
    folder = search / "confirm"
    folder.mkdir()
    run_confirm("mine", top=1, seeds=6)
    folder.rename(search / "kept-apart")
    (search / "confirm").mkdir()
    (search / "confirm" / "confirm.json").write_text((search / "kept-apart" / "confirm.json").read_text())
    (search / "confirm" / "study.journal").touch()
    assert run_confirm("mine").verdict.final == "better"
