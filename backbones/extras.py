"""Packages that one task alone needs: an extra installs them, and they are imported when they are used."""

from importlib import import_module
from typing import Any

from attention import InputError

EXTRAS = {  # and what they are for
    "code": "code search",
    "detection": "object detection",
    "segmentation": "a backbone smp:NAME",
}


def optional(module: str, extra: str) -> Any:
    """Return what stands for `module`, and imports it when an attribute is asked for.

    That raises InputError, with the command that installs the extra, where a package is missing.
    """
    return _Optional(module, extra)


class _Optional:
    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by tools that look through a module
            raise AttributeError(name)
        try:
            return getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            package = (error.name or self._module).partition(".")[0]
            raise InputError(
                f"{EXTRAS[self._extra]} needs the package {package}, which is not installed. Run: "
                f'pip install "attention-automl[{self._extra}]"'
            ) from error
