"""Choice of the trial to export."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import automl.trials.session
from automl.base.errors import InputError
from automl.export.chosen import choose
from automl.judge.run_confirm import run_confirm
from automl.storage.storage import Storage
from automl.trials.session import Stopped
from search.record import Role
from tests.helpers.confirm_cases import RECORDS, SAGAN, SSA, FakeWorkers, fake_search, record

BASELINE, LEAD = "baseline (trial 0)", "ssa @ stage1.block2.branch (trial 1)"
Confirm = Callable[..., None]


@pytest.fixture
def search(tmp_path: Path) -> Storage:
    """Create a search whose trials have checkpoints."""
    fake_search(tmp_path)
    for trial in RECORDS:
        (Storage(tmp_path) / "mine" / trial.folder).write("checkpoint.pt", b"")
    return Storage(tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for confirmed searches, since each confirmation takes seconds."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def confirm(search: Storage, kept: Path, untracked: None, monkeypatch: pytest.MonkeyPatch) -> Confirm:
    """Return a function that confirms it once for each gain in points."""
    assert search.local is not None
    mine = search.local / "mine"

    def run(*gains: float, most: int = 10**9) -> None:
        copy = kept / f"{gains} {most}"
        if copy.exists():
            shutil.rmtree(mine)
            shutil.copytree(copy, mine)
            return
        if gains[1:]:
            run(*gains[:-1])

        def score(variant: str, seed: int) -> float:
            noise = float(np.random.default_rng([len(variant), seed]).normal()) / 400
            return 0.9 + noise + gains[-1] / 100 * (variant == LEAD)

        def valid(variant: str, seed: int) -> float:
            return 0.4 + 0.01 * (variant == LEAD and seed == 3)

        monkeypatch.setattr(automl.trials.session, "open_workers", FakeWorkers(score, valid, most=most).open)
        run_confirm("mine", top=1, seeds=8, again=len(gains) > 1, storage=str(search))
        shutil.copytree(mine, copy)

    return run


def test_the_best_trial_is_chosen_without_a_verdict(search: Storage, tmp_path: Path) -> None:
    chosen = choose("mine", str(search))
    assert chosen.checkpoint == search / "mine" / RECORDS[1].folder
    assert (chosen.name, chosen.number, chosen.run_id) == (RECORDS[1].name, 1, None)
    assert chosen.choice == "the search's best; not confirmed"
    assert chosen.origin == f"trial {RECORDS[1].name} of search mine"
    (search / "mine" / RECORDS[1].folder).remove("checkpoint.pt")
    chosen = choose("mine", str(search))
    assert chosen.number == 2
    assert chosen.choice == "the search's best that still has a checkpoint; not confirmed"
    for trial in RECORDS:
        if trial.number != 1:
            (search / "mine" / trial.folder).remove("checkpoint.pt")
    message = r"no trial of search 'mine' has a checkpoint in .*mine.*; check whether"
    with pytest.raises(InputError, match=message):
        choose("mine", str(search))
    equal = [record(0, 0.8), record(1, 0.9, SSA), record(2, 0.9, SSA, training={"learning_rate": 2e-3})]
    fake_search(tmp_path / "equal", equal)
    for trial in equal:
        (Storage(tmp_path / "equal") / "mine" / trial.folder).write("checkpoint.pt", b"")
    assert choose("mine", str(tmp_path / "equal")).number == 1


def test_a_free_answer_says_what_the_search_took_beside_it(tmp_path: Path) -> None:
    drawn = record(2, 0.84, SAGAN)
    long = replace(drawn, history=[{**drawn.history[-1], "seconds": 90.0}])
    fake_search(tmp_path, [record(0, 0.8), replace(record(1, 0.85, SSA), role=Role.FREE), long])
    for number in range(3):
        (Storage(tmp_path) / "mine" / f"trials/{number:04d}").write("checkpoint.pt", b"")
    spent = choose("mine", str(tmp_path)).spent
    assert spent.startswith("its model is a free answer: 1 free answer took ")
    assert spent.endswith("and 1 drawn trial 1m30s beside them")
    assert choose("mine", str(tmp_path), baseline=True).spent == ""


@pytest.mark.slow("a training")
def test_retrained_winner_is_chosen(search: Storage, confirm: Confirm) -> None:
    confirm(+2)
    chosen = choose("mine", str(search))
    assert chosen.confirmed
    assert chosen.choice.startswith("confirmed winner: Better by ")
    assert chosen.choice.endswith(LEAD.removesuffix(" (trial 1)") + " beats the baseline")
    assert chosen.figures.endswith(" of the baseline's.")
    assert chosen.name.endswith(f"{LEAD} seed 3"), "the best validation; test chooses nothing"
    assert chosen.checkpoint == search / "mine" / "confirm" / f"trials/{chosen.number:04d}"
    assert chosen.checkpoint.exists("checkpoint.pt")
    assert chosen.identity.endswith("-confirm-1")
    confirm(+2, 0)
    chosen = choose("mine", str(search))
    assert not chosen.confirmed, "the latest verdict counts"
    confirm(+2, 0, +2)
    assert choose("mine", str(search)).identity.endswith("-confirm-3")


def test_best_baseline_is_chosen(search: Storage, confirm: Confirm) -> None:
    chosen = choose("mine", str(search), baseline=True)
    assert (chosen.number, chosen.choice) == (0, "the search's best without attention; not confirmed")
    confirm(+2)
    chosen = choose("mine", str(search), baseline=True)
    assert chosen.name.endswith("baseline (trial 0) seed 1"), "whatever has won"
    assert chosen.checkpoint == search / "mine" / "confirm" / f"trials/{chosen.number:04d}"
    assert chosen.checkpoint.exists("checkpoint.pt")
    confirm(+2, 0)
    again = choose("mine", str(search), baseline=True)
    assert again.checkpoint == search / "mine" / "confirm-2" / f"trials/{again.number:04d}"
    assert again.warning == ""


@pytest.mark.parametrize(
    ("gain", "warned"), [(+2, ""), (0, "no finalist better"), (-3, "the best of them worse")]
)
def test_model_that_is_not_better_has_a_warning(
    search: Storage, confirm: Confirm, gain: float, warned: str
) -> None:
    confirm(gain)
    chosen = choose("mine", str(search))
    assert warned in chosen.warning
    assert ("--baseline --search mine" in chosen.warning) == bool(warned)


def test_no_winner(search: Storage, confirm: Confirm) -> None:
    confirm(0)
    chosen = choose("mine", str(search))
    assert chosen.checkpoint == search / "mine" / RECORDS[1].folder
    assert not chosen.confirmed
    assert chosen.verdict
    assert chosen.choice == f"the search's best; confirmation found no winner: {chosen.verdict}"


def test_stopped_confirmation_is_ignored(search: Storage, confirm: Confirm) -> None:
    with pytest.raises(Stopped):
        confirm(+2, most=12)
    assert choose("mine", str(search)).choice == "the search's best; not confirmed"
