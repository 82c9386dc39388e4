"""Files of somebody else's: what looks at them runs nothing of theirs and reads nothing beside them."""

import json
from pathlib import Path

import onnx
import pytest
from confirm_cases import FOUND, fake_search
from onnx import TensorProto, helper
from PIL import Image

from attention import InputError
from automl.cli.remove import find_removable
from automl.cli.searches import list_searches
from automl.cli.status import read_status
from automl.confirm.compare import run_compare
from automl.export.chosen import choose
from automl.export.predict import run_predict
from automl.report import run_report
from automl.search.run import resume_search
from automl.storage.folder import SEARCH_FILE

HOSTILE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a search whose space is a file that leaves a mark when it is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # nothing answers
    folder = fake_search(tmp_path / "searches", FOUND)
    (folder / "space.py").write_text(HOSTILE)
    metadata = json.loads((folder / SEARCH_FILE).read_text())
    metadata["settings"]["space"] = f"{folder / 'space.py'}:draw"
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))
    return folder


def test_to_look_at_a_search_runs_nothing_of_it(search: Path) -> None:
    read_status()
    list_searches()
    run_report()
    with pytest.raises(InputError, match="has a checkpoint"):
        choose("mine", "searches")
    with pytest.raises(InputError):  # there is nothing to compare, which it must have looked for
        run_compare(["mine", "mine"])
    find_removable("mine")
    assert not (search / "ran").exists()


def test_to_go_on_with_a_search_runs_its_space(search: Path) -> None:
    """As docs/security.md says."""
    with pytest.raises(InputError):
        resume_search("mine")
    assert (search / "ran").exists()


@pytest.mark.parametrize("place", ["../secret", "{folder}/secret", "link"])
def test_a_model_reads_no_file_outside_of_its_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(10)))
    model = tmp_path / "model"
    model.mkdir()
    (model / "link").symlink_to(tmp_path / "secret")
    weights = onnx.TensorProto(
        name="w", data_type=TensorProto.UINT8, dims=[10], data_location=TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value=place.format(folder=tmp_path))
    ends = (
        helper.make_tensor_value_info(name, TensorProto.UINT8, [10]) for name in ("images", "probabilities")
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["probabilities"])], "g", [next(ends)], [next(ends)], [weights]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (model / "model.onnx").write_bytes(made.SerializeToString())
    metadata = {
        "labels": [str(i) for i in range(10)],
        "config": {"data": {"size": 32}},
        "graphs": {"model": {"inputs": [], "outputs": [], "details": {}}},
    }
    (model / "config.json").write_text(json.dumps(metadata))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="External data path"):
        run_predict(model, [tmp_path / "a.png"])
