"""Texts of users, in their encodings, and amounts as text."""

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
from automl.base.units import (
    decimals,
    format_count,
    format_duration,
    parse_count,
    parse_seconds,
    parse_size,
    pluralize,
)
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


def test_texts_of_another_encoding_are_named(tmp_path: Path) -> None:
    module = pytest.importorskip(f"automl.{TEXTS}")
    (tmp_path / "a.txt").write_bytes("日本語 text\n".encode("utf-16-le"))
    with pytest.raises(InputError, match="1 in utf-16-le without a byte order mark, which must be saved"):
        documents(module, tmp_path)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress('{"text": "é"}\n'.encode("utf-16")))
    assert documents(module, tmp_path) == ["é"]
    (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
    with pytest.raises(NotUtf8, match="a, line 2: it is not UTF-8 at byte 128; it is binary"):
        read_text(tmp_path / "a")


def test_amounts_are_read_and_shown() -> None:
    seconds = {"90s": 90, "30m": 1800, "2h": 7200, "1h30m": 5400, "1d": 86400, "1.5h": 5400, "1m1s": 61}
    assert {text: parse_seconds(text, "--budget") for text in seconds} == seconds
    counts = {"5000000": 5e6, "5m": 5e6, "1.8G": 1.8e9, " 3 T ": 3e12}
    assert {text: parse_count(text, "--max-params") for text in counts} == pytest.approx(counts)
    sizes = {"800MB": 8e8, "2GB": 2e9, "2 gb": 2e9, "1.5GiB": 1.5 * 2**30, "1024": 1024, "1KiB": 1024}
    assert {text: parse_size(text, "--max-memory") for text in sizes} == pytest.approx(sizes)
    durations = {0.4: "0s", 59.6: "1m00s", 200: "3m20s", 3600: "1h00m", 90_000: "25h00m"}
    assert {value: format_duration(value) for value in durations} == durations
    counts = {7: "7", 999.7: "1k", 16_400: "16.4k", 3.5e12: "3.5T", 0.25: "0.25"}
    assert {value: format_count(value) for value in counts} == counts
    assert [pluralize(n, "epochs") for n in (0, 1, 1.5)] == ["0 epochs", "1 epoch", "1.5 epochs"]


@pytest.mark.parametrize(
    "text", ["", "banana", "90", "0s", "0h0m", "-5m", "1h 30m", "h", "1.h", "2x", "1e3s", "2H", "30mm"]
)
def test_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_seconds(text, "--budget")
    assert str(error.value) == f"--budget must be a time such as 90s, 30m, 2h or 1h30m; got {text!r}"


@pytest.mark.parametrize(
    "text", ["", "lots", "0", "0M", "-1", "5Q", "M", "1e6", "5,000", "nan", "inf", "1.2.3"]
)
def test_invalid_number_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_count(text, "--max-macs")
    expected = f"--max-macs must be a number such as 500000, 5M or 1.8G, above 0; got {text!r}"
    assert str(error.value) == expected
    size = r"--max-memory must be a size such as 800MB, 2GB or 1\.5GiB, above 0"
    with pytest.raises(InputError, match=size):
        parse_size(text, "--max-memory")


@pytest.mark.parametrize(
    ("margin", "expected"),
    [(0.5, 2), (5.0, 2), (0.1, 2), (0.3, 2), (0.05, 3), (0.01, 3), (0.002, 4), (0.001, 4), (0.0, 3)],
)
def test_decimals_show_a_tenth_of_the_margin(margin: float, expected: int) -> None:
    assert decimals(margin) == expected
    assert not margin or float(f"{margin / 10:.{decimals(margin)}f}") > 0
