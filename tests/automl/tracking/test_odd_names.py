"""Folders whose names have characters with a meaning in addresses, in each address that contains a path."""

import os
import shutil
from pathlib import Path

import mlflow
import pytest
import torch

from automl.storage.storage import Storage, local_path
from automl.task.initial import choose_weights
from automl.tracking.client import artifact_location, open_client, tag_filter

NAMES = [
    "My%20Project", "100% cotton", "C# net", "what?", "x%", "%3F", "a&b=c+d;e", "it's \"é\"", "[a]{b}~\\x",
    "new\nline ' \" $(touch pwned)",
]  # fmt: skip
EVERY = "100% of C#?&%20+ é;'\n"


@pytest.mark.parametrize("name", [*NAMES, EVERY])
@pytest.mark.parametrize("address", [None, "sqlite:////{quoted}/mlflow.db"])
def test_mlflow_in_a_folder(
    name: str, address: str | None, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run and its artifacts are written and found, and nothing is created beside them."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(tmp_path if address else folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if address:
        quoted = str(folder)[1:].replace("%", "%25").replace("?", "%3F")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.format(quoted=quoted))
    if name != EVERY or address or not os.environ.get("AUTOML_LONG"):  # creating the tables takes seconds
        shutil.copy(empty_store, folder / "mlflow.db")
    client = open_client(create=True)
    run = client.create_run(client.create_experiment(name.strip(), artifact_location(name.strip())))
    client.log_text(run.info.run_id, "content", "a.txt")
    written = open_client().search_runs([run.info.experiment_id])[0]
    assert mlflow.artifacts.load_text(f"{written.info.artifact_uri}/a.txt") == "content"
    assert [file.relative_to(folder).parts[:2] for file in tmp_path.rglob("a.txt")] == [
        ("mlruns", name.strip())
    ]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_paths_and_addresses_of_files(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    storage = Storage(str(folder))
    assert storage.local == Storage(folder.as_uri()).local == folder
    assert local_path(str(folder)) == local_path(folder.as_uri()) == folder
    assert ((storage / "a b").local, storage.parent.local, storage.name) == (folder / "a b", tmp_path, name)
    folder.mkdir()
    torch.save({"weight": torch.ones(1)}, folder / f"{name}.pt")
    file, key = choose_weights(str(folder / f"{name}.pt"))
    assert file == str(folder / f"{name}.pt")
    assert choose_weights((folder / f"{name}.pt").as_uri())[1] == key


def test_a_filter_has_no_quotes_in_values() -> None:
    shown = tag_filter({"a": 'say "x"', "b": "it's"})
    assert shown == "tags.`a` = 'say \"x\"' and tags.`b` LIKE 'it_s'"
