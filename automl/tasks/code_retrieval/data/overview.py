"""Summarise a folder of code: functions, docstrings, splits, near duplicates, files left out.

Docstrings that are repeated in the searched code would make the search too easy, so they are counted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from automl.base.units import pluralize
from automl.data.splits import SPLITS
from automl.data.tally import join_examples
from automl.tasks.code_retrieval.data.corpus import HOW, open_corpus
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.source_folder import join_reasons

RUN = 5  # consecutive words of a docstring; shorter runs occur by chance


def find_leaks(functions: Iterable[Function]) -> Iterator[tuple[Function, str]]:
    """Yield functions whose code has RUN consecutive words of their docstring, or all of one of 3 or 4 words.

    The words follow the function.

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
                yield function, " ".join(query[i : i + run])
                break


def _words(text: str) -> list[str]:
    """Return the words in lower case. Underscores are part of a word, so that names stay whole."""
    return re.findall(r"\w+", text.lower())


@dataclass(frozen=True, kw_only=True)
class CodeOverview:
    """Figures that `automl data` prints about a folder of code.

    Attributes:
        functions: number of functions of each split.
        docstrings: number of docstrings of each split.
        queries: number of real queries of each split.
        alike: functions that differ only in names, by group.
        repeated: functions with a string that repeats their docstring.
        skipped: why files were left out, by name.
    """

    functions: Mapping[str, int]
    docstrings: Mapping[str, int]
    queries: Mapping[str, int]
    alike: Sequence[Sequence[str]]
    repeated: Sequence[str]
    skipped: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        yield f"{'':11}" + "".join(f"{split:>12}" for split in SPLITS)
        rows = {"functions": self.functions, "docstrings": self.docstrings, "queries": self.queries}
        for name, counts in rows.items():
            if any(counts.values()):
                yield f"{name:11}" + "".join(f"{counts[split]:>12}" for split in SPLITS)
        yield f"{'splits':11} {HOW}"
        if self.alike:
            pairs = join_examples([" and ".join(locations[:2]) for locations in self.alike])
            alike = pluralize(sum(map(len, self.alike)), "functions are the same as another up to names")
            yield f"{'duplicates':11} {alike}: {pairs}"
        if self.repeated:
            names = join_examples(self.repeated)
            yield f"{'repeated':11} {len(self.repeated)} docstrings in strings of their own code: {names}"
        if self.skipped:
            yield f"{'left out':11} {len(self.skipped)}: {join_reasons(self.skipped)}"


def summarise_code(path: str | Path) -> CodeOverview:
    """Return the overview of a folder. Raises InputError like `open_corpus`."""
    corpus = open_corpus(path)
    alike: dict[bytes, list[str]] = {}
    for function in corpus.functions:
        alike.setdefault(function.key, []).append(function.location)
    return CodeOverview(
        functions={name: int((corpus.split == number).sum()) for number, name in enumerate(SPLITS)},
        docstrings={split: len(corpus.documented_rows(split)) for split in SPLITS},
        queries={split: len(corpus.queries.get(split, ())) for split in SPLITS},
        alike=[locations for locations in alike.values() if len(locations) > 1],
        repeated=[function.location for function, _ in find_leaks(corpus.functions)],
        skipped=corpus.skipped,
    )
