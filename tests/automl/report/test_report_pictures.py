"""The network of a report, its maps, and its colours."""

from dataclasses import replace
from pathlib import Path

import pytest

from automl import maps as examples
from automl.report.attention import attention
from automl.report.curves import curves_over_time
from automl.report.figure import Plot
from automl.report.forest import network
from automl.report.read import SearchData, read_folder, read_search
from automl.report.run_report import sections
from tests.helpers.confirm_cases import fake_confirmation, fake_search
from tests.helpers.map_cases import leave_maps
from tests.helpers.report_cases import made_up, save_search, save_verdict, verdict_of


@pytest.fixture
def search(tmp_path: Path) -> SearchData:
    folder = save_search(tmp_path, made_up(60))
    return read_search(folder.name, str(tmp_path))


def test_the_modules_are_at_their_sites(search: SearchData) -> None:
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
    plain = [trial for trial in search.trials if trial.kind == "plain"]
    assert network(replace(search, trials=plain)) is None


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


def drawn(folder: Path) -> Plot:
    (section,) = attention(read_search("made-up", str(folder.parent)))
    (plot,) = section.plots
    return plot


@pytest.mark.parametrize("kind", ["images", "signals", "code", "channels"])
def test_each_kind_is_drawn(kind: str, tmp_path: Path) -> None:
    folder = save_search(tmp_path, made_up(4))
    save_verdict(folder, verdict_of("better"))
    leave_maps(folder, kind)
    plot = drawn(folder)
    assert len(plot.table.rows) == examples.COUNT
    assert not plot.warnings
    html = plot.figure.element(plot.says)
    assert len(html) < 200_000
    assert html.count('<figure class="map">') == examples.COUNT
    assert "&lt;b&gt;cats" in html
    assert "<b>" not in html


def test_curves_over_time_are_those_of_all_seeds(tmp_path: Path) -> None:
    folder = fake_search(tmp_path / "searches")
    assert sections(read_folder(folder))[0].id != "learning"
    fake_confirmation(folder)
    search = read_folder(folder)
    (plot,) = sections(search)[0].plots
    assert plot.figure is not None
    assert plot.table is not None
    assert plot.table.rows == [["baseline", 7, 1.0, 50.0], ["ssa", 7, 1.0, 50.0]]
    assert plot.says == "baseline: 50 after 1 s; ssa: 50 after 1 s, means over seeds."
    assert len(plot.figure.data["times"]) == 14
    assert plot.figure.data["budget"] == [{"time": 1.0}]
    assert "the end of the budget" in plot.note
    unknown = replace(search, verdicts=[replace(search.verdicts[-1], search="other", confirmation=2)])
    assert curves_over_time(unknown).figure is None
