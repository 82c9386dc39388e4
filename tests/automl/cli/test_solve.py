"""`automl solve`: the best placement of a search under limits, without training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automl.base.serialise import from_json, write_json
from automl.judge.verdict import FORMAT
from automl.search.solve import _read_outcomes
from automl.storage.metadata import SEARCH_FILE, read_metadata
from search.config import TrialConfig
from search.drawn import Drawn
from search.record import State
from search.space import SPACES, draw_randomly
from tests.helpers.automl_cases import Cli
from tests.helpers.report_cases import frozen, made_up, plan_of, save_search, save_verdict, verdict_of


def save(storage: Path, trials: Any, space: str = "digits", **options: Any) -> str:
    """Save a search whose space is that of this version. Return its storage."""
    file = save_search(storage, trials, space=space, **options) / SEARCH_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "fingerprint": Drawn(SPACES[space]).fingerprint}))
    return str(storage)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("searches"), made_up(60))


def test_the_best_placement_has_gain_and_probability(cli: Cli, storage: str) -> None:
    code, out, err = cli("solve", "made-up", "--storage", storage, "--json")
    assert code == 0, err
    answer = json.loads(out)
    best = answer["best"]
    assert best["low"] < best["gain"] < best["high"]
    assert 0 < best["better"] <= answer["matters"] < 1
    assert answer["baseline"] == "no attention"
    placement = answer["config"]["model"]["placement"]
    assert len(placement) == answer["params"]["modules"]
    assert all(site in best["placement"] for site in placement)
    assert f"better than no attention with {best['better']:.0%}" in err
    assert f"hyperparameters of trial {answer['trial']}" in err


def test_a_placement_that_was_confirmed_as_worse_is_not_the_answer(cli: Cli, tmp_path: Path) -> None:
    store = ("--storage", save(tmp_path, made_up(9)), "--json")
    first = json.loads(cli("solve", "made-up", *store)[1])
    folder, verdict = tmp_path / "made-up", verdict_of("worse")
    (lead, *_), (baseline, variant, *_) = verdict.comparisons, verdict.variants
    lead = replace(lead, difference=replace(lead.difference, mean=-2.0), p_holm=0.01)
    confirmed = replace(variant, config=from_json(TrialConfig, first["config"], "config"))
    verdict = replace(verdict, comparisons=[lead], variants=[baseline, confirmed])
    file = save_verdict(folder, verdict)
    code, out, err = cli("solve", "made-up", *store, "--max-params", "5M")
    answer = json.loads(out)
    assert (code, first["best"]["outcome"]) == (0, None)
    assert answer["best"]["placement"] != first["best"]["placement"]
    assert answer["best"]["gain"] <= first["best"]["gain"]
    likelier = answer["best"]["better"] >= 0.5
    assert answer["likeliest"] == (answer["best"]["placement"] if likelier else "no attention")
    assert likelier is ("likelier  no attention, which is as good or better with" not in err)
    for outcome in ("better", "undecided"):
        open_yet = replace(verdict, outcome=outcome, comparisons=[replace(lead, p_holm=0.4)])
        write_json(file, open_yet, format=FORMAT)
        ((_, shown, text),) = _read_outcomes(folder, read_metadata(folder, store[1]))
        assert (shown, text) == (outcome, verdict.sentence(lead))


def test_limits_are_met(cli: Cli, storage: str, tmp_path: Path) -> None:
    file = tmp_path / "solved.json"
    limits = ("--max-params", "740k", "--max-latency-ms", "3.6", "--max-memory", "1GB", "--out", str(file))
    code, out, err = cli("solve", "made-up", "--storage", storage, *limits, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert json.loads(file.read_text()) == answer
    costs = answer["best"]["costs"]
    assert costs["params"] <= 740_000
    assert costs["latency"] <= 3.6
    assert "predicted from its modules" in err
    assert f"automl confirm --search made-up --storage {storage} --solve {file}" in err


def test_layers_of_a_decoder_are_compared_with_its_uniform_baseline(cli: Cli, tmp_path: Path) -> None:
    plan = plan_of()
    trials = []
    for number, (trial, config) in enumerate(draw_randomly(SPACES["recall"], 48, seed=1)):
        kinds = [spec.type for spec in config.model.placement.values()]
        score = 0.9 if kinds == ["sliding"] else 0.4 + 0.01 * (number % 3)
        history = [{"epoch": 1, "resource": 1.0, "accuracy": score}]
        trials.append(frozen(trial.params, trial.distributions, config, plan, State.COMPLETE, history))
        trials[-1].user_attrs["role"] = "baseline" if trial.params["uniform"] else "candidate"
    storage = save(tmp_path, trials, space="recall")
    code, out, err = cli("solve", "made-up", "--storage", storage, "--full", "1", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["params"]["modules"] == 1
    assert answer["params"]["type1"] == "sliding"
    assert "(trial " in answer["baseline"]
    assert answer["best"]["better"] > 0.9
    code, _, err = cli("solve", "made-up", "--storage", storage, "--full", "2")
    assert (code, err.strip()) == (2, "error: --full must lie between 0 and 1; got 2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["made-up", "--max-params", "600k"],
            "no placement meets --max-params 600k: the cheapest, no attention",
        ),
        (["made-up", "--full", "1"], "--full is for hybrid decoders"),
    ],
)
def test_mistakes_are_one_message(cli: Cli, storage: str, arguments: list[str], message: str) -> None:
    code, _, err = cli("solve", *arguments, "--storage", storage)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("trials", [3, 5, 9])
def test_few_trials_that_had_some_types_only(cli: Cli, tmp_path: Path, trials: int) -> None:
    save(tmp_path, made_up(trials))
    code, out, err = cli("solve", "made-up", "--storage", str(tmp_path), "--max-params", "1M", "--json")
    assert code == 0, err
    placement = json.loads(out)["config"]["model"]["placement"]
    tried = {value for trial in made_up(trials) for name, value in trial.params.items() if "type" in name}
    assert {spec["type"] for spec in placement.values()} <= tried
