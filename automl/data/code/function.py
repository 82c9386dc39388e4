"""One function of somebody's source code."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function or method.

    name: qualified, such as `Reader.close`. file: relative to its folder. line: of its `def`, from 1.
    code: what is searched, without docstrings and comments. docstring: its own, as its author indented it;
    empty where there is none. key: shared by functions that are the same up to names.
    """

    name: str
    file: str
    line: int
    code: str
    docstring: str
    key: bytes

    @property
    def query(self) -> str:
        """The first paragraph of the docstring, as CodeSearchNet has it (arXiv 1909.09436, section 2)."""
        return " ".join(self.docstring.strip().split("\n\n")[0].split())

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"
