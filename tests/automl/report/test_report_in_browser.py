"""A report in a real browser: it draws every plot, makes no network requests, and no text lies on another."""

from collections.abc import Iterator
from typing import Any

import pytest

from automl.report.network import network
from automl.report.read import read_search
from automl.report.run_report import ReportResult, run_report
from search.metric import Metric
from tests.helpers import others_slow
from tests.helpers.map_cases import leave_maps
from tests.helpers.report_cases import made_up, plan_of, save_search, save_verdict, verdict_of

WINDOWS = [("390", "light"), ("1440", "dark"), ("390", "dark"), ("1440", "light")]  # a phone and a desktop
REPORTS = ["confirmed", "running", "minimised, photographs", "first trial"]


@pytest.fixture(scope="module", params=others_slow(REPORTS, "confirmed"))
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    """Reports of searches that differ in what is there to draw."""
    storage = tmp_path_factory.mktemp("browser")
    if request.param == "confirmed":
        folder = save_search(storage, made_up(80))
        save_verdict(folder, verdict_of("undecided"), 1)
        save_verdict(folder, verdict_of("better", warnings=["one seed failed"], remarks=["The control."]), 2)
        leave_maps(folder, "images", 2)
    elif request.param == "running":
        plan = plan_of(objectives=["accuracy", "latency"])
        folder = save_search(storage, made_up(40, running=2, plan=plan), plan=plan)
        save_verdict(folder, verdict_of(None))
        leave_maps(folder, "code")
    elif request.param == "minimised, photographs":
        plan = plan_of(metric=Metric(name="error", maximize=False), objectives=["error"])
        folder = save_search(
            storage, made_up(150, plan=plan, space="nette", seed=1), plan=plan, space="nette"
        )
        save_verdict(folder, verdict_of("worse", metric="error"))
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
    page.folded = page.locator("details.few").count()
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


def test_few_trials_are_folded_and_a_network_has_its_modules(page: Any, report: ReportResult) -> None:
    search = read_search(report.search, str(report.folder.parents[1]))
    assert page.folded == (2 if len(search.done) < 10 else 0)
    shown = network(search)
    marks = page.locator("#network i.used").count()
    assert marks == sum(bool(p.colour) for row in (shown.stages.values() if shown else ()) for p in row)
