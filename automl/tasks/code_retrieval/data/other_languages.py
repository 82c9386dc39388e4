"""Parse the functions of Go, Java, JavaScript, PHP and Ruby files with tree-sitter.

With Python these are the languages of CodeSearchNet (arXiv 1909.09436). Methods are included, but not
functions within named functions. Docstrings are comments before a function: JSDoc, Javadoc, PHPDoc, those of
Go and of Ruby.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from automl.base.lazy import optional
from automl.tasks.code_retrieval.data.python import Function

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

tree_sitter = optional("tree_sitter", "code")

Line = Literal["//", "#"]

MAX_LINE = 2000  # characters of a line; code with longer lines was generated


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """Names of the nodes of a grammar, a record of `other_languages.toml`.

    Attributes:
        grammar: the module and the function that return it.
        functions: nodes with a `name` and a `body`.
        outer: nodes whose `name` is part of a method's name.
        values: nodes whose value is a function, with the fields of name and value.
        line: how lines of a docstring begin; None if only blocks `/** ... */` are docstrings.
    """

    name: str
    suffixes: Sequence[str]
    grammar: tuple[str, str]
    functions: Collection[str]
    outer: Collection[str]
    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    line: Line | None = None


_TABLE = tomllib.loads(Path(__file__).with_name("other_languages.toml").read_text())
LANGUAGES = tuple(Language(name=name, **record) for name, record in _TABLE.items())
BY_SUFFIX = {suffix: language for language in LANGUAGES for suffix in language.suffixes}

_VALUES = frozenset({"arrow_function", "function_expression", "generator_function"})
_BLOCKS = frozenset({"statement_block", "block", "constructor_body", "compound_statement", "body_statement"})
_NAMES = re.compile("identifier|name|constant|variable|symbol")
_TEXTS = re.compile("string|heredoc|regex|character|rune|escape")
_NUMBERS = re.compile("number|integer|float|rational|complex|imaginary|int_literal")


def parse_functions(source: str, file: str, language: Language) -> list[Function]:
    """Return the functions of a file in order, without those that do nothing.

    Raises:
        SyntaxError: The file cannot be parsed, or has a line of more than MAX_LINE characters.
        InputError: tree-sitter is not installed.
    """
    for number, line in enumerate(source.splitlines(), start=1):
        if len(line) > MAX_LINE:
            raise SyntaxError(
                f"line {number} has {len(line)} characters; files with lines above {MAX_LINE} are minified"
            )
    content = source.encode()
    root = _parser(language).parse(content).root_node
    if root.has_error:
        raise SyntaxError(f"line {_first_error(root)} cannot be parsed")
    return [
        Function(
            name=".".join([*outer, name]),
            file=file,
            line=node.start_point.row + 1,
            code=_searchable_code(node, content),
            docstring=extract_docstring(node, content, language.line),
            key=_shape_key(node),
        )
        for name, outer, node, body in _iterate_functions(root, language)
        if _does_something(body)
    ]


@lru_cache(maxsize=len(LANGUAGES))
def _parser(language: Language) -> Parser:
    module, function = language.grammar
    grammar = getattr(optional(module, "code"), function)
    parser: Parser = tree_sitter.Parser(tree_sitter.Language(grammar()))
    return parser


def _first_error(root: Node) -> int:
    """Return the line of the first node that the grammar does not know, from 1."""
    node = root
    while not (node.is_error or node.is_missing):
        inner = next((child for child in node.children if child.has_error or child.is_missing), None)
        if inner is None:
            break
        node = inner
    return node.start_point.row + 1


def _iterate_functions(
    root: Node, language: Language
) -> Iterator[tuple[str, tuple[str, ...], Node, Node | None]]:
    """Yield name, names of the enclosing nodes, node and body of each function."""
    # A stack of nodes replaces recursion: generated code is nested more deeply than Python calls may be.
    stack: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while stack:
        node, outer = stack.pop()
        match = _match_function(node, language)
        if match is not None:
            name, body = match
            yield name, (*outer, *_receiver_type(node)), node, body
            continue
        if node.type in language.outer and (named := node.child_by_field_name("name")) is not None:
            outer = (*outer, _node_text(named))
        stack += [(child, outer) for child in reversed(node.named_children)]


def _match_function(node: Node, language: Language) -> tuple[str, Node | None] | None:
    """Return the name and the body of a function; None for other nodes."""
    name: Node | None = None
    function: Node | None = None
    if node.type in language.functions:
        name, function = node.child_by_field_name("name"), node
    elif node.type in language.values:
        of_name, of_value = language.values[node.type]
        value = node.child_by_field_name(of_value)
        if value is not None and value.type in _VALUES:
            name, function = node.child_by_field_name(of_name), value
    if name is None or function is None:
        return None
    return _node_text(name).strip("'\""), function.child_by_field_name("body")


def _receiver_type(node: Node) -> tuple[str, ...]:
    """Return the type that a method of Go belongs to."""
    receiver = node.child_by_field_name("receiver")
    if receiver is None:
        return ()
    return tuple(_node_text(inner) for inner in _walk(receiver) if inner.type == "type_identifier")[:1]


def _does_something(body: Node | None) -> bool:
    if body is None:
        return False
    return body.type not in _BLOCKS or any("comment" not in child.type for child in body.named_children)


def _searchable_code(node: Node, content: bytes) -> str:
    """Return the code without comments and lines that held only comments, indented like its first line."""
    code, position = b"", node.start_byte
    for comment in (inner for inner in _walk(node) if "comment" in inner.type):
        before = code + content[position : comment.start_byte]
        bare = before.rstrip(b" \t")
        after = content[comment.end_byte : node.end_byte]
        ends = after.lstrip(b" \t")[:1] in (b"", b"\n")
        position = comment.end_byte
        if not ends:
            code = before + b" "  # `a/* b */c` has two words.
        elif bare.endswith(b"\n"):
            code = bare[:-1]
            position += len(after) - len(after.lstrip(b" \t"))
        else:
            code = bare
    whole = (code + content[position : node.end_byte]).decode()
    start = content.rfind(b"\n", 0, node.start_byte) + 1
    line = content[start : node.start_byte].decode()
    indent = line[: len(line) - len(line.lstrip())]
    return "\n".join(text_line.removeprefix(indent).rstrip() for text_line in whole.split("\n"))


def _shape_key(node: Node) -> bytes:
    """Return 32 bytes that are the same for functions that differ only in names and constants."""
    numbers: dict[str, int] = {}
    tokens: list[str] = []
    stack = [node]
    while stack:
        inner = stack.pop()
        if "comment" in inner.type:
            continue
        if inner.is_named and _TEXTS.search(inner.type):
            if inner.parent is None or not _TEXTS.search(inner.parent.type):
                tokens.append("''")
            stack += reversed(inner.named_children)  # expressions within the string
        elif inner.children:
            stack += reversed(inner.children)
        else:
            tokens.append(_describe_leaf(inner, numbers))
    return hashlib.sha256("\0".join(tokens).encode()).digest()


def _describe_leaf(leaf: Node, numbers: dict[str, int]) -> str:
    text = _node_text(leaf)
    if not leaf.is_named:
        return text
    if _NAMES.search(leaf.type):
        return f"n{numbers.setdefault(text, len(numbers))}"
    if _NUMBERS.search(leaf.type):
        return "0"
    return "true" if leaf.type in ("true", "false", "boolean") else text


def _walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes within it, in the order of the text."""
    stack = [node]
    while stack:
        inner = stack.pop()
        yield inner
        stack += reversed(inner.children)


def _node_text(node: Node) -> str:
    return " ".join((node.text or b"").decode().split())


# Comments for programs, not for people.
_DIRECTIVE = {
    "//": re.compile(r"//(go:|line |export |nolint|\s*\+build)"),
    "#": re.compile(
        r"#(!|\s*(frozen[_-]string[_-]literal|(en)?coding|typed|warn_indent)\s*:|\s*-\*-|\s*rubocop:|\s*:\w+:)"
    ),
}
_OUTER = re.compile("class|module|interface|enum|record|trait|declaration_list")  # have their own comments
_INLINE = re.compile(r"\{@\w+\s*([^{}]*)\}")
_PARAGRAPH = re.compile(r"</?[pP]\s*/?>")
_MARKUP = re.compile(r"</?(a|b|br|code|div|em|i|li|ol|pre|span|strong|table|td|th|tr|tt|ul)(\s[^<>]*)?/?>")


def extract_docstring(node: Node, content: bytes, line: Line | None) -> str:
    """Return the comment that ends on the line before a function, or on its line, without comment marks.

    Text from the first tag (`@param`) on is left out, since it describes parts of the function.

    Args:
        node: the function.
        content: the content of the file.
        line: how the lines of a docstring begin; None if only blocks are docstrings.
    """
    comments = _comments_before(node, content)
    last = comments[-1] if comments else ""
    if last.startswith("/*"):
        if line is None and (not last.startswith("/**") or last == "/**/"):
            return ""
        rows = re.sub(r"^/\*+|\*+/$", "", last).split("\n")
        return _describe("\n".join(re.sub(r"^\s*\*+ ?", "", row).rstrip() for row in rows))
    if line is None or not last.startswith(line):
        return ""
    own = [*takewhile(lambda text: text.startswith(line), reversed(comments))][::-1]
    texts = (text for text in own if not _DIRECTIVE[line].match(text))
    return _describe("\n".join(re.sub(rf"^{line}[{line[0]}]* ?", "", text).rstrip() for text in texts))


def _comments_before(node: Node, content: bytes) -> list[str]:
    """Return the comments before a function, the nearest last, without those behind code in a line."""
    row, first = node.start_point.row, node
    # `export const f = ...` has its comment before the whole statement.
    while first.prev_sibling is None or not _is_comment(first.prev_sibling):
        if first.parent is None or first.parent.start_point.row != row or _OUTER.search(first.parent.type):
            return []
        first = first.parent
    texts: list[str] = []
    comment: Node | None = first.prev_sibling
    while comment is not None and _is_comment(comment) and comment.end_point.row in (row, row - 1):
        text = (comment.text or b"").decode()
        line = content[content.rfind(b"\n", 0, comment.start_byte) + 1 : comment.start_byte]
        if line.strip() and comment.end_point.row < row:
            break  # It describes the code before it.
        texts.append(text.strip())
        row, comment = comment.start_point.row, comment.prev_sibling
    return texts[::-1]


def _is_comment(node: Node) -> bool:
    return "comment" in node.type


def _describe(text: str) -> str:
    """Return the text before the first tag, without markup."""
    lines = takewhile(lambda line: not re.match(r"\s*@\w", line), text.split("\n"))
    plain = _INLINE.sub(r"\1", _PARAGRAPH.sub("\n\n", "\n".join(lines)))
    return _MARKUP.sub("", plain).strip()
