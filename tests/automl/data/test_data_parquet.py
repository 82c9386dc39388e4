"""Images in parquet files, as datasets on the hub of Hugging Face have them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from automl.tasks.image_classification.data import open_image_records
from tests.helpers.automl_cases import Cli

CLASS = {"names": ["cat", "dog", "red fox"], "_type": "ClassLabel"}
LISTS = [[0], [1, 2], [0, 2]]


def save(file: Path, targets: list[Any], column: str, feature: Any = None) -> None:
    """Save an image for each target, with the features of a schema as `datasets` writes them."""
    random, images = np.random.default_rng(len(targets)), []
    for i in range(len(targets)):
        Image.fromarray(random.integers(0, 256, (8, 9, 3), dtype=np.uint8)).save(
            content := io.BytesIO(), "PNG"
        )
        images.append({"bytes": content.getvalue(), "path": f"{i}.png"})
    about = {"huggingface": json.dumps({"info": {"features": {column: feature}}})}
    table = pa.table({"id": range(len(targets)), "picture": images, column: targets})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(about), file, row_group_size=5)


@pytest.mark.parametrize(
    ("column", "feature", "targets", "kind", "shown"),
    [
        ("fine", CLASS, [0, 1, 2], "classes", "dog"),
        ("labels", {"feature": CLASS}, LISTS, "labels", "dog;red fox"),
        ("target", None, [0.5, 1.5, 2.5], "numbers", "1.5"),
    ],
)
def test_images_have_their_targets_and_splits(
    column: str, feature: Any, targets: list[Any], kind: str, shown: str, tmp_path: Path
) -> None:
    hidden = [*targets, *targets, -1 if feature is CLASS else None]
    save(tmp_path / "data/train-00000-of-00001.parquet", 8 * targets, column, feature)
    save(tmp_path / "data/test-00000-of-00001.parquet", hidden, column, feature)
    records = open_image_records("folder", path=tmp_path, size=24)
    assert records.file.target == kind
    if kind != "numbers":
        assert records.file.classes == ("cat", "dog", "red fox")
    assert len(records.whole["train"]) + len(records.whole["validation"]) == 24
    items = sorted(records.inputs("test"), key=lambda item: item.name)
    assert len(items) == 6, "one has no label"
    assert [item.shown or records.file.classes[item.label] for item in items[1::3]] == [shown, shown]
    assert all(item.name.endswith(".png") for item in items)
    assert open_image_records("folder", path=tmp_path, size=24).manifest() == records.manifest()


def test_a_damaged_file_and_images_without_a_target_are_refused(tmp_path: Path, cli: Cli) -> None:
    save(tmp_path / "train.parquet", [1] * 4, "other")
    code, _, err = cli("data", str(tmp_path))
    assert code == 2
    assert "has images and no target; call the column" in err
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    assert "is damaged, or differs from the others" in cli("data", str(tmp_path))[2]
