"""Docstrings that are repeated in the code that is searched, which would make finding it too easy."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from automl.data.code.function import Function

RUN = 5  # words of a docstring in a row; fewer are shared by chance


@dataclass(frozen=True, kw_only=True)
class Leak:
    """words: of the function's docstring that its code has, too."""

    function: Function
    words: str


def find_leaks(functions: Iterable[Function]) -> Iterator[Leak]:
    """The functions whose code holds RUN words of their docstring in a row, or all of one of three or four.

    What is left to find are string constants, such as a message that says the same: they are code.
    """
    for function in functions:
        wanted, code = _words(function.query), _words(function.code)
        run = min(RUN, len(wanted))
        if run < 3:
            continue
        there = {tuple(code[i : i + run]) for i in range(len(code) - run + 1)}
        for i in range(len(wanted) - run + 1):
            if tuple(wanted[i : i + run]) in there:
                yield Leak(function=function, words=" ".join(wanted[i : i + run]))
                break


def _words(text: str) -> list[str]:
    """In lower case, with underscores as part of a word: names of words are no sentences."""
    return re.findall(r"\w+", text.lower())
