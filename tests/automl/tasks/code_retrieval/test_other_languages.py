"""Test functions of other languages: reading, searched code, files left out."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, String

from automl.base.errors import InputError
from automl.tasks.code_retrieval.data.corpus import find_leaks
from automl.tasks.code_retrieval.data.dataset import get_text
from automl.tasks.code_retrieval.data.other_languages import BY_SUFFIX, MAX_LINE, parse_functions
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.source_folder import read_source_folder

pytestmark = pytest.mark.usefixtures("cache")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file of the folder "languages" with the line, name and query of each function.

    `secret` occurs in all comments and docstrings, `kept` in strings that look like comments. `alike` differs
    from `original` only in names and constants, `other` in more. `broken` cannot be parsed.
    """

    suffix: str
    functions: list[tuple[int, str, str]]
    original: str
    alike: str
    other: str
    broken: str

    @property
    def source(self) -> str:
        return (Path(__file__).parent / "languages" / f"reader{self.suffix}").read_text()


GO = Case(
    suffix=".go",
    functions=[
        (11, "Reader.Close", "Close closes the secret reader, and says so. It may fail."),
        (19, "plain", ""),
        (22, "Open", "Blocks are secret docstrings, too."),
        (25, "after", ""),
    ],
    original='func f(a int) string { return g(a, "x", 1) }',
    alike='// Other.\nfunc ff(b int) string { return gg(b, "yy", 22) }',
    other='func f(a int) string { return g(a, "x") }',
    broken="package a\nfunc f( {",
)

JAVA = Case(
    suffix=".java",
    functions=[
        (10, "Reader.close", "Closes the secret Reader of a List&lt;T&gt;. It may fail."),
        (17, "Reader.Reader", ""),
        (22, "Reader.Inner.open", ""),
        (30, "R.R", ""),
    ],
    original='class A { int f(int a) { return g(a, "x", 1, true); } }',
    alike='class BB { /** D. */ int ff(int b) { return gg(b, "", 0x22, false); } }',
    other='class A { int f(int a) { return g(a, "x") + 1; } }',
    broken="class A { int f( { }",
)

JAVASCRIPT = Case(
    suffix=".js",
    functions=[
        (8, "close", "Closes a secret reader."),
        (14, "plain", ""),
        (17, "Reader.prototype.open", "Secret prototypes."),
        (21, "inner", "Within a secret module."),
        (28, "Reader.read", "A secret method."),
        (30, "Reader.seek", "A secret field."),
        (31, "Reader.[Symbol.iterator]", ""),
        (33, "tell", "A secret value."),
    ],
    original='function f(a) { return g(a, "x", 1, `${a}b`, /re/) }',
    alike="/** D. */ function ff(b) { return gg(b, '', 2.5 /* c */, `cc${b}`, /other/g) }",
    other='function f(a) { return g(a, "x", 1, `${a}b`, h) }',
    broken="function f( {",
)

PHP = Case(
    suffix=".php",
    functions=[
        (13, "Reader.close", "Closes a secret reader."),
        (24, "plain", ""),
        (27, "top", "Secret functions."),
    ],
    original='<?php function f($a) { return g($a, "x", 1, true); }',
    alike="<?php /** D. */ function ff($b) { return gg($b, 'yy', 2.5, false); }",
    other='<?php function f($a) { return g($a, "x", 1) + true; }',
    broken="<?php function f( {",
)

RUBY = Case(
    suffix=".rb",
    functions=[
        (3, "first", ""),
        (16, "Readers.Reader.close", "Closes a secret reader, and says so."),
        (23, "Readers.Reader.open", "Private, and secret."),
        (28, "Readers.Reader.plain", ""),
        (33, "Readers.Reader.block", ""),
    ],
    original='def f(a); g(a, "x#{a}", 1, true); end',
    alike='# Other.\ndef ff(b); gg(b, "#{b}yy", 2.5, false); end',
    other='def f(a); g(a, "x", 1, true); end',
    broken="def f(\nclass",
)

CASES = {case.suffix: case for case in (GO, JAVA, JAVASCRIPT, PHP, RUBY)}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def read(case: Case, source: str) -> list[Function]:
    return parse_functions(source, f"a{case.suffix}", BY_SUFFIX[case.suffix])


def squeezed(text: str) -> str:
    return "".join(text.split())


@each
def test_functions_are_read_with_all_code_and_no_comment(case: Case) -> None:
    functions = read(case, case.source)
    assert [(f.line, f.name, f.query) for f in functions] == case.functions
    assert all(f.file == f"a{case.suffix}" for f in functions)
    assert "secret" in case.source
    functions = read(case, case.source)
    for function in functions:
        assert "secret" not in function.code.lower()
        assert all(line.strip() for line in function.code.split("\n"))
    assert any("kept" in function.code for function in functions)
    assert not list(find_leaks(functions))
    # Compare with Pygments, which finds comments independently.
    lexer = get_lexer_by_name(BY_SUFFIX[case.suffix].name)
    whole = squeezed(
        "".join(
            text for kind, text in lex(case.source, lexer) if kind not in Comment and kind not in String.Doc
        )
    )
    for function in read(case, case.source):
        code = function.code.removeprefix("#[Pure]")  # Pygments takes this for a comment.
        assert squeezed(code) in whole


@each
def test_key_ignores_names_and_constants(case: Case) -> None:
    (original,), (alike,), (other,) = (
        read(case, source) for source in (case.original, case.alike, case.other)
    )
    assert original.key == alike.key
    assert original.key != other.key
    assert original.code != alike.code


@each
def test_unparsable_files_are_left_out_and_reported(case: Case, tmp_path: Path) -> None:
    (tmp_path / f"good{case.suffix}").write_text(case.source)
    (tmp_path / f"broken{case.suffix}").write_text(case.broken)
    (tmp_path / f"small.min{case.suffix}").write_text(case.original + " " * MAX_LINE)
    (tmp_path / f"latin{case.suffix}").write_bytes("Ü".encode("latin1"))
    result = read_source_folder(tmp_path)
    name = BY_SUFFIX[case.suffix].name
    assert [f.name for f in result.functions] == [name for _, name, _ in case.functions]
    assert result.skipped[f"broken{case.suffix}"].startswith(f"no {name}: line ")
    assert "minified" in result.skipped[f"small.min{case.suffix}"]
    assert result.skipped[f"latin{case.suffix}"].startswith("not UTF-8 at byte 0; save it")
    assert len(result.skipped) == 3


def test_deeply_nested_code_and_letters_beyond_ascii_are_read() -> None:
    sums = "+".join(["1"] * 900)
    nested = "[" * 900 + "]" * 900
    (function,) = read(JAVASCRIPT, f"function f() {{\n  return {sums}\n    + {nested}\n}}")
    assert squeezed(function.code).endswith("]}")
    (function,) = read(JAVASCRIPT, '/** Größe – ☃. */ function größe() { /* ä */ return "ü☃" /* ö */ + 1 }')
    assert function.code.split() == ["function", "größe()", "{", "return", '"ü☃"', "+", "1", "}"]
    assert function.query == "Größe – ☃."


@pytest.mark.parametrize(
    ("file", "downloaded"),
    [
        ("vendor/modules.txt", True),
        ("vendor/autoload.php", True),
        ("vendor/bundle/x", True),
        ("vendor/x", False),
    ],
)
def test_downloaded_packages_are_not_entered(file: str, downloaded: bool, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    (tmp_path / "vendor" / "a.rb").write_text(RUBY.original)
    if downloaded:
        with pytest.raises(InputError, match="files of Python, Go, Java, JavaScript, PHP, Ruby"):
            read_source_folder(tmp_path)
    else:
        assert len(read_source_folder(tmp_path).functions) == 1


@pytest.mark.parametrize(
    ("suffix", "source", "unnamed"),
    [
        (".rb", "def open?(x) = closed? || open?(x - 1)", "def f(x) = closed? || f(x - 1)"),
        (".rb", "def name=(name); @name = name; end", "def f(name); @name = name; end"),
        (".js", "class A { #go(x) { return this.#go(x) + ago } }", "f(x) { return this.f(x) + ago }"),
        (".js", "x = { 'to-do': function (a) { return a } }", "'f': function (a) { return a }"),
        (".go", "func (r *R) Close() { r.Close(); Closed() }", "func (r *R) f() { r.f(); Closed() }"),
    ],
)
def test_unnamed_code_has_no_own_name(suffix: str, source: str, unnamed: str) -> None:
    prefix = "package a\n" if suffix == ".go" else ""
    (function,) = parse_functions(prefix + source, f"a{suffix}", BY_SUFFIX[suffix])
    assert get_text(function, "unnamed") == unnamed
