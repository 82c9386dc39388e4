"""A report in a real browser: it draws every plot, makes no network requests, and no text lies on another."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_cases import made_up, plan_of, save_search, save_verdict, verdict_of

from automl.report import ReportResult, run_report
from search.metric import Metric

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = (390, 1440)  # a phone and a desktop

# The boxes of all visible text, cut to what scrolls around it: of HTML by line, of the figures by label.
# Every pair that shares more than a pixel both ways is returned.
OVERLAPS = """
() => {
  const boxes = [];
  const add = (rect, element, text) => {
    let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      if (e.tagName === "svg" || e.ownerSVGElement || getComputedStyle(e).overflow === "visible") continue;
      const outer = e.getBoundingClientRect();
      left = Math.max(left, outer.left); right = Math.min(right, outer.right);
      top = Math.max(top, outer.top); bottom = Math.min(bottom, outer.bottom);
    }
    if (right - left > 1 && bottom - top > 1) boxes.push({left, top, right, bottom, text: text.slice(0, 60)});
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("svg, script, style") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) add(rect, parent, node.data.trim());
  }
  const labels = document.querySelectorAll('svg g[id*="text"]');
  for (const label of labels) {
    if (label.querySelector('g[id*="text"]') || !label.checkVisibility()) continue;
    // What matplotlib wrote stands beside it as a comment.
    const comment = [...label.childNodes].find(node => node.nodeType === Node.COMMENT_NODE);
    add(label.getBoundingClientRect(), label, `${label.id} ${comment?.data.trim() ?? ""}`);
  }
  boxes.sort((a, b) => a.top - b.top);
  const found = [];
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j++) {
      const b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 1) found.push(`${a.text} | ${b.text} | ${wide.toFixed(1)} x ${high.toFixed(1)}`);
    }
  });
  return {boxes: boxes.length, labels: labels.length, found};
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make setup)")
    program = os.environ.get("AUTOML_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"there is no browser; install one of {', '.join(NAMES)}, or name one by AUTOML_BROWSER")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=root)
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=["confirmed", "running", "minimised, photographs", "first trial"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    """Reports of searches that differ in what is there to draw."""
    storage = tmp_path_factory.mktemp("browser")
    if request.param == "confirmed":
        folder = save_search(storage, made_up(80))
        save_verdict(folder, verdict_of("undecided"), 1)
        save_verdict(folder, verdict_of("better", warnings=["one seed failed"], remarks=["The control."]), 2)
    elif request.param == "running":
        plan = plan_of(objectives=["accuracy", "latency"])
        folder = save_search(storage, made_up(40, running=2, gates=False, plan=plan), plan=plan)
        save_verdict(folder, verdict_of(None))
    elif request.param == "minimised, photographs":
        plan = plan_of(metric=Metric(name="error", maximize=False), objectives=["error"])
        save_search(storage, made_up(150, plan=plan, space="nette", seed=1), plan=plan, space="nette")
    else:
        save_search(storage, made_up(1, running=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{storage / 'mlflow.db'}")
        return run_report("made-up", storage=str(storage))


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Any, report: ReportResult) -> Iterator[Any]:
    """The report in a window of that width, offline; `heard` is what went wrong or was asked for."""
    context = browser.new_context(viewport={"width": request.param, "height": 900}, offline=True)
    page = context.new_page()
    page.heard = []
    page.on("console", lambda message: page.heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: page.heard.append(f"error: {error}"))
    page.on("request", lambda asked: page.heard.append(asked.url))
    page.goto(report.index.as_uri())
    yield page
    context.close()


def test_a_report_opens_alone_and_whole(page: Any, report: ReportResult) -> None:
    assert page.heard == [report.index.as_uri()]
    drawn = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("figure svg[role=img]")].map(svg => {
          const box = svg.getBoundingClientRect(), ink = svg.querySelectorAll("path, use, image").length;
          return [svg.closest("figure").dataset.plot, [box.width, box.height, ink, box.left, box.right]];
        }))"""
    )
    assert set(drawn) == set(report.plots)
    for name, (width, height, ink, left, right) in drawn.items():
        assert width > 300, name
        assert height > 40, name
        assert ink > 10, name
        assert left >= 0, name
        assert right <= page.viewport_size["width"], name


def test_no_text_lies_on_another(page: Any, report: ReportResult) -> None:
    seen = page.evaluate(OVERLAPS)
    assert seen["boxes"] > 60
    assert seen["labels"] >= 10 * len(report.plots)
    assert seen["found"] == []
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate(OVERLAPS)["found"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_what_overlaps_is_found(page: Any) -> None:
    """The check itself: words and a label are pushed over their neighbours."""
    page.evaluate("document.querySelector('#verdict .said').style.marginTop = '-20px'")
    assert page.evaluate(OVERLAPS)["found"]
    page.reload()
    page.evaluate(
        """() => {
          const [a, b] = document.querySelectorAll('#plot-fates svg g[id*="text"]');
          const [one, other] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
          const svg = a.ownerSVGElement;
          const scale = svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
          a.setAttribute("transform",
            `translate(${(other.left - one.left) * scale} ${(other.top - one.top) * scale})`);
        }"""
    )
    assert page.evaluate(OVERLAPS)["found"]


def test_the_letters_of_a_figure_can_be_read(page: Any) -> None:
    """matplotlib scales each label from a font of 100 units; 9 px is what small print has."""
    sizes = page.evaluate(
        r"""() => [...document.querySelectorAll('svg g[id*="text"] g[transform*=scale]')].map(group => {
          const svg = group.ownerSVGElement, whole = svg.getBoundingClientRect().width;
          const scale = Math.abs(parseFloat(group.getAttribute("transform").match(/scale\(([-\d.]+)/)[1]));
          return 100 * scale * whole / svg.viewBox.baseVal.width;
        })"""
    )
    assert len(sizes) > 10
    # Exponents of 10 are smaller, in every book.
    assert min(sizes) >= 9


def test_a_heading_sorts_the_trials(page: Any) -> None:
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
    assert page.heard == [page.url]


def test_a_report_prints(page: Any, tmp_path: Path) -> None:
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
