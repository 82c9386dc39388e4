"""Warnings that the terminal does not show are in the log."""

import warnings
from pathlib import Path

import pytest

from automl.storage.logs import capture_library_logs


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, UserWarning])
def test_warnings_that_the_command_line_hides_are_in_the_log(category: type[Warning], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category)  # as automl.cli.main.main does
        filters = list(warnings.filters)
        with capture_library_logs(log):
            warnings.warn("a value is out of range", category, stacklevel=1)
        assert warnings.filters == filters
    assert f"{category.__name__}: a value is out of range" in log.read_text()
