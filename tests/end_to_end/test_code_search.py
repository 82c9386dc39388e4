"""A folder of source code, from what is in it to functions that are found in this project's own."""

import json
import re
from pathlib import Path

import pytest
from code_corpus import write_corpus

HERE = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path / "project")
    (tmp_path / "project" / "broken.py").write_text("def f(:\n")
    return tmp_path


def last(output):
    return json.loads(output.strip().splitlines()[-1])


def test_from_a_folder_of_code_to_functions_that_are_found(automl, folder):
    said = automl("data", "project")
    assert re.search(r"left out +1: broken\.py \(no Python", said)
    found = last(
        automl("search", "--data", "project", "--trials", 3, "--epochs", 3, "--concurrent", 1, "--json")
    )
    assert found["search"].startswith("project-")
    assert (found["trials"], found["errors"]) == (3, 0)
    assert found["best"]["config"]["task"] == "code-retrieval"
    assert found["best"]["metric"] == "mrr"

    verdict = last(automl("confirm", "--top", 1, "--seeds", 2, "--json"))
    assert verdict["complete"]
    page = automl("report", "--search", found["search"]).split()[1]
    content = Path(page).read_text()
    assert re.search(r"95 % CI 0\.\d+ to [01]\.\d+ over queries and 2 seeds", content)
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
