"""Code search in a folder, and the index of the folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from automl.tasks.code_retrieval import search as code_index
from automl.tasks.code_retrieval.data.source_folder import MAX_BYTES, read_source_folder
from automl.tasks.code_retrieval.data.tokenizer import Tokenizer
from automl.tasks.code_retrieval.search import (
    CodeVectors,
    TextEncoder,
    find_nearest,
    run_code_search,
    write_vectors,
)
from tests.helpers.code_cases import CODE, LENGTHS, QUERIES, QUERY, TOKENIZER, export_search

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(str(export_search(tmp_path_factory.mktemp("export"))[2].folder))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.py").write_text(
        '"""A module."""\n\n'
        'def load(path):\n    """Read a csv file.\n\n    More."""\n'
        "    return list(csv.reader(open(path)))\n\n\n"
        "def first(rows):\n    return rows[0]\n"
    )
    (folder / "deep" / "b.py").write_text(
        "class Socket:\n    def close(self):\n        # of the server\n        self.socket.close()\n"
    )
    return folder


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the encoded code, in order."""
    texts: list[str] = []
    encode = TextEncoder.encode

    def spy(self: TextEncoder, batch: Any, *more: Any) -> np.ndarray:
        texts.extend(batch)
        return encode(self, batch, *more)

    monkeypatch.setattr(code_index.TextEncoder, "encode", spy)
    return texts


def find_functions(
    model: Path, corpus: Path, query: str = "read a csv file", **more: Any
) -> list[tuple[str, int, str]]:
    (answer,) = run_code_search(model, [query], corpus=corpus, **more).answers
    return [(hit.file, hit.line, hit.name) for hit in answer.hits]


def by_hand(model: Path, corpus: Path, query: str) -> dict[str, float]:
    """Return the cosine with each function, computed one by one by onnxruntime."""
    tokenizer = Tokenizer(TOKENIZER)

    def vector(graph: str, text: str) -> np.ndarray:
        tokens, _ = tokenizer.encode([text], LENGTHS[graph])
        (vector,) = onnxruntime.InferenceSession(str(model / f"{graph}.onnx")).run(None, {"tokens": tokens})[
            0
        ]
        return np.asarray(vector)

    return {
        function.location: float(vector(QUERY, query) @ vector(CODE, function.code))
        for function in read_source_folder(corpus).functions
    }


@pytest.mark.parametrize("query", QUERIES)
def test_nearest_functions_come_first(query: str, model: Path, corpus: Path) -> None:
    (answer,) = run_code_search(model, [query], corpus=corpus).answers
    expected = by_hand(model, corpus, query)
    assert {f"{hit.file}:{hit.line}": pytest.approx(hit.score, abs=1e-4) for hit in answer.hits} == expected
    assert [f"{hit.file}:{hit.line}" for hit in answer.hits] == sorted(expected, key=lambda p: -expected[p])
    assert {hit.name: hit.summary for hit in answer.hits} == {
        "load": "Read a csv file.", "first": "", "Socket.close": "",
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 7, 50, 60])
def test_best_of_many_functions(count: int, tmp_path: Path) -> None:
    """Compare with sorting all functions; the first of equals comes first."""
    draw = np.random.default_rng(0)
    vectors = draw.integers(-2, 3, (50, 4)).astype(np.float32)
    vectors[~vectors.any(axis=1)] = 1
    write_vectors(tmp_path / "a", vectors)
    queries = draw.normal(size=(3, 4)).astype(np.float32)
    rows, scores = find_nearest(CodeVectors(tmp_path / "a").vectors, queries, count)
    for query, some, values in zip(queries, rows, scores, strict=True):
        expected = np.sort(vectors @ query)[::-1][:count]
        np.testing.assert_allclose(values, expected, atol=1e-6)
        np.testing.assert_allclose(vectors[some] @ query, expected, atol=1e-6)
        assert len(set(some.tolist())) == min(count, 50)


def test_index_is_reused(model: Path, corpus: Path, encoded: list[str], capfd: Any) -> None:
    first = find_functions(model, corpus)
    assert "encoded 3 functions into" in capfd.readouterr().err
    encoded.clear()
    assert find_functions(model, corpus) == first
    assert encoded == ["read a csv file"]
    assert capfd.readouterr().err == ""
    (corpus / "c.py").write_text("def get_http_server(port):\n    return HTTPServer(port)\n")
    assert ("c.py", 1, "get_http_server") in find_functions(model, corpus)
    assert len(encoded) == 1 + 4 + 1


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def zeros(file: Path) -> None:
    """Zero a page of vectors, as after a crash."""
    content = file.read_bytes()
    vector = CodeVectors(file).vectors[1].tobytes()
    assert content.count(vector) == 1
    file.write_bytes(content.replace(vector, bytes(len(vector))))


@pytest.mark.parametrize("damage", [cut, zeros])
def test_damage_rebuilds(
    damage: Callable[[Path], None], model: Path, corpus: Path, cache: Path, capfd: Any
) -> None:
    first = find_functions(model, corpus)
    (file,) = cache.glob("*.arrow")
    damage(file)
    capfd.readouterr()
    assert find_functions(model, corpus) == first
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"{file} was damaged and is built again"
    assert lines[1].startswith("encoded 3 functions")
    assert CodeVectors.is_sound(file)


def test_unreadable_files_are_named(model: Path, corpus: Path, cli: Cli) -> None:
    (corpus / "latin.py").write_bytes("def f(x):\n    return 'é'\n".encode("latin-1"))
    (corpus / "broken.py").write_text("def f(:\n")
    (corpus / "large.py").write_bytes(b"#" * (50 * MAX_BYTES))
    (corpus / "gone.py").symlink_to(corpus / "nothing.py")
    os.mkfifo(corpus / "pipe.py")
    for _ in range(2):
        code, _, err = cli("predict", str(model), "read", "--corpus", str(corpus))
        assert code == 0, err
        (line,) = [line for line in err.splitlines() if line.startswith("skipped: ")]
        assert line.endswith(", ... (5 in all)")
    skipped = run_code_search(model, ["read"], corpus=corpus).skipped
    assert skipped.keys() == {"latin.py", "broken.py", "large.py", "gone.py", "pipe.py"}


def test_output_of_the_command(model: Path, corpus: Path, cli: Cli) -> None:
    arguments = ["predict", str(model), *QUERIES[:2], "--corpus", str(corpus), "--top", "2"]
    code, out, err = cli(*arguments)
    assert code == 0, err
    lines = out.splitlines()
    assert [lines[0], lines[3]] == ["read a csv file:", "close the socket:"]
    assert len(lines) == 6
    code, out, err = cli(*arguments, "--json")
    answers = json.loads(out)
    assert [answer["query"] for answer in answers] == QUERIES[:2]
    assert err.splitlines() == lines
    for answer in answers:
        assert [set(hit) for hit in answer["functions"]] == [{"score", "file", "line", "name", "summary"}] * 2
        first, second = answer["functions"]
        assert first["score"] >= second["score"]
