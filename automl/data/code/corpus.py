"""All functions of a source with their splits: CoSQA's files, or a folder of one's own code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.code.cosqa import RealQuery, is_cosqa, read_cosqa
from automl.data.code.folder import functions_in, source_files
from automl.data.code.function import Function
from automl.data.code.splits import SPLITS, split_of

FEWEST = 2  # documented functions of a split, for one to be found among others


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """functions: in their order. split: of each, an index of SPLITS, int64 (N,). queries: that people typed,
    by split. skipped: what was left out and why, by name.
    """

    functions: Sequence[Function]
    split: np.ndarray
    queries: Mapping[str, Sequence[RealQuery]]
    skipped: Mapping[str, str]

    def documented(self, split: str) -> list[int]:
        """The numbers of those of a split that have a docstring, which are what is learned from."""
        wanted = SPLITS.index(split)
        return [i for i, part in enumerate(self.split) if part == wanted and self.functions[i].query]


def is_code(path: str | Path) -> bool:
    """Whether a folder holds CoSQA's files, or Python files."""
    root = Path(path).expanduser()
    return root.is_dir() and (is_cosqa(root) or next(source_files(root), None) is not None)


def open_corpus(path: str | Path) -> Corpus:
    """Raises InputError where there is none, and where a split has too few documented functions."""
    root = Path(path).expanduser()
    found, queries = read_cosqa(root) if is_cosqa(root) else (functions_in(root), {})
    answers = {split: [query.answer for query in asked] for split, asked in queries.items()}
    corpus = Corpus(
        functions=found.functions,
        split=split_of([function.key for function in found.functions], answers),
        queries=queries,
        skipped=found.skipped,
    )
    if few := [split for split in SPLITS if len(corpus.documented(split)) < FEWEST]:
        documented, short = sum(bool(f.query) for f in corpus.functions), " and ".join(few)
        raise InputError(
            f"{root} has {len(corpus.functions)} functions, {documented} of them with a docstring; each "
            f"split needs {FEWEST} different ones with a docstring, and {short} would have fewer; "
            f"add documented functions"
        )
    return corpus
