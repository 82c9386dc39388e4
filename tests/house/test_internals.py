"""Ray, Optuna and PyTorch still have the private names that this project uses, in one file each."""

import inspect
import pkgutil
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers.private_names import OPTUNA, RAY, TORCH

ROOT = Path(__file__).parents[2]
FILES = {
    "Ray": ("cluster/ray_internals.py", RAY),
    "Optuna": ("search/optuna_internals.py", OPTUNA),
    "PyTorch": ("backbones/torch_internals.py", TORCH),
}


def find_difference(name, parameters=None, attributes=(), constants=(), reader=None):
    """Return how the library differs from a row of its table, or None."""
    try:
        value = pkgutil.resolve_name(name)
        if parameters is not None and list(inspect.signature(value).parameters) != parameters:
            return f"its parameters are {', '.join(inspect.signature(value).parameters)}"
        for attribute in attributes:
            if attribute not in value.__init__.__code__.co_names:
                return f"it has no {attribute}"
        for constant in constants:
            if constant not in value.__code__.co_consts:
                return f"it does not name {constant!r}"
        looked_up = name.replace(":", ".").rpartition(".")[2]
        if reader and looked_up not in inspect.unwrap(pkgutil.resolve_name(reader)).__code__.co_names:
            return f"{reader} does not look it up"
    except (ImportError, AttributeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, (_, used) in FILES.items() for name in used]
)
def test_library_has_the_private_names_in_use(library, name):
    file, used = FILES[library]
    wrong = find_difference(name, **used[name])
    assert wrong is None, f"{library} changed {name}: see {file} ({wrong})"


@pytest.mark.parametrize(
    ("wrong", "used"),
    [
        ("has no attribute 'no_such'", {"name": "pathlib:Path.no_such"}),
        ("No module named 'no_such'", {"name": "no_such:thing"}),
        ("its parameters are split_command", {"name": "shlex:join", "parameters": ["words"]}),
        ("it has no no_such", {"name": "tempfile:TemporaryDirectory", "attributes": ["no_such"]}),
        ("does not name 'no_such'", {"name": "shlex:join", "constants": ["no_such"]}),
        ("shlex:join does not look it up", {"name": "shlex:deque", "reader": "shlex:join"}),
    ],
)
def test_differences_are_reported(wrong, used):
    assert wrong in find_difference(**used)


def test_ray_is_limited_to_the_tested_minor_version():
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = (line for line in requirements if line.startswith("ray["))
    major, minor = map(int, version("ray").split(".")[:2])
    assert bound.endswith(f"<{major}.{minor + 1}")


# The brackets prevent a match with this file.
OF_RAY = r"ray\.[a-z_.]*_(internal|private)|class[_]cache|tune[_]controller"
OF_TORCH = r"torch\.([a-z_]+\.)*_[a-z]|from torch\._|import _BatchNorm"
OF_OPTUNA = r"\._(storage|study_id|trial_id|backend|contains|suggest)\b"


@pytest.mark.parametrize(
    ("library", "pattern", "where"),
    [
        ("Ray", OF_RAY, [".", ":!tests/helpers/private_names.py"]),
        ("PyTorch", OF_TORCH, ["attention/", "backbones/", "search/", "automl/"]),
        ("Optuna", OF_OPTUNA, ["search/", "automl/search/", "automl/callbacks/", "benchmarks/"]),
    ],
)
def test_private_names_of_a_library_are_used_in_one_file(library, pattern, where):
    result = subprocess.run(
        ["git", "grep", "-lE", pattern, "--", *where], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.split() == [FILES[library][0]]


def test_each_use_of_ray_states_its_reason():
    """The function for benchmarks, at the end of the file, needs no reason."""
    text = (ROOT / FILES["Ray"][0]).read_text().partition("# -- nodes and actors")[2]
    product = text.partition("# -- for benchmarks")[0]
    functions = re.findall(r'^def (\w+)\(.*?"""(.*?)"""', product, re.DOTALL | re.MULTILINE)
    assert len(functions) == product.count("\ndef ")
    reasons = {name: " ".join(docstring.split()) for name, docstring in functions}
    assert [name for name, text in reasons.items() if not re.search("Without it:|Why: see", text)] == []
