"""Each path that a docstring, a comment or a page names exists."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("attention", "automl", "backbones", "benchmarks", "cluster", "docs", "scripts", "search", "tests")
TEXTS = (
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "mkdocs.yml",
    "pyproject.toml",
)
PATH = re.compile(rf"(?<![\w./<{{:-])(?:{'|'.join(FOLDERS)})/[\w./*-]*\w(?!\w*[$<{{])")
NAME = re.compile(r"(?<![\w./<{*:-])\w+\.(?:py|md)\b(?!\.\w)")
# Names that stand for a file of the user, and what an export writes.
EXAMPLES = {
    "eval.py",
    "file.py",
    "FILE.py",
    "mine.py",
    "name.py",
    "new.py",
    "script.py",
    "sitecustomize.py",
    "MODEL_CARD.md",
}
SECRET = "cluster/manifests/mlflow.env"  # which the user writes


def list_files(folder: str) -> list[Path]:
    return [file for file in sorted((ROOT / folder).rglob("*")) if file.suffix in (".py", ".md")]


def read_texts(file: Path) -> Iterator[str]:
    """Return the docstrings and comments of a module, or the whole of another file."""
    text = file.read_text()
    if file.suffix != ".py":
        yield text
    elif PATH.search(text) or NAME.search(text):  # to parse all files takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def find(pattern: re.Pattern[str], files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return each file with what it names."""
    return {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for text in read_texts(file)
        for name in pattern.findall(text)
    }


def test_each_path_exists() -> None:
    named = find(
        PATH, [*(file for folder in FOLDERS for file in list_files(folder)), *map(ROOT.joinpath, TEXTS)]
    )
    assert len(named) > 300
    assert {(file, path) for file, path in named if not any(ROOT.glob(path)) and path != SECRET} == set()


def test_each_name_of_a_module_or_page_exists() -> None:
    """Pages of the site and the README are left out, since they name files of the reader."""
    known = {file.name for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")} | {
        *TEXTS,
        "CHANGELOG.md",
    }
    files = [file for folder in FOLDERS if folder != "docs" for file in list_files(folder)]
    named = find(NAME, [*files, *(ROOT / name for name in TEXTS if name != "README.md")])
    assert {pair for pair in named if pair[1] not in known | EXAMPLES} == set()


def test_the_citation_has_the_projects_version_and_licence() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for key, value in {"title": "name", "version": "version", "license": "license"}.items():
        assert re.search(rf"^{key}: (.*)$", citation, re.M)[1] == project[value]  # type: ignore[index]
