"""That Ray still has what `cluster/ray_internals.py` uses of it, and that nothing else uses more."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from cluster.ray_internals import Internal, changes

ROOT = Path(__file__).parents[2]


def test_ray_has_what_is_used_of_it():
    assert not changes(), "\n".join(changes())


@pytest.mark.parametrize(
    ("internal", "wrong"),
    [
        (Internal("ray._private.state:state.get_drained"), "has no attribute 'get_drained'"),
        (Internal("ray.tune.no_such_module:thing"), "No module named 'ray.tune.no_such_module'"),
        (Internal("ray.tune.tune:run", ("trainable",)), "its parameters are run_or_experiment"),
        (Internal("ray.tune.tune:run", reader="ray.tune.tune:run_experiments"), None),
        (Internal("ray.tune.tune:logger", reader="ray.tune.tune:_check_mixin"), "does not look it up"),
        (Internal("ray.tune.experiment.trial:Trial", attributes=("no_such",)), "it has no no_such"),
    ],
)
def test_a_change_is_told_with_the_place_to_look_at(internal, wrong):
    if wrong is None:
        assert not changes((internal,))
        return
    (message,) = changes((internal,))
    assert message.startswith(f"Ray changed {internal.name}: see cluster/ray_internals.py (")
    assert wrong in message


def test_ray_is_bound_to_the_minor_version_that_was_tested():
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = (line for line in requirements if line.startswith("ray["))
    major, minor = map(int, version("ray").split(".")[:2])
    assert bound.endswith(f"<{major}.{minor + 1}")


def test_no_other_file_uses_what_ray_keeps_to_itself():
    pattern = r"ray\.[a-z_.]*_(internal|private)|class_cache|tune_controller"
    found = subprocess.run(
        ["git", "grep", "-lE", pattern, "--", ":!tests/cluster/test_ray_internals.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == ["cluster/ray_internals.py"]


def test_each_use_says_why_and_what_it_is_worth():
    """The docstrings of the product's uses; what tests and benchmarks use comes after them."""
    text = (ROOT / "cluster" / "ray_internals.py").read_text().partition("# -- nodes and actors")[2]
    product = text.partition("# -- for tests and benchmarks")[0]
    for name, doc in re.findall(r'\ndef (\w+)\([^"]*?(?:"Trial"\))?[^"]*"""(.*?)"""', product, re.DOTALL):
        assert "Without it:" in doc or "Why: see" in doc, name
