"""Test files in CodeSearchNet's layout."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.tasks.code_retrieval.data import is_code, open_corpus

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


def test_reason_for_leaving_out_lines_is_reported(folder: Path) -> None:
    for file in folder.glob("test/*"):
        file.unlink()
    (folder / "test" / "a.jsonl").write_text('{"func_name": "a", "code": "def f(): 1"}\n' * 3)
    with pytest.raises(
        InputError, match=r"left out: test/a.jsonl:1 \(.*needs docstring or func_documentation"
    ):
        open_corpus(folder)


def test_photographs_with_a_script_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "rename.py").write_text("def f(): return 1")
    assert is_code(tmp_path)
    for i in range(2):
        (tmp_path / f"{i}.JPG").touch()
    assert not is_code(tmp_path)
