"""`automl solve`: the best placement of a search under limits, without training."""

import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from report_cases import frozen, made_up, plan_of, save_search

from attention import Spec, ssa
from automl.base.errors import InputError
from automl.cli.main import main
from automl.costs.exported import _draw, _option_params, read_latencies
from automl.storage.metadata import SEARCH_FILE
from automl.tasks.image_classification import ImageData
from automl.tasks.image_classification.space import list_digits_sites
from search.choices import TYPES
from search.config import Model, TrialConfig
from search.drawn import Drawn
from search.placement_effects import IndexedModule
from search.record import State
from search.space import draw_randomly
from search.spaces import SPACES

Cli = Callable[..., tuple[int, str, str]]


def save(storage: Path, trials: Any, space: str = "digits", **options: Any) -> str:
    """Save a search whose space is that of this version. Return its storage."""
    file = save_search(storage, trials, space=space, **options) / SEARCH_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "fingerprint": Drawn(SPACES[space]).fingerprint}))
    return str(storage)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("searches"), made_up(60))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Costs of modules in the backbone of the search, timed twice."""
    file = tmp_path_factory.mktemp("costs") / "costs.json"
    model = ("xresnet18", "--size", "32", "--option", "width=0.25")
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        for bound in ("LEAST_PASSES", "MOST_PASSES"):
            patch.setattr(f"automl.costs.exported.{bound}", 2)
        types = ("--attention", "ssa,conv1x1")
        main(["cost", *model, "--export-costs", str(file), "--batch", "2", *types])
    return file


def test_the_best_placement_has_gain_and_probability(cli: Cli, storage: str) -> None:
    code, out, err = cli("solve", "made-up", "--storage", storage, "--json")
    assert code == 0, err
    answer = json.loads(out)
    best = answer["best"]
    assert best["low"] < best["gain"] < best["high"]
    assert 0 < best["better"] <= answer["matters"] < 1
    assert answer["baseline"] == "no attention"
    assert answer["fronts"] == {}
    placement = answer["config"]["model"]["placement"]
    assert len(placement) == answer["params"]["modules"]
    assert all(site in best["placement"] for site in placement)
    assert f"better than no attention with {best['better']:.0%}" in err
    assert f"hyperparameters of trial {answer['trial']}" in err


def test_limits_are_met_and_swept(cli: Cli, storage: str, tmp_path: Path) -> None:
    file = tmp_path / "solved.json"
    limits = ("--max-params", "740k", "--max-latency-ms", "3.6", "--max-memory", "1GB", "--out", str(file))
    code, out, err = cli("solve", "made-up", "--storage", storage, *limits, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert json.loads(file.read_text()) == answer
    costs = answer["best"]["costs"]
    assert costs["params"] <= 740_000
    assert costs["latency"] <= 3.6
    for name, front in answer["fronts"].items():
        for cheaper, point in itertools.pairwise(front):
            assert cheaper["costs"][name] < point["costs"][name]
            assert cheaper["gain"] <= point["gain"] + 1e-6
            others = {"params": 740_000, "latency": 3.6} | {name: float("inf")}
            assert all(point["costs"][other] <= limit for other, limit in others.items())
    assert "predicted from its modules" in err
    assert f"automl confirm --search made-up --storage {storage} --solve {file}" in err


def test_layers_of_a_decoder_are_compared_with_its_uniform_baseline(cli: Cli, tmp_path: Path) -> None:
    plan = plan_of()
    trials = []
    for number, (trial, config) in enumerate(draw_randomly(SPACES["recall"], 48, seed=1)):
        assert config is not None
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
        (["nothing"], "no search called 'nothing'"),
        (
            ["made-up", "--max-params", "600k"],
            "no placement meets --max-params 600k: the cheapest, no attention",
        ),
        (["made-up", "--max-latency-ms", "-1"], "--max-latency-ms must be above 0"),
        (["made-up", "--full", "1"], "--full is for hybrid decoders"),
        (["made-up", "--costs", "x.json"], "add the limit, or leave --costs out"),
        (["made-up", "--max-latency-ms", "9", "--costs", "x.json"], "x.json cannot be read"),
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


def test_searches_without_an_answer(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path, made_up(6, running=6), name="open")
    save(tmp_path, made_up(2), name="plain")  # both without attention
    plan = plan_of(objectives=["accuracy", "latency"])
    save(tmp_path, made_up(10, plan=plan), name="two", plan=plan)
    for name, message in (
        ("open", "no trial of 'open' with a placement has completed"),
        ("plain", "no trial of 'plain' with a placement has completed"),
        ("two", "needs a search with one objective; 'two' has accuracy, latency"),
    ):
        code, _, err = cli("solve", name, "--storage", str(tmp_path))
        assert code == 2
        assert message in err


def test_latencies_of_another_machine_replace_those_of_the_search(
    cli: Cli, storage: str, exported: Path, tmp_path: Path
) -> None:
    content = json.loads(exported.read_text())
    # The measured latency of a module may be zero or less on a busy machine.
    costs = {**content["modules"][0]["costs"], "latency": content["plain"]["latency"]}
    sites = list_digits_sites()
    for site, params in product(sites, chain(*(_option_params(kind, sites) for kind in TYPES))):
        spec = _draw(params, site.channels)
        content["modules"].append(
            {"site": site.name, "type": spec.type, "options": dict(spec.options), "costs": costs}
        )
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(content))
    limit = content["plain"]["latency"] + 1e-9  # a placement without modules alone has it
    options = ("solve", "made-up", "--storage", storage, "--costs", str(file), "--max-latency-ms")
    code, out, err = cli(*options, str(limit), "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["params"] == {"modules": 0}
    assert answer["best"]["costs"]["latency"] == content["plain"]["latency"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "{", "is corrupt or in an unsupported format"),
        (
            lambda content: {**content, "backbone": "vit"},
            "has another backbone, vit; the search has xresnet18",
        ),
        (lambda content: {**content, "shapes": [[3, 64, 64]]}, "has another size of an input, [64]"),
        (lambda content: {**content, "shapes": []}, "shapes must"),
        (lambda content: {**content, "modules": content["modules"][1:]}, "lacks ssa(ks=1) at site stem"),
        (
            lambda content: {**content, "plain": {**content["plain"], "latency": -1.0}},
            "latency must be 0 or more; got -1.0",
        ),
        (lambda content: {**content, "format": 1}, "its format is not 2"),
    ],
)
def test_a_damaged_file_of_costs_is_one_message(
    exported: Path, tmp_path: Path, change: Any, message: str
) -> None:
    file, content = tmp_path / "costs.json", change(json.loads(exported.read_text()))
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    plain = TrialConfig(
        data=ImageData(source="digits", size=32), model=Model(backbone="xresnet18", options={"width": 0.25})
    )
    placed = plain.change(model={"placement": {"stem": Spec("ssa", {"ks": 1})}})
    with pytest.raises(InputError, match=re.escape(message)):
        read_latencies(file, plain, {IndexedModule(0, "ssa", (("ks", 1),)): placed})


def test_costs_are_exported_for_each_option(exported: Path) -> None:
    content = json.loads(exported.read_text())
    modules = [module for module in content["modules"] if module["site"] == "stem"]
    assert [module["type"] for module in modules] == ["ssa", "ssa", "conv1x1"]
    wide = next(module for module in modules if module["options"] == {"ks": 3})
    assert wide["costs"]["params"] == ssa.cost(64, (16, 16), ks=3).parameters
    assert content["plain"]["latency"] > 0
