"""Docstrings that are comments before a function: JSDoc, Javadoc, PHPDoc, those of Go and of Ruby."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node

Line = Literal["//", "#"]

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
        return _describe(_strip_block(last))
    if line is None or not last.startswith(line):
        return ""
    lines = []
    for text in reversed(comments):
        if not text.startswith(line):
            break
        if not _DIRECTIVE[line].match(text):
            lines.append(re.sub(rf"^{line}[{line[0]}]* ?", "", text).rstrip())
    return _describe("\n".join(reversed(lines)))


def _comments_before(node: Node, content: bytes) -> list[str]:
    """Return the comments before a function, the nearest last. None of them stands at the end of a line of
    code.
    """
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


def _strip_block(text: str) -> str:
    inner = re.sub(r"^/\*+|\*+/$", "", text)
    return "\n".join(re.sub(r"^\s*\*+ ?", "", line).rstrip() for line in inner.split("\n"))


def _describe(text: str) -> str:
    """Return the text before the first tag, without markup."""
    lines: list[str] = []
    for line in text.split("\n"):
        if re.match(r"\s*@\w", line):
            break
        lines.append(line)
    plain = _INLINE.sub(r"\1", _PARAGRAPH.sub("\n\n", "\n".join(lines)))
    return _MARKUP.sub("", plain).strip()
