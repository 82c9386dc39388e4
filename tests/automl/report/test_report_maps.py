"""Attention maps in the report: which are shown, and what the page says without them."""

from dataclasses import replace
from pathlib import Path

import pytest

from automl.maps import kept as examples
from automl.report.attention import attention
from automl.report.figure import Plot
from automl.report.read import read_search
from tests.helpers.map_cases import leave_maps, map_examples
from tests.helpers.report_cases import made_up, save_search, save_verdict, verdict_of


def drawn(folder: Path) -> Plot:
    (section,) = attention(read_search("made-up", str(folder.parent)))
    (plot,) = section.plots
    return plot


def test_a_search_without_a_confirmation_says_how_to_get_maps(tmp_path: Path) -> None:
    plot = drawn(save_search(tmp_path, made_up(4)))
    assert plot.figure is None
    assert "automl confirm --search made-up" in plot.says


def test_a_confirmation_without_maps_says_why(tmp_path: Path) -> None:
    folder = save_search(tmp_path, made_up(4))
    save_verdict(folder, verdict_of("better"))
    assert "recorded no maps" in drawn(folder).says


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


def test_a_closed_gate_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_search(tmp_path, made_up(4))
    save_verdict(folder, verdict_of("better"))
    monkeypatch.setattr(
        "tests.helpers.map_cases.map_examples", lambda kind: replace(map_examples(), gate=-0.01)
    )
    leave_maps(folder, "images")
    assert "near 0" in drawn(folder).warnings[0]
