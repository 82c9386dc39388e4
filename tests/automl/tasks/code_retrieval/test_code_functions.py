"""Test functions of Python files: reading, searched code, files left out."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from automl.tasks.code_retrieval.data import is_code, open_corpus
from automl.tasks.code_retrieval.data.dataset import iterate_vocabulary_texts
from automl.tasks.code_retrieval.data.python import compute_shape_key, parse_python
from automl.tasks.code_retrieval.data.source_folder import MAX_BYTES, read_source_folder

pytestmark = pytest.mark.usefixtures("cache")


SOURCE = '''
"""A module."""
import os


class Reader:
    """A class."""

    # Close all the open files now.
    def close(self):
        """Close all the
        open files now.

        The rest is not part of a query.
        """
        # close all the open files now
        def inner():
            """Close all the open files now."""
            return os.close(self.number)  # close all the open files now
        "close all the open files now"
        return inner()

    def nothing(self):
        """Nothing."""
        ...


async def read(path): return await path.read()
'''


def test_functions_have_their_lines_and_no_docstrings_or_comments() -> None:
    close, read = parse_python(SOURCE, "a.py")
    assert (close.name, close.location, close.query) == (
        "Reader.close",
        "a.py:10",
        "Close all the open files now.",
    )
    assert (read.name, read.docstring) == ("read", "")
    assert read.code == "async def read(path):\n    return await path.read()"
    close, _ = parse_python(SOURCE, "a.py")
    assert "open files" not in close.code.replace("'close all the open files now'", "")
    assert "return inner()" in close.code


def test_key_ignores_names_and_constants() -> None:
    original = "def a(x, y=1):\n    return x.get(y, 'z') + 1"
    alike, other = "def b(k, v=2):\n    return k.get(v, 'x') + 3", original.replace("+", "-")
    assert compute_shape_key(original) == compute_shape_key(alike) != compute_shape_key(other)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Write thirty functions of different shapes, each twice under other names, and odd files."""
    for i in range(30):
        body = "\n".join(f"    x = x {'+-*/%'[(i >> k) % 5]} {k}" for k in range(i % 6 + 1))
        (tmp_path / f"f{i}.py").write_text(f'def f{i}(x):\n    """Do number {i}."""\n{body}\n    return x')
        (tmp_path / f"g{i}.py").write_text(
            f'def g{i}(y):\n    """As {i}."""\n{body.replace("x", "y")}\n    return y'
        )
    (tmp_path / "latin.py").write_bytes("name = 'Ü'".encode("latin1"))
    (tmp_path / "old.py").write_text("print 'hello'")
    (tmp_path / "null.py").write_bytes(b"a = 1\0")
    (tmp_path / "._f0.py").write_bytes(b"\0\5\26\7 of macOS")
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(50 * MAX_BYTES)
    (tmp_path / "empty.py").touch()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "theirs.py").write_text("def theirs(): return 1")
    return tmp_path


def test_a_folder_is_read(code: Path) -> None:
    result = read_source_folder(code)
    assert len(result.functions) == 60
    assert result.skipped["large.py"] == "50MB; files above 1MB are not read"
    assert result.skipped["latin.py"].startswith("not UTF-8 at byte 8; save it")
    assert result.skipped["old.py"].startswith("no Python: Missing parentheses")
    assert set(result.skipped) == {"large.py", "latin.py", "old.py", "null.py"}


def test_near_duplicates_are_in_one_split_and_training_functions_form_the_vocabulary(code: Path) -> None:
    corpus = open_corpus(code)
    texts = set(iterate_vocabulary_texts(corpus))
    train = [f for f, split in zip(corpus.functions, corpus.split, strict=True) if split == 0]
    held_out = [f for f, split in zip(corpus.functions, corpus.split, strict=True) if split != 0]
    assert texts == {f.code for f in train} | {f.query for f in train}
    assert held_out
    assert not {f.code for f in held_out} & texts
    split = {function.name: part for function, part in zip(corpus.functions, corpus.split, strict=True)}
    assert len(set(split.values())) == 3
    assert all(split[f"f{i}"] == split[f"g{i}"] for i in range(30))
    (code / "a new one.py").write_text('def new(x):\n    """New."""\n    return [x for y in x if y]')
    more = open_corpus(code)
    assert split.items() <= dict(zip([f.name for f in more.functions], more.split, strict=True)).items()


@pytest.fixture
def cosqa(tmp_path: Path) -> Path:
    bodies = [f'def f{i}(x):\n    """Text {i}."""\n    return x{" + x" * i}' for i in range(40)]
    corpus = {body: number for number, body in enumerate([*bodies, "print 'old'"])}
    (tmp_path / "code_idx_map.txt").write_text(json.dumps(corpus))
    for part, numbers in (("dev", [1, 2, 40]), ("test", [3, 4])):
        asked = [{"doc": f"find {i}", "retrieval_idx": i} for i in numbers]
        (tmp_path / f"cosqa-retrieval-{part}-500.json").write_text(json.dumps(asked))
    return tmp_path


def test_real_queries_are_in_the_split_of_their_answers(cosqa: Path) -> None:
    corpus = open_corpus(cosqa)
    assert list(corpus.skipped) == ["code_idx_map.txt#40"]
    assert [query.text for query in corpus.queries["validation"]] == ["find 1", "find 2"]
    for part, asked in corpus.queries.items():
        for query in asked:
            assert corpus.functions[query.answer].name == f"f{query.text.split()[1]}"
            assert query.answer in corpus.documented_rows(part)


def entry(name: str, code: str, **more: Any) -> dict[str, Any]:
    return {
        "func_name": name,
        "code_tokens": code.split(),
        "docstring": f"Do {name}.\n\nMore of it.",
        "path": "src/a.go#L12",
        "language": "go",
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    functions = {
        "train": [entry("a", "f ( x ) + 1"), entry("b", "g ( y ) + 'b'"), entry("copy", "h ( z ) - 2")],
        "valid": [entry("c", "if ( x ) y"), entry("d", "x [ 0 ]")],
        "test": [entry("e", "k ( v ) - 30"), entry("f", "x / x")],
    }
    for split, entries in functions.items():
        (tmp_path / "go" / split).mkdir(parents=True)
        content = "".join(json.dumps(function) + "\n" for function in entries)
        (tmp_path / "go" / split / f"go_{split}_0.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    return tmp_path / "go"


def test_functions_keep_their_splits_and_copies_leave_train(folder: Path) -> None:
    assert is_code(folder)
    (folder / "train" / "._go_train_0.jsonl.gz").write_bytes(b"of macOS")
    corpus = open_corpus(folder)
    names = {
        split: {corpus.functions[i].name for i in corpus.documented_rows(split)}
        for split in ("train", "test")
    }
    assert names == {"train": {"a", "b"}, "test": {"e", "f"}}
    assert corpus.skipped == {"train": "1 near duplicates of functions in validation and test"}
    function = next(function for function in corpus.functions if function.name == "a")
    assert (function.location, function.code, function.query) == ("src/a.go:12", "f ( x ) + 1", "Do a.")


def test_archive_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    packed = tmp_path / "packed" / "go" / "final"
    packed.mkdir(parents=True)
    shutil.copytree(folder, packed / "jsonl")
    archive = Path(shutil.make_archive(str(tmp_path / "go"), "zip", tmp_path / "packed"))
    assert is_code(archive)
    assert len(open_corpus(archive).functions) == len(open_corpus(folder).functions)


@pytest.mark.parametrize("line", ["{", "[]", "[" * 100_000, '{"func_name": "x"}', json.dumps(entry("x", ""))])
def test_invalid_line_is_left_out_and_reported(line: str, folder: Path) -> None:
    (folder / "test" / "more.jsonl").write_text(line + "\n" + json.dumps(entry("g", "x ** 2")) + "\n")
    corpus = open_corpus(folder)
    assert corpus.skipped["test/more.jsonl:1"].startswith("no function in JSON")
    assert "g" in {function.name for function in corpus.functions}


def hugging_face_entry(name: str, code: str, **more: Any) -> dict[str, Any]:
    return {
        "func_name": name,
        "func_code_string": f'def {name}(x, y):\n    """Do {name}."""\n    return {code}  # done\n',
        "func_code_tokens": code.split(),
        "func_documentation_string": f"Do {name}.",
        "func_path_in_repository": "src/a.py",
        "func_code_url": "https://github.com/a/b/blob/0/src/a.py#L12-L20",
        "language": "python",
        **more,
    }


@pytest.mark.parametrize("more", [{}, {"func_code_tokens": None}], ids=["tokens", "code"])
def test_columns_may_have_the_names_of_hugging_face(more: dict[str, Any], folder: Path) -> None:
    line = json.dumps(hugging_face_entry("g", "x ** 2 - y", **more))
    (folder / "test" / "more.jsonl").write_text(f"\n{line}\n\n")
    (folder / "valid").rename(folder / "validation")
    corpus = open_corpus(folder)
    assert not [name for name in corpus.skipped if "more" in name]
    function = next(function for function in corpus.functions if function.name == "g")
    assert (function.location, function.query) == ("src/a.py:12", "Do g.")
    assert "x ** 2 - y" in function.code
    assert "Do g" not in function.code
    assert "done" not in function.code


def test_photographs_with_a_script_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "rename.py").write_text("def f(): return 1")
    assert is_code(tmp_path)
    for i in range(2):
        (tmp_path / f"{i}.JPG").touch()
    assert not is_code(tmp_path)
