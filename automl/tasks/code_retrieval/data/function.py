"""A function of source code."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function or method.

    Attributes:
        name: qualified, such as `Reader.close`.
        file: relative to its folder.
        line: line of its `def`, from 1.
        code: the searched text, without docstrings and comments.
        docstring: its docstring with the original indentation; empty if there is none.
        key: equal for functions that differ only in names.
    """

    name: str
    file: str
    line: int
    code: str
    docstring: str
    key: bytes

    @property
    def query(self) -> str:
        """The first paragraph of the docstring, as in CodeSearchNet (arXiv 1909.09436, section 2)."""
        return " ".join(self.docstring.strip().split("\n\n")[0].split())

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"
