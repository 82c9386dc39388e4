"""The page: says the verdict first, holds everything itself, and takes nothing from anybody for markup."""

import html
import json
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev

import pytest
from mlflow import MlflowClient
from optuna.trial import FrozenTrial

from attention import Spec
from automl.base.escape import printable
from automl.judge.decision import Outcome
from automl.report.figure import Figure
from automl.report.read import read_search
from automl.report.run_report import ReportResult, run_report, sections
from automl.storage.metadata import read_metadata
from automl.storage.storage import Storage
from automl.tracking.run_spec import search_run_spec
from automl.tracking.writer import MlflowWriter
from search.config import Model, TrialConfig
from search.record import State
from tests.helpers.hostile import HOSTILE
from tests.helpers.map_cases import leave_maps
from tests.helpers.report_cases import SSA, frozen, made_up, plan_of, save_search, save_verdict, verdict_of

PLOTS = {"parts", "costs", "curves"}


class Page(HTMLParser):
    """Elements of a page with their attributes, and its visible words."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def trials() -> list[FrozenTrial]:
    return made_up(60)


@pytest.fixture(scope="module")
def storage(trials: list[FrozenTrial], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches")
    save_search(folder, trials)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of few trials, whose report takes a second."""
    folder = tmp_path_factory.mktemp("small")
    save_search(folder, made_up(8))
    return folder


@pytest.fixture
def quiet(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLflow that knows no search."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one letter for the figures, whose drawing takes most of the time."""

    def save(figure: Figure, folder: Path, name: str) -> None:
        for kind in ("svg", "png"):
            (folder / f"{name}.{kind}").write_text("-")

    monkeypatch.setattr("automl.report.run_report.save", save)


@pytest.fixture(scope="module")
def written(storage: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportResult:
    """The report of a finished search with a verdict."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(storage, folder / "searches")
    save_verdict(folder / "searches" / "made-up", verdict_of("undecided"), 1)
    save_verdict(folder / "searches" / "made-up", verdict_of("better"), 2)
    leave_maps(folder / "searches" / "made-up", "images", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty_store}")
        return run_report("made-up", storage=str(folder / "searches"))


@pytest.fixture(scope="module")
def page(written: ReportResult) -> Page:
    return Page(written.index)


def test_every_plot_is_there_with_its_files(
    written: ReportResult, page: Page, trials: list[FrozenTrial]
) -> None:
    assert {*PLOTS, "verdict"} <= set(written.plots)
    for name in written.plots:
        assert (written.folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        root = ET.parse(written.folder / "plots" / f"{name}.svg").getroot()
        assert root.tag.endswith("}svg")
    shown = {attributes.get("data-plot") for tag, attributes in page.elements if tag == "figure"}
    assert set(written.plots) <= shown
    assert json.loads((written.folder / "report.json").read_text())["plots"] == list(written.plots)
    labels = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(labels) == len(written.plots) + 1, "the maps are in the page alone"
    labels_text = [attributes["aria-label"] or "" for attributes in labels]
    assert len(set(labels_text)) == len(labels_text)
    # Each is about the numbers of its plot, not about plots in general.
    assert all(re.search(r"\d", label) for label in labels_text)
    search = read_search("made-up", str(written.folder.parents[1]))
    for section in sections(search):
        for plot in section.plots:
            assert any(plot.says in label for label in labels_text)
            assert plot.figure is None or plot.table is not None
    table = page.source[page.source.index('<table id="listing">') :]
    assert re.search(r">\s*steps\s*<", table)
    rows = re.findall(r"<tr><td class=\"n\">(\d+)</td>", table[: table.index("</table>")])
    assert [int(number) for number in rows] == list(range(len(trials)))
    configs = re.findall(r'class="config"><summary>best trial.*?<pre>(.*?)</pre>', page.source, re.S)
    search = read_search("made-up", str(written.folder.parents[1]))
    assert TrialConfig.from_json(json.loads(html.unescape(configs[0]))) == search.best.config


def test_the_page_is_whole_and_safe(page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base") or attributes.get("href") == "data:,"
        for key in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:")), (tag, key, value)
    outside = re.sub(r"<script.*?</script>", "", page.source, flags=re.S)  # a browser runs these, offline
    assert not re.search(r"url\(\s*['\"]?(?!#|data:)", outside)
    assert "@import" not in outside
    assert not re.search(r"(?:src|href)\s*=\s*['\"]?(?:https?:)?//", outside)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page.source))
    assert wanted <= set(ids)
    data = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page.source, re.S)
    assert sum(tag == "script" for tag, _ in page.elements) == len(data) + 3
    assert all(json.loads(text) is not None and "<" not in text for text in data)
    assert "<script>alert('no')</script> & more" in page.text
    assert "<script>alert" not in page.source
    text = page.text
    assert text.index("Confirmed: better") < text.index("What the search learned")
    assert " ".join(verdict_of("better").lines) in text
    assert "Confirmation 1: Undecided: +0.30 points (-0.10 to 0.70)" in text
    assert "+0.30 to +1.10" in text
    assert "0.008 (Holm)" in text
    scores = verdict_of("better").variants[0].scores.values()
    assert f"baseline {100 * mean(scores):.4g} ± {100 * stdev(scores):.2g} 840 61.2 s" in page.text


def test_hostile_names_in_figures_and_labels(tmp_path: Path, quiet: None) -> None:
    site = '"><img src=x onerror=alert(1)>$x_1$'
    config = TrialConfig().change(model={"placement": {site: Spec("ssa")}})
    history = [{"epoch": 6, "resource": 6.0, "accuracy": 0.5, f"gate.{site}": 0.1}]
    trials = [
        frozen({}, {}, TrialConfig(), plan_of(), State.COMPLETE, history),
        frozen({}, {}, config, plan_of(), State.COMPLETE, history),
    ]
    save_search(tmp_path, trials)
    page_of = Page(run_report("made-up", storage=str(tmp_path)).index)
    assert not [tag for tag, _ in page_of.elements if tag == "img"]
    assert site in page_of.text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("worse", ["Confirmed: worse", "no finalist beats the tuned baseline"]),
        ("equivalent", ["Confirmed: equivalent", "by as much as 0.5 points"]),
        ("undecided", ["Confirmed: undecided", "in 20 seeds may be chance"]),
        ("cannot tell", ["Confirmed: cannot tell", "training times were not measured"]),
        (None, ["Confirmation under way", "8 of 20 seeds", "automl confirm --search made-up"]),
    ],
)
def test_each_verdict_has_its_words(
    verdict: Outcome | None, words: list[str], small: Path, tmp_path: Path, quiet: None
) -> None:
    shutil.copytree(small, tmp_path / "s")
    explanation = "The control did as well." if verdict else ""
    value = verdict_of(verdict, warnings=["seed 1003 failed twice"], explanation=explanation)
    save_verdict(tmp_path / "s" / "made-up", value)
    page_of = Page(run_report("made-up", storage=str(tmp_path / "s")).index)
    for word in [*words, "seed 1003 failed twice", explanation, SSA]:
        assert word in page_of.text


@pytest.mark.usefixtures("undrawn")
def test_a_confirmation_whose_trainings_failed_has_no_verdict(
    small: Path, tmp_path: Path, quiet: None
) -> None:
    shutil.copytree(small, tmp_path / "s")
    headline = "No verdict: fewer than two seeds are complete"
    value = verdict_of(None, complete=True, comparisons=[], used=[1000], outcome=None, finalist=None)
    save_verdict(tmp_path / "s" / "made-up", value)
    result = run_report("made-up", storage=str(tmp_path / "s"))
    assert headline in Page(result.index).text
    assert "No variant has an interval" in Page(result.index).text
    assert "verdict" not in result.plots


@pytest.mark.usefixtures("undrawn")
def test_hostile_names_and_varied_options(tmp_path: Path, quiet: None) -> None:
    plan, trials = plan_of(), []
    for i, name in enumerate(HOSTILE):
        config = TrialConfig(model=Model(options={"width": 0.25 + i / 100}, placement={name: Spec("ssa")}))
        history = [{"epoch": 1, "resource": 6.0, "accuracy": 0.5, "loss": 1.0, "seconds": 1.0}]
        state = State.COMPLETE if i % 2 else State.ERROR
        trials.append(frozen({}, {}, config, plan, state, history, {}, name))
    folder = save_search(tmp_path, trials)
    names = " ".join(HOSTILE)
    save_verdict(folder, verdict_of("better", words=names, explanation=names, warnings=[names]))
    page_of = Page(run_report("made-up", storage=str(tmp_path)).index)
    assert all(" ".join(printable(name, keep="\n\t").split()) in page_of.text for name in HOSTILE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page_of.source.partition("<script")[0])
    allowed = {tag for tag, _ in Page(Path("automl/report/page.html")).elements} | {"td", "svg", "script"}
    assert {tag for tag, _ in page_of.elements} <= allowed
    assert not any(key.startswith("on") for _, attributes in page_of.elements for key in attributes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_search_that_has_just_begun(count: int, tmp_path: Path, quiet: None) -> None:
    save_search(tmp_path, made_up(count, running=1))
    result = run_report("made-up", storage=str(tmp_path))
    page_of = Page(result.index)
    missing = [a for tag, a in page_of.elements if tag == "p" and a.get("class") == "missing"]
    assert missing
    assert "curves" in result.plots


@pytest.mark.usefixtures("undrawn")
def test_a_report_takes_the_place_of_the_last_one(small: Path, tmp_path: Path, quiet: None) -> None:
    shutil.copytree(small, tmp_path / "s")
    out = tmp_path / "out"
    (out / "plots").mkdir(parents=True)
    (out / "plots" / "mine.svg").write_text("mine")
    for killed in (out / ".index.html.123", out / "plots" / ".verdict.svg.123"):
        killed.write_text("half")
    save_verdict(tmp_path / "s" / "made-up", verdict_of())
    run_report("made-up", storage=str(tmp_path / "s"), out=str(out))
    assert (out / "plots" / "verdict.svg").exists()
    shutil.rmtree(tmp_path / "s" / "made-up" / "confirm")
    run_report("made-up", storage=str(tmp_path / "s"), out=str(out))
    assert not (out / "plots" / "verdict.svg").exists()
    assert (out / "plots" / "mine.svg").read_text() == "mine"
    assert "Not confirmed" in (out / "index.html").read_text()
    assert sorted(file.name for file in out.iterdir()) == ["index.html", "plots", "report.json"]
    assert not list((out / "plots").glob(".*"))


@pytest.mark.usefixtures("undrawn")
def test_a_report_that_fails_leaves_the_last_one(
    small: Path, tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_report("made-up", storage=str(small), out=str(out))
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}

    def fail(*_: object) -> str:
        raise RuntimeError("half-way")

    monkeypatch.setattr("automl.report.run_report.write_page", fail)
    with pytest.raises(RuntimeError, match="half-way"):
        run_report("made-up", storage=str(small), out=str(out))
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.usefixtures("undrawn")
def test_the_report_is_with_the_searchs_run_in_mlflow(
    small: Path, store: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small / "made-up"
    parent = MlflowWriter(search_run_spec(Storage(folder), read_metadata(folder, str(folder.parent)))).parent
    result = run_report("made-up", storage=str(small), out="out")
    assert result.run_id == parent
    assert capsys.readouterr().err == ""
    artifacts = {file.path for file in store.list_artifacts(parent, "report")}
    assert artifacts == {"report/index.html", "report/report.json", "report/plots"}
    plots = {Path(file.path).name for file in store.list_artifacts(parent, "report/plots")}
    assert plots == {f"{name}.{kind}" for name in result.plots for kind in ("svg", "png")}
    copy = store.download_artifacts(parent, "report/index.html")
    assert Path(copy).read_bytes() == result.index.read_bytes()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", ""], ids=["away", "without the search"])
def test_without_mlflow_there_is_a_report_and_one_warning(
    uri: str,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quiet: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    result = run_report("made-up", storage=str(small), out=str(tmp_path / "out"))
    assert result.index.exists()
    assert result.run_id is None
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "the report is not in MLflow" in line
