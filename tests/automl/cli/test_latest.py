"""Without a name, all commands use the search that was used last."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import automl.report.run_report
import automl.trials.session
from automl.base.errors import InputError
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.judge import compare
from automl.judge.run_confirm import run_confirm
from automl.report.read import read_search
from automl.search.status import list_searches, read_status
from automl.storage.folder import old_folder
from automl.storage.metadata import write_metadata
from automl.storage.storage import Storage
from tests.helpers.confirm_cases import RECORDS, FakeWorkers, fake_search

Acts = Callable[[str], str]


def confirmed(storage: str) -> str:
    return run_confirm(storage=storage).search


def reported(storage: str) -> str:
    return read_search(None, storage).metadata.name


def shown_by_status(storage: str) -> str:
    return read_status(storage=storage).search


def listed(storage: str) -> str:
    return list_searches(storage)[0].name


def exported(storage: str) -> str:
    return str(export.run_export("out", best=True, storage=storage).chosen.search)


def compared(storage: str) -> str:
    return compare.run_compare(["older:baseline"], storage=storage)[0].name


@pytest.mark.usefixtures("store", "untracked")
@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_all_commands_use_the_search_that_was_used_last(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = FakeWorkers(lambda variant, seed: 0.9 + 0.001 * (seed % 3) + 0.02 * variant.startswith("ssa"))
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    monkeypatch.setattr(export, "_export", fake_export)
    address = str(storage)
    for name in ("older", "newer"):
        fake_search(storage, name=name)
        for trial in RECORDS:
            (storage / name / trial.folder).write("checkpoint.pt", b"")
    assert [act(address) for act in (reported, shown_by_status, listed, exported)] == ["newer"] * 4
    with old_folder("older", address) as (folder, metadata):  # as `--resume` does
        write_metadata(folder, replace(metadata, plan=replace(metadata.plan, trials=8)))
    assert [act(address) for act in (reported, shown_by_status, listed, exported)] == ["older"] * 4
    run_confirm("newer", top=1, seeds=6, storage=address)
    run_confirm("older", top=1, seeds=6, storage=address)
    acts: list[Acts] = [reported, shown_by_status, listed, exported, compared, confirmed]
    capsys.readouterr()
    for act in acts:
        assert act(address) == "older", act
        err = capsys.readouterr().err
        assert err.count(f"the latest search in {address} is older\n") == (act is not listed)
    run_confirm("newer", storage=address)
    assert shown_by_status(address) == "newer", "the verdict was requested again"


def fake_export(out: Any, chosen: Chosen, trust: bool) -> export.ExportResult:
    if not chosen.checkpoint.exists("checkpoint.pt"):
        raise InputError("there is no checkpoint")
    return export.ExportResult(
        folder=out, chosen=chosen, differences={}, test={}, scores=None, speeds={}, machine="here"
    )
