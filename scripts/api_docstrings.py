"""Check the docstrings of the modules that define what `automl` exports with ruff's pydocstyle rules."""

import subprocess
import sys
from pathlib import Path

import automl

# The docstring of a class describes its operators and the arguments of `__init__`.
RULES = ("--select=D", "--ignore=D105,D107")


def list_files() -> list[str]:
    """Return the files that define the exported names."""
    modules = {getattr(automl, name).__module__ for name in automl.__all__}
    return sorted(str(sys.modules[module].__file__) for module in modules)


def main() -> int:
    """Run ruff and return its exit code."""
    ruff = Path(sys.executable).with_name("ruff")
    return subprocess.run([ruff, "check", *RULES, *list_files()], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
