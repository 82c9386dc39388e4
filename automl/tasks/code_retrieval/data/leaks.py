"""Find docstrings that are repeated in the searched code, which would make the search too easy."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from automl.tasks.code_retrieval.data.function import Function

RUN = 5  # consecutive words of a docstring; shorter runs occur by chance


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A function and words of its docstring that its code repeats."""

    function: Function
    words: str


def find_leaks(functions: Iterable[Function]) -> Iterator[Leak]:
    """Yield functions whose code has RUN consecutive words of their docstring, or all of one of 3 or 4 words.

    The remaining matches are string constants, such as messages with the same text. They are code.
    """
    for function in functions:
        query, code = _words(function.query), _words(function.code)
        run = min(RUN, len(query))
        if run < 3:
            continue
        runs = {tuple(code[i : i + run]) for i in range(len(code) - run + 1)}
        for i in range(len(query) - run + 1):
            if tuple(query[i : i + run]) in runs:
                yield Leak(function=function, words=" ".join(query[i : i + run]))
                break


def _words(text: str) -> list[str]:
    """Return the words in lower case. Underscores belong to words, so that names are not split into
    sentences.
    """
    return re.findall(r"\w+", text.lower())
