"""The picture of the network: the modules of the winner or the best trial at their sites."""

from dataclasses import replace
from pathlib import Path

import pytest

from automl.report.network import network
from automl.report.read import SearchData, read_search
from automl.tasks.language_modelling import LanguageData, LanguageModel
from search.config import TrialConfig
from search.record import State, TrialRecord
from tests.helpers.report_cases import made_up, save_search, save_verdict, verdict_of


@pytest.fixture
def search(tmp_path: Path) -> SearchData:
    folder = save_search(tmp_path, made_up(60))
    return read_search(folder.name, str(tmp_path))


def test_the_modules_of_the_best_trial_are_at_their_sites(search: SearchData) -> None:
    shown = network(search)
    assert shown
    assert search.best
    assert shown.title.startswith(f"The best trial, {search.best.number}, not confirmed")
    kinds_of = {
        f"{stage}.{place.name}".rstrip("."): place.kind
        for stage, row in shown.stages.items()
        for place in row
    }
    assert set(kinds_of) == {site for trial in search.trials for site in trial.config.model.placement}
    used = {site: kind for site, kind in kinds_of.items() if kind}
    assert used == {site: spec.name for site, spec in search.best.config.model.placement.items()}
    assert all(bool(place.kind) == bool(place.colour) for row in shown.stages.values() for place in row)


@pytest.mark.parametrize(("verdict", "title"), [("better", "The winner"), ("undecided", "not shown to be")])
def test_a_verdict_decides_whose_modules_are_shown(
    verdict: str, title: str, search: SearchData, tmp_path: Path
) -> None:
    save_verdict(search.folder, verdict_of(verdict))
    shown = network(read_search(search.metadata.name, str(tmp_path)))
    assert shown
    assert title in shown.title
    kinds = [place.kind for row in shown.stages.values() for place in row if place.kind]
    assert kinds == ["ssa"]


def test_a_model_without_modules_has_no_picture(search: SearchData) -> None:
    assert (
        network(replace(search, trials=[trial for trial in search.trials if trial.kind == "plain"])) is None
    )


def test_all_layers_of_a_decoder_are_shown(search: SearchData) -> None:
    model = LanguageModel(
        options={"depth": 4}, placement={"block2.mixer": "linear", "block3.mixer": "sliding"}
    )
    config = TrialConfig(task="language-modelling", data=LanguageData(), model=model, metric="accuracy")
    history = [{"epoch": 1.0, "resource": 1.0, "accuracy": 0.5, "seconds": 1.0}]
    trial = TrialRecord(0, config, state=State.COMPLETE, history=history)
    shown = network(replace(search, trials=[trial]))
    assert shown
    assert [place.kind for (place,) in shown.stages.values()] == ["full", "linear", "sliding", "full"]
    assert [bool(place.colour) for (place,) in shown.stages.values()] == [False, True, True, False]
