"""Copy the signature of a class to a function that takes its keyword arguments."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def with_keywords_of(source: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorate a function that passes its keyword arguments to the class `source`.

    `help` and type checkers then show the arguments of the class.
    """

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        _, *keywords = inspect.signature(source.__init__).parameters.values()
        returned = inspect.signature(function).return_annotation
        function.__signature__ = inspect.Signature(keywords, return_annotation=returned)  # type: ignore[attr-defined]
        return function

    return decorate
