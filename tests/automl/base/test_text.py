"""Files of users that an editor saved in another encoding than UTF-8, of every kind that is read."""

import gzip
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.base.text import NotUtf8, read_text
from automl.data.pictures import is_image

LISTS = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "é"}]}
TEXTS = "tasks.language_modelling.data.documents"


def documents(module: Any, file: Path) -> list[str]:
    return [document.text.decode() for document in module.read_documents(module.find_text_files(file))]


def metric(module: Any, file: Path) -> float:
    return float(module._read_file(file, module.CommandTraining(metric="acé", metric_file=file.name)))


# The module, and a function of it and the file; the content, and what is read.
READERS: dict[str, tuple[str, Callable[[Any, Path], Any], str, Any]] = {
    "a.txt": (TEXTS, documents, "Café at nine.\n", ["Café at nine.\n"]),
    "a.jsonl": (TEXTS, documents, '{"text": "é"}\n{"text": "ü"}\n', ["é", "ü"]),
    "a.csv": ("data.csv_table", lambda m, f: m.read_table(f).rows, "a\né\n", [(2, {"a": "é"})]),
    "a.ts": ("tasks.sequence_classification.data.reading", lambda m, f: m.read_text(f), "@é\n", "@é\n"),
    "classes.txt": ("tasks.segmentation.data", lambda m, f: m.read_text(f), "é\n", "é\n"),
    "pairs.csv": ("tasks.stereo.data.pairs", lambda m, f: m.is_stereo(f), "left,right,disparity,é\n", True),
    "a.json": (
        "tasks.detection.data.annotations",
        lambda m, f: m.read_content(f),
        json.dumps(LISTS, ensure_ascii=False),
        LISTS,
    ),
    "query.json": ("tasks.code_retrieval.data.published", lambda m, f: m._read_json(f, list), '["é"]', ["é"]),
    "a.py": (
        "tasks.code_retrieval.data.source_folder",
        lambda m, f: r if isinstance(r := m.read_source_file(f, "a"), str) else len(r),
        "def f(a):\n    return a + 'é'\n",
        1,
    ),
    "options.yaml": ("cli.command", lambda m, f: m._mapping(f), "name: é\n", {"name": "é"}),
    "prompt.md": ("export.predict", lambda m, f: m._prompt(str(f)), "é", "é"),
    "metrics.csv": ("tasks.command.loop", metric, "acé\n0.5\n", 0.5),
    "val_annotations.txt": (
        "tasks.image_classification.data.folders",
        lambda m, f: list(m._read_validation_labels(f.parent)),
        "a.png\té\n",
        ["é"],
    ),
}


def read(name: str, file: Path, encoding: str) -> Any:
    module, reader, content, _ = READERS[name]
    file.write_bytes(content.encode(encoding))
    return reader(pytest.importorskip(f"automl.{module}"), file)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_names_the_encoding(name: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").touch()
    assert read(name, tmp_path / name, encoding) == READERS[name][-1]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    module, reader, *_ = READERS[name]
    os.mkfifo(tmp_path / name)
    assert not is_image(tmp_path / name)
    with suppress(InputError):
        reader(pytest.importorskip(f"automl.{module}"), tmp_path / name)


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"pairs.csv", "metrics.csv"}))
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_message_without_a_mark_names_the_encoding(name: str, encoding: str, tmp_path: Path) -> None:
    try:
        message = str(read(name, tmp_path / name, encoding))
    except (InputError, ValueError) as error:
        message = str(error)
    assert encoding in message


def test_a_folder_of_such_texts_names_the_encoding(tmp_path: Path) -> None:
    module = pytest.importorskip(f"automl.{TEXTS}")
    (tmp_path / "a.txt").write_bytes("日本語 text\n".encode("utf-16-le"))
    with pytest.raises(InputError, match="1 in utf-16-le without a byte order mark, which must be saved"):
        documents(module, tmp_path)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress('{"text": "é"}\n'.encode("utf-16")))
    assert documents(module, tmp_path) == ["é"]


def test_binary_content_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
    with pytest.raises(NotUtf8, match="a, line 2: it is not UTF-8 at byte 128; it is binary"):
        read_text(tmp_path / "a")
