"""Files with the names of all modules, each of which says that it was run."""

import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

OWN = "automl"  # `python -m automl` runs a user's folder or file of that name, which no program can prevent


def plant_modules(marker: Path) -> Path:
    """Write a file for each module of Python, of the installed packages and of this process.

    They are beside the file `marker`, which exists once one of them has run. Return it.
    """
    marker.parent.mkdir(exist_ok=True, parents=True)
    loaded = {name.partition(".")[0] for name in sys.modules}
    for name in {*sys.stdlib_module_names, *packages_distributions(), *loaded} - {OWN}:
        if name.isidentifier() and _is_file(name):
            code = f"with open({str(marker)!r}, 'a') as file:\n    print({name!r}, file=file)\n"
            (marker.parent / f"{name}.py").write_text(code)
    return marker


def _is_file(name: str) -> bool:
    """Return whether the path has it. A library may load its own copy of another, by a finder of its own."""
    spec = PathFinder.find_spec(name)
    return spec is not None and spec.origin is not None
