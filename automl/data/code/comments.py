"""Docstrings that are comments right before a function: JSDoc, Javadoc, PHPDoc, of Go and of Ruby."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node

Line = Literal["//", "#"]

# What is said to programs, not to people.
_DIRECTIVE = {
    "//": re.compile(r"//(go:|line |export |nolint|\s*\+build)"),
    "#": re.compile(
        r"#(!|\s*(frozen[_-]string[_-]literal|(en)?coding|typed|warn_indent)\s*:|\s*-\*-|\s*rubocop:|\s*:\w+:)"
    ),
}
_OUTER = re.compile("class|module|interface|enum|record|trait|declaration_list")  # have comments of their own
_INLINE = re.compile(r"\{@\w+\s*([^{}]*)\}")
_PARAGRAPH = re.compile(r"</?[pP]\s*/?>")
_MARKUP = re.compile(r"</?(a|b|br|code|div|em|i|li|ol|pre|span|strong|table|td|th|tr|tt|ul)(\s[^<>]*)?/?>")


def extract_docstring(node: Node, content: bytes, line: Line | None) -> str:
    """The comment that ends on the line before a function, or on its line, without the marks of a comment.

    content: of the file. line: how the lines of a docstring begin; None where blocks alone are docstrings.

    From the first tag (`@param`) on it tells of parts of the function: that is left out.
    """
    found = _comments_before(node, content)
    last = found[-1] if found else ""
    if last.startswith("/*"):
        if line is None and (not last.startswith("/**") or last == "/**/"):
            return ""
        return _describe(_strip_block(last))
    if line is None or not last.startswith(line):
        return ""
    lines = []
    for text in reversed(found):
        if not text.startswith(line):
            break
        if not _DIRECTIVE[line].match(text):
            lines.append(re.sub(rf"^{line}[{line[0]}]* ?", "", text).rstrip())
    return _describe("\n".join(reversed(lines)))


def _comments_before(node: Node, content: bytes) -> list[str]:
    """The comments right before, none of which is at the end of a line of code, the nearest one last."""
    row, first = node.start_point.row, node
    # `export const f = ...` has its comment before the whole statement.
    while first.prev_sibling is None or not _is_comment(first.prev_sibling):
        if first.parent is None or first.parent.start_point.row != row or _OUTER.search(first.parent.type):
            return []
        first = first.parent
    found: list[str] = []
    comment: Node | None = first.prev_sibling
    while comment is not None and _is_comment(comment) and comment.end_point.row in (row, row - 1):
        text = (comment.text or b"").decode()
        line = content[content.rfind(b"\n", 0, comment.start_byte) + 1 : comment.start_byte]
        if line.strip() and comment.end_point.row < row:
            break  # it is about what stands before it
        found.append(text.strip())
        row, comment = comment.start_point.row, comment.prev_sibling
    return found[::-1]


def _is_comment(node: Node) -> bool:
    return "comment" in node.type


def _strip_block(text: str) -> str:
    inner = re.sub(r"^/\*+|\*+/$", "", text)
    return "\n".join(re.sub(r"^\s*\*+ ?", "", line).rstrip() for line in inner.split("\n"))


def _describe(text: str) -> str:
    """What comes before the first tag, without markup."""
    lines: list[str] = []
    for line in text.split("\n"):
        if re.match(r"\s*@\w", line):
            break
        lines.append(line)
    plain = _INLINE.sub(r"\1", _PARAGRAPH.sub("\n\n", "\n".join(lines)))
    return _MARKUP.sub("", plain).strip()
