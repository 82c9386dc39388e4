"""A function of source code, and those of a Python file: also methods, but not functions within functions.

Functions that differ only in names have one key: copies, forks, and code that fills in a template.
"""

import ast
import hashlib
import warnings
from collections.abc import Iterator
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


Definition = ast.FunctionDef | ast.AsyncFunctionDef


def parse_python(source: str, file: str) -> list[Function]:
    """Return the functions of `source` in order, without those that do nothing: `pass`, `...` or only a
    docstring.

    Raises SyntaxError if Python cannot parse it, and ValueError for null bytes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of invalid escapes in strings.
        try:
            return list(_iterate_functions(ast.parse(source), file, ()))
        except RecursionError as error:
            raise SyntaxError("it is nested too deeply") from error


def _iterate_functions(tree: ast.AST, file: str, outer: tuple[str, ...]) -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            docstring, line = ast.get_docstring(node) or "", node.lineno
            statements = [s for s in node.body if not isinstance(s, ast.Pass)]
            if any(not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in statements):
                code, name = make_searchable_code(node), ".".join([*outer, node.name])
                key = compute_shape_key(code)
                yield Function(name=name, file=file, line=line, code=code, docstring=docstring, key=key)
        else:
            names = (*outer, node.name) if isinstance(node, ast.ClassDef) else outer
            yield from _iterate_functions(node, file, names)


def make_searchable_code(node: Definition) -> str:
    """Return the code without comments, and without the docstrings of the function and its contents.

    It is generated from the syntax tree, so that only code remains that Python would run.
    """
    for inner in ast.walk(node):
        if isinstance(inner, Definition | ast.ClassDef):
            without = inner.body[1:] if ast.get_docstring(inner, clean=False) is not None else inner.body
            inner.body = without or [ast.Pass()]
    return ast.unparse(node)


class _Shape(ast.NodeTransformer):
    """Number names in order of appearance, and replace constants by their type."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def number(self, name: str) -> str:
        return self.numbers.setdefault(name, f"n{len(self.numbers)}")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("name", "id", "arg", "attr", "module"):
            if isinstance(name := getattr(node, field, None), str):
                setattr(node, field, self.number(name))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self.number(name) for name in node.names]
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(value=type(node.value).__name__)


def compute_shape_key(code: str) -> bytes:
    """Return 32 bytes that do not depend on the names and constants of `code`, without its docstrings."""
    return hashlib.sha256(ast.dump(_Shape().visit(ast.parse(code))).encode()).digest()
