"""Packages that only one task needs. An extra installs them, and they are imported on first use."""

from importlib import import_module
from typing import Any

from automl.base.errors import InputError

EXTRAS = {  # Purpose of each extra, for messages.
    "code": "code search",
    "detection": "object detection",
    "hf": "a backbone hf:FOLDER",
    "segmentation": "a backbone smp:NAME",
    "text": "a vocabulary of sub-words",
}


def optional(module: str, extra: str) -> Any:
    """Return a proxy of `module` that imports it when an attribute is accessed.

    If a package is missing, the access raises `InputError` with the command that installs the extra.
    """
    return _Optional(module, extra)


class _Optional:
    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Tools that inspect modules access such attributes.
            raise AttributeError(name)
        try:
            return getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            package = (error.name or self._module).partition(".")[0]
            raise InputError(
                f"{EXTRAS[self._extra]} needs the package {package}, which is not installed. Run: "
                f'pip install "attention-automl[{self._extra}]"'
            ) from error
