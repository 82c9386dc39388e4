"""The functions of a Python file, by `ast`: methods too, but not functions within functions."""

import ast
import warnings
from collections.abc import Iterator

from automl.data.code.duplicates import shape_key
from automl.data.code.function import Function

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def parse_python(source: str, file: str) -> list[Function]:
    """Those of `source`, in their order, without those that do nothing: `pass`, `...` or a docstring alone.

    Raises SyntaxError, and ValueError for null bytes, for what Python cannot parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the escapes in somebody's strings
        try:
            return list(_iterate_functions(ast.parse(source), file, ()))
        except RecursionError as error:
            raise SyntaxError("it is nested too deeply") from error


def _iterate_functions(tree: ast.AST, file: str, outer: tuple[str, ...]) -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            docstring, line = ast.get_docstring(node) or "", node.lineno
            if does_something(node):
                code = searchable_code(node)
                yield Function(
                    name=".".join([*outer, node.name]),
                    file=file,
                    line=line,
                    code=code,
                    docstring=docstring,
                    key=shape_key(code),
                )
        else:
            here = (*outer, node.name) if isinstance(node, ast.ClassDef) else outer
            yield from _iterate_functions(node, file, here)


def does_something(node: Definition) -> bool:
    return any(
        not isinstance(part, ast.Pass)
        and not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )


def searchable_code(node: Definition) -> str:
    """The code without comments, and without the docstrings of it and of all that it holds.

    Written anew from the tree, so that nothing is left but what Python would run.
    """
    for inner in ast.walk(node):
        if isinstance(inner, Definition | ast.ClassDef):
            without = inner.body[1:] if ast.get_docstring(inner, clean=False) is not None else inner.body
            inner.body = without or [ast.Pass()]
    return ast.unparse(node)
