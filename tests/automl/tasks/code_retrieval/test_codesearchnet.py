"""Test files in CodeSearchNet's layout."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.tasks.code_retrieval.data import is_code, open_corpus
from automl.tasks.code_retrieval.data.published import compute_token_key

pytestmark = pytest.mark.usefixtures("cache")


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
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged"):
        is_code(archive)


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


def test_missing_or_truncated_files_are_rejected(folder: Path) -> None:
    file = folder / "valid" / "go_valid_0.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"go_valid_0\.jsonl\.gz cannot be read .*; download it again"):
        open_corpus(folder)
    file.unlink()
    with pytest.raises(InputError, match="has no valid/"):
        open_corpus(folder)


@pytest.mark.parametrize(
    ("other", "same"), [("b . c ( b , 'y' , 2.5 )", True), ("b . c ( c , 'y' , 2.5 )", False), ("b", False)]
)
def test_token_key_ignores_names_and_constants(other: str, same: bool) -> None:
    assert (
        compute_token_key(other.split())
        == compute_token_key(["x", ".", "f", "(", "x", ",", "'z'", ",", "1", ")"])
    ) == same
