"""A report in a real browser: it draws every plot, makes no network requests, and no text lies on another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automl.report.run_report import ReportResult, run_report
from search.metric import Metric
from tests.helpers import others_slow
from tests.helpers.map_cases import leave_maps
from tests.helpers.report_cases import made_up, plan_of, save_search, save_verdict, verdict_of

WINDOWS = [("390", "light"), ("1440", "dark"), ("390", "dark"), ("1440", "light")]  # a phone and a desktop
REPORTS = ["confirmed", "running", "minimised, photographs", "first trial"]
OVERLAPS, PALE = ((Path(__file__).parent / name).read_text() for name in ("overlaps.js", "pale.js"))


@pytest.fixture(scope="module", params=others_slow(REPORTS, "confirmed"))
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    """Reports of searches that differ in what is there to draw."""
    storage = tmp_path_factory.mktemp("browser")
    if request.param == "confirmed":
        folder = save_search(storage, made_up(80))
        save_verdict(folder, verdict_of("undecided"), 1)
        save_verdict(folder, verdict_of("better", warnings=["one seed failed"], explanation="Why."), 2)
        leave_maps(folder, "images", 2)
    elif request.param == "running":
        folder = save_search(storage, made_up(40, running=2))
        save_verdict(folder, verdict_of(None))
        leave_maps(folder, "code")
    elif request.param == "minimised, photographs":
        plan = plan_of(metric=Metric(name="error", maximize=False))
        folder = save_search(
            storage, made_up(150, plan=plan, space="nette", seed=1), plan=plan, space="nette"
        )
        save_verdict(folder, verdict_of("worse"))
        leave_maps(folder, "signals")
    else:
        save_search(storage, made_up(1, running=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{storage / 'mlflow.db'}")
        return run_report("made-up", storage=str(storage))


@pytest.fixture(scope="module", params=others_slow(WINDOWS, WINDOWS[0]), ids="-".join)
def page(request: pytest.FixtureRequest, browser: Any, report: ReportResult) -> Iterator[Any]:
    """The report in a window of that width and theme, offline; `heard`: errors, and what was asked for."""
    width, theme = request.param
    window = {"width": int(width), "height": 900}
    context = browser.new_context(viewport=window, color_scheme=theme, offline=True)
    page = context.new_page()
    page.heard = []
    page.on("console", lambda message: page.heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: page.heard.append(f"error: {error}"))
    page.on("request", lambda asked: page.heard.append(asked.url))
    page.goto(report.index.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=120_000)
    for few in page.locator("details.few").all():
        assert not few.locator("svg").count()
        few.locator("> summary").click()
    page.wait_for_function("[...document.querySelectorAll('details.few')].every(d => d.dataset.drawn)")
    yield page
    context.close()


def test_a_report_opens_alone_and_whole(page: Any, report: ReportResult) -> None:
    assert page.heard == [report.index.as_uri()]
    drawn = page.evaluate(
        """() => [...document.querySelectorAll(".chart svg")].map(svg => {
          const box = svg.getBoundingClientRect(), ink = svg.querySelectorAll("path, line, text").length;
          return [svg.closest("figure").dataset.plot, box.width, box.height, ink, box.left, box.right];
        })"""
    )
    assert {name for name, *_ in drawn} == set(report.plots)
    for name, width, height, ink, left, right in drawn:
        assert width > 140, name
        assert height > 40, name
        assert ink > 10, name
        assert left >= 0, name
        assert right <= page.viewport_size["width"], name
    flat = page.evaluate(
        """() => [...document.querySelectorAll(".mark-symbol.role-mark path")].filter(path => {
          const box = path.getBBox();
          return box.width < 1 || box.height < 1;
        }).map(path => path.closest("figure").dataset.plot)"""
    )
    assert flat == []


def test_texts_and_tooltips_can_be_read(page: Any, report: ReportResult) -> None:
    """Texts do not overlap, leave their chart, or are small or pale. The page fits the window."""
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    seen = page.evaluate(OVERLAPS)
    assert seen["boxes"] > 60
    assert seen["labels"] >= 5 * len(report.plots)
    assert seen["overlaps"] == []
    out = page.evaluate(
        """() => [...document.querySelectorAll(".chart svg text")].filter(text => {
          const box = text.getBoundingClientRect(), chart = text.closest(".chart").getBoundingClientRect();
          return text.getAttribute("opacity") !== "0" && box.width
            && (box.left < chart.left - 1 || box.right > chart.right + 1);
        }).map(text => `${text.closest("figure").dataset.plot} ${text.textContent}`)"""
    )
    assert out == []
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg text')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 9
    contrast = page.evaluate(PALE)
    assert contrast["count"] > 60
    assert contrast["pale"] == []
    marks = page.locator("#plot-costs .mark-symbol.role-mark path")
    if marks.count() == 0:
        pytest.skip("no trial has a score yet")
    marks.last.scroll_into_view_if_needed()
    marks.last.hover(force=True)
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    text = tip.inner_text()
    for word in ("trial", "placement", "accuracy" if "accuracy" in text else "error", "epochs"):
        assert word in text
    assert " @ stage" in text or "no attention" in text or " @ stem" in text


def test_trials_can_be_zoomed_and_sorted(page: Any) -> None:
    read = """[...document.querySelectorAll('#plot-costs .chart:first-of-type .role-axis-label')]
      .map(labels => labels.textContent).join()"""
    if page.locator("#plot-costs .chart").count() == 0:
        pytest.skip("no trial has a score yet")
    page.locator("#plot-costs .chart").first.scroll_into_view_if_needed()
    page.locator("#plot-costs .chart svg").first.hover(position={"x": 200, "y": 150})
    before = page.evaluate(read)
    page.mouse.wheel(0, -2)
    page.wait_for_timeout(100)
    assert page.evaluate(read) == before
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function(f"({read}) !== {before!r}")
    if page.locator("#listing tbody tr").count() < 2:
        pytest.skip("one trial is always in order")
    head = page.locator("#listing th", has_text="parameters")
    column = head.evaluate("head => head.cellIndex")
    read = f"""() => [...document.querySelectorAll('#listing tbody tr')].map(row => {{
      const cell = row.cells[{column}];
      return cell.textContent === "" ? null : +(cell.dataset.v ?? cell.textContent);
    }})"""
    for direction, sign in (("ascending", 1), ("descending", -1)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == direction
        values = [value for value in page.evaluate(read) if value is not None]
        assert values == sorted(values, key=lambda value: sign * value)
    assert len(values) > 10
    assert set(page.heard) == {page.url}
