"""Check names, docstrings, messages and documents against the rules of plain English.

    python scripts/prose.py             # the whole repository
    python scripts/prose.py automl docs # these folders or files
    python scripts/prose.py --count     # faults and docstrings by package, as a table

Prints a line `path:line: rule: text` for each fault and exits with 1 if there are any. The words are in
`prose_words.py`.
"""

import argparse
import ast
import collections
import doctest
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from prose_words import DOCSTRING_STARTS, MAX_SENTENCE, NAME_PARTS, NAMES, PHRASES, TEST_STARTS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("attention", "backbones", "search", "cluster", "automl", "benchmarks", "scripts", "tests")
DOCUMENTS = ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
EXEMPT = ("scripts/prose_words.py", "tests/house/test_prose.py")  # which quote the words
RULES = (
    "docstring-start",
    "docstring-word",
    "comment-word",
    "message-word",
    "name",
    "test-name",
    "file-name",
    "docs-word",
    "long-sentence",
)
# Measures that --count prints beside the faults: the figures that the rules were made for.
MEASURES = ("docstrings", "with Args or Returns", "begin with Of, What, Whether, The same", "found = ...")

_START = re.compile(rf"[`'\"*]*({'|'.join(DOCSTRING_STARTS)})\b", re.I)
_TEST_START = re.compile(rf"test_({'|'.join(TEST_STARTS)})_")
_PHRASE = re.compile("|".join(rf"(?P<p{i}>\b{pattern}\b)" for i, pattern in enumerate(PHRASES)), re.I)
_ADVICE = tuple(PHRASES.values())
_SEGMENT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SENTENCE_END = re.compile(r"[.!?][\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9`])")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Fault(NamedTuple):
    """Text that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def check_phrases(path: str, line: int, rule: str, text: str) -> Iterator[Fault]:
    """Yield a fault for each listed phrase. `line` is the first line of `text`."""
    for match in _PHRASE.finditer(text):
        advice = _ADVICE[int((match.lastgroup or "p0")[1:])]
        yield Fault(path, line + text.count("\n", 0, match.start()), rule, f"'{match[0]}' ({advice})")


def check_name(path: str, line: int, name: str) -> Iterator[Fault]:
    """Yield a fault if `name` is a listed word or has one as a segment."""
    bare = name.strip("_").lower()
    advice = NAMES.get(bare)
    for segment in _SEGMENT.findall(name):
        advice = advice or NAME_PARTS.get(segment.lower())
    if advice:
        yield Fault(path, line, "name", f"'{name}' ({advice})")
    if match := _TEST_START.match(name):
        yield Fault(
            path,
            line,
            "test-name",
            f"'{match[0]}...' (say what is tested, as test_unknown_option_is_rejected)",
        )


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node of the syntax tree introduces."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case (
            ast.arg(arg=name)
            | ast.ClassDef(name=name)
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
        ):
            yield name
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """Return the constant that holds the docstring of a module, class or function."""
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        statement = node.body[0]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return statement.value
    return None


def check_python(path: str, source: str) -> Iterator[Fault]:
    """Yield the faults of Python code."""
    tree = ast.parse(source, path)
    docstrings = {id(d): d for node in ast.walk(tree) if (d := docstring_of(node))}
    for docstring in docstrings.values():
        text = str(docstring.value)
        if match := _START.match(text.lstrip()):
            first = " ".join(text.split()[:6])
            yield Fault(path, docstring.lineno, "docstring-start", f"'{match[1]}' in: {first} ...")
        yield from check_phrases(path, docstring.lineno, "docstring-word", text)
        for example in doctest.DocTestParser().get_examples(text):
            for node in ast.walk(ast.parse(example.source)):
                for name in bound_names(node):
                    yield from check_name(path, docstring.lineno + example.lineno, name)

    pieces_of_messages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [v for v in node.values if isinstance(v, ast.Constant)]
            if any(" " in str(piece.value) for piece in pieces):
                pieces_of_messages |= {id(piece) for piece in pieces}
    for node in ast.walk(tree):
        for name in bound_names(node):
            yield from check_name(path, getattr(node, "lineno", 1), name)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and (" " in node.value.strip() or id(node) in pieces_of_messages)
        ):
            yield from check_phrases(path, node.lineno, "message-word", node.value)

    comments = [
        t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT
    ]
    for comment in comments:
        yield from check_phrases(path, comment.start[0], "comment-word", comment.string)


def sentences(text: str) -> Iterator[str]:
    """Split a paragraph into sentences."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:]


def check_markdown(path: str, text: str) -> Iterator[Fault]:
    """Yield the faults of a document. Code is not checked, headings and table cells only for words."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    # Python-Markdown's admonitions and tabs contain indented text. Parse them as items of a list.
    text = re.sub(r"^(?:!!!|\?\?\?\+?|===) +(.*)$", r"-   \1", text, flags=re.M)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type != "inline" or not token.map:
            continue
        pieces = []
        for child in token.children or ():
            pieces.append(
                {"code_inline": "`code`", "softbreak": "\n", "hardbreak": "\n"}.get(child.type, child.content)
            )
        prose, line = "".join(pieces), token.map[0] + 1
        yield from check_phrases(path, line, "docs-word", prose)
        if before is not None and before.type == "paragraph_open":
            start = 0
            for sentence in sentences(prose):
                length = len(re.findall(r"\S*\w\S*", sentence))
                if length > MAX_SENTENCE:
                    first = " ".join(sentence.split()[:6])
                    yield Fault(
                        path,
                        line + prose.count("\n", 0, start),
                        "long-sentence",
                        f"{length} words: {first} ...",
                    )
                start += len(sentence)


def check_file(path: Path) -> Iterator[Fault]:
    """Yield the faults of a file: Python, Markdown or a notebook."""
    name = path.relative_to(ROOT).as_posix()
    if name in EXEMPT:
        return
    for segment in _SEGMENT.findall(path.stem):
        if advice := NAME_PARTS.get(segment.lower()):
            yield Fault(name, 1, "file-name", f"'{path.name}' ({advice})")
    text = path.read_text()
    if path.suffix == ".py":
        yield from check_python(name, text)
    elif path.suffix == ".md":
        yield from check_markdown(name, text)
    else:
        for index, cell in enumerate(json.loads(text)["cells"]):
            check = check_markdown if cell["cell_type"] == "markdown" else check_python
            yield from check(f"{name}#cell{index}", "".join(cell["source"]))


def list_files(paths: list[str]) -> list[Path]:
    """Return the files to check among those that git tracks or would track."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
        "--",
        *paths,
    ]
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    documents = {n for n in names if n.endswith((".md", ".ipynb")) and n.split("/")[0] in DOCUMENTS}
    code = {n for n in names if n.endswith(".py") and n.split("/")[0] in PACKAGES}
    return [ROOT / name for name in sorted(documents | code) if (ROOT / name).exists()]


def measure(path: Path) -> collections.Counter[str]:
    """Return a file's MEASURES."""
    counts: collections.Counter[str] = collections.Counter()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if docstring := docstring_of(node):
                text = str(docstring.value).lstrip()
                counts["docstrings"] += 1
                counts["with Args or Returns"] += bool(re.search(r"^\s*(Args|Returns):\s*$", text, re.M))
                counts[MEASURES[2]] += bool(re.match(r"`*(Of|What|Whether|The same)\b", text))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "found":
                counts["found = ..."] += 1
    return counts


def count_table(files: list[Path], faults: list[Fault]) -> str:
    """Return a Markdown table with a line for each rule and measure and a column for each package."""
    columns = [*PACKAGES, "documents"]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for fault in faults:
        top = fault.path.split("/")[0]
        counts[fault.rule, top if top in PACKAGES else "documents"] += 1
    for file in files:
        top = file.relative_to(ROOT).parts[0]
        for name, count in measure(file).items():
            counts[name, top if top in PACKAGES else "documents"] += count
    lines = [f"| | {' | '.join(columns)} | all |", f"|---|{'---:|' * (len(columns) + 1)}"]
    for name in (*RULES, *MEASURES):
        row = [counts[name, column] for column in columns]
        lines.append(f"| {name} | {' | '.join(map(str, [*row, sum(row)]))} |")
    return "\n".join(lines)


def main() -> int:
    """Check the paths of the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Check names and text against the rules of plain English.")
    parser.add_argument("paths", nargs="*", help="folders or files; the whole repository if none")
    parser.add_argument("--count", action="store_true", help="print only the counts by rule and package")
    options = parser.parse_args()
    files = list_files([str(Path(path).resolve()) for path in options.paths])
    faults = sorted(fault for file in files for fault in check_file(file))
    if options.count:
        print(count_table(files, faults))
        return 0
    for fault in faults:
        print(fault)
    for rule, count in sorted(collections.Counter(fault.rule for fault in faults).items()):
        print(f"{count:6} {rule}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
