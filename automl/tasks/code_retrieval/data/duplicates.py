"""Recognise functions that differ only in names: copies, forks, and code that fills in a template."""

import ast
import hashlib


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
    """Return 32 bytes that are the same for functions that differ only in names and constants.

    `code` is Python without docstrings.
    """
    return hashlib.sha256(ast.dump(_Shape().visit(ast.parse(code))).encode()).digest()
