"""A list of trials is run once each, whatever ends the run."""

from pathlib import Path

import optuna
from search_cases import EPOCHS, make_plan, make_study, report

from search.config import TrialConfig
from search.record import Report, Role, State
from search.roster import Entry, Roster


def entries(*arms: str, seeds: int = 2) -> list[Entry]:
    return [
        Entry(arm=arm, role=Role.FINALIST, config=TrialConfig(seed=seed))
        for seed in range(seeds)
        for arm in arms
    ]


def make(study: optuna.Study, *arms: str) -> Roster:
    return Roster(study, make_plan(), entries(*arms))


def run(roster: Roster) -> list[tuple[str, int]]:
    """Everything that is left, each to its end."""
    done = []
    while (record := roster.ask()) is not None:
        roster.end(record.number, report(*[0.5] * EPOCHS, finished=True))
        done.append((record.arm, record.config.seed))
    return done


def test_each_entry_is_run_once_in_order(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    roster = make(study, "a", "b")
    assert roster.left == 4
    assert run(roster) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert roster.left == 0
    assert run(make(study, "a", "b")) == []
    assert [trial.user_attrs["arm"] for trial in study.trials] == ["a", "b", "a", "b"]
    assert roster.records[1].name == "001 b seed 0"


def test_what_was_running_goes_on_first(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    roster = make(study, "a", "b")
    first, second = roster.ask(), roster.ask()
    assert first is not None
    assert second is not None
    roster.report(second.number, report(0.3))
    roster.end(first.number, report(*[0.5] * EPOCHS, finished=True))
    later = make(study, "a", "b")
    again = later.ask()
    assert again is not None
    assert (again.number, again.arm, len(again.history)) == (second.number, "b", 1)
    assert later.left == 2


def test_the_device_that_a_trial_began_on_is_known(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    roster = make(study, "a")
    one, other = roster.ask(), roster.ask()
    assert one is not None
    assert other is not None
    facts = {"pace": 1.0}
    history = report(0.3).history
    roster.report(one.number, Report(history=history, facts=facts, device="a fast one"))
    roster.report(one.number, Report(history=[*history, *history], facts=facts, device="a slow one"))
    roster.end(other.number, Report(infeasible="too large", facts=facts, device="a slow one"))
    assert [record.device for record in make(study, "a").records.values()] == ["a fast one", "a slow one"]
    assert [record.facts for record in make(study, "a").records.values()] == [facts, facts]


def test_what_is_no_longer_on_the_list_is_cut(tmp_path: Path) -> None:
    roster = make(make_study(tmp_path), "a", "b")
    record = roster.ask()
    assert record is not None
    assert roster.report(record.number, report(0.3))
    roster.entries = [entry for entry in roster.entries if entry.arm == "b"]
    assert not roster.report(record.number, report(0.3, 0.4))
    roster.end(record.number, report(0.3, 0.4))
    assert record.state is State.PRUNED
    assert run(roster) == [("b", 0), ("b", 1)]


def test_more_can_be_put_on_the_list(tmp_path: Path) -> None:
    roster = make(make_study(tmp_path), "a")
    run(roster)
    roster.entries += entries("c", seeds=1)
    assert run(roster) == [("c", 0)]


def test_an_error_is_tried_again_by_the_next_run_alone(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    roster = make(study, "a")
    record = roster.ask()
    assert record is not None
    roster.end(record.number, Report(error="boom"))
    assert run(roster) == [("a", 1)]
    assert run(make(study, "a")) == [("a", 0)]
    assert run(make(study, "a")) == []


def test_closing_asks_for_no_more(tmp_path: Path) -> None:
    roster = make(make_study(tmp_path), "a")
    roster.closing = True
    assert roster.ask() is None
