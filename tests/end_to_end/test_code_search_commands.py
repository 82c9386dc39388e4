"""A folder of source code, from what is in it to functions that are found in this project's own."""

import re
from pathlib import Path

import pytest

from tests.helpers import last
from tests.helpers.code_corpus import write_corpus

HERE = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path / "project")
    (tmp_path / "project" / "broken.py").write_text("def f(:\n")
    return tmp_path


def search(automl, trials):
    result = last(
        automl("search", "--data", "project", "--trials", trials, "--epochs", 1, "--concurrent", 1, "--json")
    )
    assert result["search"].startswith("project-")
    assert (result["trials"], result["errors"]) == (trials, 0)
    assert result["best"]["config"]["task"] == "code-retrieval"
    assert result["best"]["metric"] == "mrr"
    return result["search"]


@pytest.mark.slow("the commands are those of photographs")
def test_from_a_folder_of_code_to_functions_that_are_found(automl, folder):
    output = automl("data", "project")
    assert re.search(r"left out +1: broken\.py \(no Python", output)
    search(automl, 1)
    automl("export", "--baseline", "--out", "model")
    assert {"query.onnx", "code.onnx", "tokenizer.json"} <= {
        file.name for file in (folder / "model").iterdir()
    }
    (answer,) = last(
        automl("predict", "model", "count the log line", "--corpus", "project", "--top", 3, "--json")
    )
    assert len(answer["functions"]) == 3
    own = automl("predict", "model", "read a csv file", "--corpus", HERE / "automl" / "data")
    assert re.search(r"\d\.\d{3}  [\w/]+\.py:\d+  \w+", own)
