"""Callbacks of the user: their events, their isolation from the search, and their names."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import automl
import automl.judge.run_confirm
import automl.search.run_search
import automl.tracking.process
import automl.trials.session
from automl.base.errors import InputError
from automl.callbacks.user import UserCallbacks, check_callbacks
from search.record import Callback, State, TrialRecord
from tests.helpers.automl_cases import tiny
from tests.helpers.confirm_cases import FakeWorkers, PlayedWorkers, fake_search


class Heard(Callback):
    """Callback that records every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda record: self.events.append((name, record))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Failing(Callback):
    """Callback that fails in every method."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def fail(record: object) -> None:
            raise ValueError(f"no {name}")

        return fail


def test_a_callback_sees_every_event_of_a_search(played, monkeypatch, caplog) -> None:
    monkeypatch.setattr(automl.trials.session, "open_workers", PlayedWorkers(lambda variant, seed: 0.5).open)
    heard = Heard()
    with caplog.at_level(logging.ERROR, "automl"):
        result = automl.run_search(
            space="digits", trials=2, subset=0.2, epochs=2, name="played", callbacks=[Failing(), heard]
        )
    trial = ["on_trial_start", "on_epoch_end", "on_epoch_end", "on_trial_end"]
    assert heard.names() == ["on_search_start", *trial, *trial, "on_search_end"]
    begun, records, ended = heard.events[0][1], [r for _, r in heard.events[1:-1]], heard.events[-1][1]
    assert (begun.name, begun.metric, begun.trials) == ("played", "accuracy", 2)
    assert begun.settings["space"] == "digits"
    assert [record.number for record in records] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [len(record.history) for record in records[:4]] == [0, 1, 2, 2], "a record does not grow later"
    assert [str(record.state) for record in records[:4]] == ["running", "running", "running", "complete"]
    assert ended is result
    assert result.counts["complete"] == 2
    failed = [record for record in caplog.records if record.name == "automl"]
    assert [record.args[1] for record in failed] == list(dict.fromkeys(heard.names())), "each once"
    assert all("ValueError: no on_" in record.exc_text for record in failed)
    assert json.loads(Path("searches/played/search.json").read_text())["settings"]["callbacks"] == []


def test_a_callback_sees_every_event_of_a_confirmation(played, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(automl.trials.session, "open_workers", FakeWorkers(lambda variant, seed: 0.5).open)
    fake_search(tmp_path / "searches")
    heard = Heard()
    result = automl.run_confirm("mine", top=1, seeds=6, callbacks=[heard])
    assert heard.names()[0] == "on_confirmation_start"
    assert heard.events[0][1].folder.name == "confirm"
    assert set(heard.names()[1:-1]) == {"on_epoch_end", "on_trial_end"}
    assert all(record.variant for _, record in heard.events[1:-1])
    assert heard.events[-1] == ("on_confirmation_end", result)


def test_records_are_frozen_and_reach_every_event() -> None:
    trial = TrialRecord(3, tiny(), history=[{"epoch": 1, "accuracy": 0.5}], profile={"params": 3.0})
    heard = Heard()
    UserCallbacks([heard]).on_epoch_end(trial)
    ((_, record),) = heard.events
    assert (record.number, record.epoch, record.value("accuracy"), record.name) == (3, 1, 0.5, trial.name)
    with pytest.raises(AttributeError, match="a callback cannot change the record of a trial"):
        record.state = State.ERROR
    for change in (
        lambda: record.history.append({}),
        lambda: record.history[0].update(accuracy=1),
        lambda: record.profile.clear(),
    ):
        with pytest.raises(AttributeError):
            change()
    assert isinstance(record, TrialRecord)
    settings = automl.Settings(space="digits", callbacks=["mine.py:Name", Heard()]).parsed
    assert settings.absolute().to_json()["callbacks"] == [f"{Path.cwd()}/mine.py:Name"]
    assert settings.user_code() == ["mine.py:Name"], "which resuming the search names"


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ("mine.py:Nothing", "unknown class in mine.py 'Nothing'"),
        ("mine", "--callback must be file.py:Name or package.module:Name; got 'mine'"),
        (Heard, "callbacks must be instances of automl.Callback, or names such as file.py:Name; got <class"),
    ],
)
def test_objects_that_are_no_callback_are_rejected(
    callback: Any, message: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def function():\n    pass\n")
    with pytest.raises(InputError) as error:
        check_callbacks([callback])
    assert message in str(error.value)
