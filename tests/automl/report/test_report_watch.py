"""The page of a search that runs, and the figures of its result."""

from collections.abc import Callable
from pathlib import Path

import pytest
from report_cases import made_up, save_search

from attention import InputError
from automl.report import watch
from automl.report.watch import watch_report
from automl.search.result import SearchResult

PLOTS = ("plot_history", "plot_curves", "plot_placements", "plot_costs")


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches")
    save_search(folder, made_up(6))
    return folder


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends at the third look, on a machine without an MLflow."""
    left = iter((True, True, False))
    monkeypatch.setattr(watch, "is_running", lambda folder, location: next(left))


def reloads(page: Path) -> bool:
    return "location.reload" in page.read_text()


@pytest.mark.usefixtures("running")
def test_the_page_is_loaded_again_until_the_search_ends(
    searches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    page = tmp_path / "out" / "index.html"
    seen: list[bool] = []
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: seen.append(reloads(page)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    code, out, _ = cli("report", "--watch", "--out", str(page.parent), "--storage", str(searches))
    assert (code, seen) == (0, [True, True])
    first, second = out.splitlines()[:2]
    assert first == f"watching  {page}, updated every 15 s until the search ends"
    assert second.startswith(f"report    {page}")
    assert not reloads(page)


@pytest.mark.usefixtures("running")
def test_page_stays_after_the_command_is_stopped(
    searches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        assert reloads(tmp_path / "index.html")
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watch_report(storage=str(searches), out=str(tmp_path))
    assert not reloads(tmp_path / "index.html")


def test_not_too_often(searches: Path) -> None:
    with pytest.raises(InputError, match="--every must be 1 second or more"):
        watch_report(storage=str(searches), every=0.5)


@pytest.fixture
def result(searches: Path) -> SearchResult:
    """No more of one than figures are made from."""
    result = object.__new__(SearchResult)
    for name, value in (("folder", str(searches / "made-up")), ("search", "made-up")):
        object.__setattr__(result, name, value)
    return result


@pytest.mark.parametrize("name", PLOTS)
def test_a_result_draws_the_reports_figures(name: str, result: SearchResult) -> None:
    figure = getattr(result, name)()
    assert figure._repr_html_().startswith("<iframe srcdoc=")
    assert figure.svg().startswith("<svg")


def test_a_figure_that_there_is_nothing_for(result: SearchResult, tmp_path: Path) -> None:
    object.__setattr__(result, "folder", str(save_search(tmp_path, made_up(1, running=1))))
    with pytest.raises(InputError, match=r"of search 'made-up' cannot be drawn: No trial"):
        result.plot_costs()
