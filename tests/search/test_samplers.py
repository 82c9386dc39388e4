"""Every sampler draws from a small space, or reports why it cannot."""

import sys
import warnings
from pathlib import Path

import optuna
import pytest

from automl.base.errors import InputError
from search import choices
from search.config import TrialConfig
from search.drawn import Drawn
from search.record import State
from search.samplers import SAMPLERS, check_sampler, choose_sampler, load_sampler
from search.space import SPACES, Space, load_space
from tests.helpers.search_cases import SMALL, make_engine, make_plan, make_study, report


def numbers(trial: optuna.Trial) -> TrialConfig:
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    decay = trial.suggest_float("weight_decay", 0, 0.1)
    trial.suggest_categorical("kind", ["a", "b"])
    if trial.suggest_int("more", 0, 3) > 1:
        trial.suggest_float("sometimes", 0, 1)
    return TrialConfig().change(training={"learning_rate": rate, "weight_decay": decay})


def draw_placement(trial: optuna.Trial) -> TrialConfig:
    sites = choices.ascending(trial, 4, most=2)
    placement = {
        f"stage{site + 1}.block1": choices.attention(trial, i, 16) for i, site in enumerate(sites, start=1)
    }
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    return TrialConfig().change(model={"placement": placement}, training={"learning_rate": rate})


PLACEMENTS = Space(name="places", draw=draw_placement, baseline={"modules": 0}, summary="")
NUMBERS = Space(name="numbers", draw=numbers, baseline={}, plain={}, summary="")
CASES = [*((name, PLACEMENTS if name == "placement" else SMALL) for name in SAMPLERS), ("gp", NUMBERS)]


@pytest.mark.parametrize(("name", "space"), CASES, ids=lambda value: getattr(value, "name", value))
def test_fifteen_trials_of_every_kind(name: str, space: Space, tmp_path: Path) -> None:
    check_sampler(name, Drawn(space))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = load_sampler(name, seed=0)
    scheduler = make_engine(make_study(tmp_path), space, make_plan(15, baseline_share=0.0), sampler)
    models = set()
    for i in range(15):
        record = scheduler.ask()
        if record is None:
            break
        models.add(str(record.config.change(seed=0)))
        score = 0.25 * len(record.config.model.placement) + record.config.training.learning_rate
        scheduler.end(record.number, report(score, finished=i % 4 != 1), error="no" if i % 7 == 6 else None)
    states = {record.state for record in scheduler.records.values()}
    assert states == {State.COMPLETE, State.PRUNED, State.ERROR}
    if name == "grid":
        assert len(scheduler.records) == len(models) == 9
    else:
        assert len(scheduler.records) == 15
        assert len(models) > 3


def test_samplers_depend_on_the_seed() -> None:
    for name in SAMPLERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            drawn = []
            for seed in (0, 0, 1):
                study = optuna.create_study(sampler=load_sampler(name, seed=seed))
                drawn.append(
                    [study.ask({"x": optuna.distributions.IntDistribution(0, 9)}).params for _ in range(9)]
                )
        assert drawn[0] == drawn[1] != drawn[2], name


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("grid", SPACES["digits"], r"grid needs finitely many choices; .*adamw\.learning_rate"),
        ("placement", NUMBERS, "placement needs a space that draws placements .* 'numbers' draws none"),
    ],
)  # fmt: skip
def test_a_sampler_that_cannot_draw_from_the_space_is_rejected(name: str, space: Space, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_sampler(name, Drawn(space))


OWN = """
import optuna

class Seeded(optuna.samplers.RandomSampler):
    def __init__(self, seed):
        super().__init__(seed)
        self.given = seed

class Seedless(optuna.samplers.RandomSampler):
    given = None
    def __init__(self):
        super().__init__()

class Broken(optuna.samplers.RandomSampler):
    def __init__(self, **options):
        raise KeyError("no such thing")

not_one = dict
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a module in the current folder, from which `automl` imports user-defined samplers."""
    (tmp_path / "own_samplers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "own_samplers", raising=False)
    return "own_samplers"


@pytest.mark.parametrize(("name", "seed"), [("Seeded", 7), ("Seedless", None)])
def test_a_user_defined_sampler(name: str, seed: int | None, own: str) -> None:
    sampler = load_sampler(f"{own}:{name}", seed=7)
    assert type(sampler).__name__ == name
    assert sampler.given == seed  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpee", r"unknown sampler 'tpee'.*Did you mean 'tpe'\?.*package.module:Sampler"),
        ("gone:Sampler", "--sampler gone:Sampler failed to load: ModuleNotFoundError"),
        ("own_samplers:Gone", "failed to load: AttributeError"),
        ("own_samplers:Broken", "failed to load: KeyError: 'no such thing'"),
        ("own_samplers:not_one", "must be an optuna sampler; got dict"),
    ],
)
@pytest.mark.usefixtures("own")
def test_an_unknown_sampler_is_rejected(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_sampler(name, seed=0)


@pytest.mark.parametrize(
    ("space", "chosen"), [("digits", "placement"), ("ucihar", "tpe"), ("da-heads", "tpe")]
)
def test_the_sampler_of_placements_is_chosen_for_placements(space: str, chosen: str) -> None:
    assert choose_sampler("auto", Drawn(load_space(space))) == chosen
    assert choose_sampler("gp", Drawn(load_space(space))) == "gp"
