"""Generate a folder of Python functions whose docstrings follow from their code."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

VERBS = {"read": "open", "write": "dump", "sort": "order", "count": "len", "send": "post", "parse": "split"}
THINGS = ("csv file", "user table", "image size", "graph edge", "mail header", "log line", "price list")
BODIES: Sequence[str] = (
    "return {act}({name})",
    "found = {act}({name})\n    return found + 1",
    "if not {name}:\n        return None\n    return {act}({name}, {extra})",
    "for each in {name}:\n        {act}(each)\n    return {name}",
    "with {act}({name}) as {extra}:\n        return {extra}",
    "try:\n        return {act}({name})\n    except ValueError:\n        return {extra}",
    "return [{act}(each) for each in {name} if each]",
)


def write_function(verb: str, thing: str, body: str, *, docstring: bool = True) -> str:
    name = thing.replace(" ", "_")
    extra = name.partition("_")[2]
    text = body.format(act=VERBS[verb], name=name, extra=extra)
    docstring_line = f'    """{verb.capitalize()} the {thing} of a project."""\n' if docstring else ""
    return f"def {verb}_{name}({name}, {extra}=None):\n{docstring_line}    {text}\n"


def write_corpus(folder: Path) -> Path:
    """Write a file of 42 functions for each of `BODIES`; three functions of each file have no docstring.

    Functions with one body are equal up to names and would be in one split, so their number of steps differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for i, body in enumerate(BODIES):
        functions = []
        for verb, thing in product(VERBS, THINGS):
            number += 1
            steps = "".join(f"    {thing.split()[0]} = [{thing.split()[0]}]\n" for _ in range(number % 23))
            lines = write_function(verb, thing, body, docstring=len(functions) >= 3).splitlines(True)
            last = 1 if len(functions) < 3 else 2
            functions.append("".join([*lines[:last], steps, *lines[last:]]))
        (folder / f"part{i}.py").write_text("\n\n".join(functions))
    return folder
