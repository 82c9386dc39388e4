"""Files with the names of all modules, each of which says that it was run."""

import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

OWN = "automl"  # `python -m automl` runs a user's folder or file of that name, which no program can prevent


def plant_modules(marker: Path) -> Path:
    """Write a file for each module of Python, of the installed packages and of this process.

    They are beside the file `marker`, which exists once one of them has run. Return it. Modules of other
    systems and packages without an `__init__.py` are left out: they do not come before a file anywhere on
    the path.
    """
    marker.parent.mkdir(exist_ok=True, parents=True)
    loaded = {name.partition(".")[0] for name in sys.modules}
    for name in {*sys.stdlib_module_names, *packages_distributions(), *loaded} - {OWN}:
        if name.isidentifier() and _is_file(name):
            code = f"with open({str(marker)!r}, 'a') as file:\n    print({name!r}, file=file)\n"
            (marker.parent / f"{name}.py").write_text(code)
    return marker


def _is_file(name: str) -> bool:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a program has put it into `sys.modules`
        return True
    return spec is not None and spec.origin is not None
