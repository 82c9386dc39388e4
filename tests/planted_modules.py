"""Files with the names of all modules, each of which says that it was run."""

import sys
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
        if name.isidentifier():
            code = f"with open({str(marker)!r}, 'a') as file:\n    print({name!r}, file=file)\n"
            (marker.parent / f"{name}.py").write_text(code)
    return marker
