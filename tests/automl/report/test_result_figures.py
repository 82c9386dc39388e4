"""The figures of a search's result."""

from pathlib import Path

import pytest
from report_cases import made_up, save_search

from attention import InputError
from automl.search.result import SearchResult

PLOTS = ("plot_curves", "plot_placements", "plot_costs")


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches")
    save_search(folder, made_up(6))
    return folder


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
