"""Functions of a notebook or a script by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from automl.base import live_objects, loading
from automl.base.errors import InputError

CELLS = """
import sys
from functools import cache

SCALE = 3

@cache
def table():
    return [SCALE]

def train(value):
    return table()[0] * value
"""


def run(*lines: str) -> str:
    """Run lines after the cells as a process without a file, as a notebook is."""
    code = CELLS + "\n".join(("from automl.base import live_objects, loading", *lines))
    result = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_function_of_a_notebook_travels_with_what_it_uses(tmp_path: Path) -> None:
    file = tmp_path / "packed"
    printed = run(
        "name = live_objects.name_of(train)",
        f"open({str(file)!r}, 'wb').write(loading.code(name)[name])",
        "print(name, loading.hash_code(name))",
    )
    name, digest = printed.split()
    assert name == "__main__:train"
    loading.receive({name: file.read_bytes()})
    try:
        assert loading.load_object("training function", "function", name, [])(2) == 6
        assert loading.hash_code(name) == digest
    finally:
        live_objects._received.clear()


def test_hash_changes_with_the_function() -> None:
    hashes = "print(loading.hash_code('__main__:train'))"
    assert len(set(run(hashes, "train = lambda value: value", hashes).split())) == 2
    assert run(hashes) == run(hashes)


def test_hash_changes_with_what_the_function_uses() -> None:
    hashes = "print(loading.hash_code('__main__:train'))"
    changed = "table = cache(lambda: [4])"
    assert len(set(run(hashes, changed, hashes).split())) == 2


def test_function_of_a_file_has_the_name_of_its_file() -> None:
    assert live_objects.name_of(run) == f"{Path(__file__).resolve()}:run"
    assert live_objects.name_of(loading.load_file) == "automl.base.loading:load_file"


def test_missing_and_nested_functions_are_refused() -> None:
    with pytest.raises(InputError, match="at the top level of its file or notebook"):
        live_objects.name_of(lambda trial: None)
    with pytest.raises(InputError, match="run the cell that defines it"):
        loading.code("__main__:absent")


def test_function_is_packed_once_for_a_search() -> None:
    freeze = "loading.freeze_code('__main__:train')"
    lines = (freeze, "code = loading.code('__main__:train')", "SCALE = 5")
    assert run(*lines, "print(loading.code('__main__:train') is code)") == "True"
    assert run(*lines, freeze, "print(loading.code('__main__:train') == code)") == "False"
