"""Text of users' files: UTF-8, or UTF-16 or UTF-32 with a byte order mark."""

import codecs
import gzip
import io
from contextlib import suppress
from pathlib import Path
from typing import TextIO

MARKS = {  # UTF-32 first, since its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}  # fmt: skip
WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
HEAD = 1 << 13  # bytes by which an encoding is guessed, a multiple of four


def encoding_of(head: bytes) -> str:
    """Return the encoding that a byte order mark names, otherwise UTF-8."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), "utf-8")


def guess_encoding(content: bytes) -> str:
    """Return the likely encoding of a text that is not UTF-8. Return an empty string if it is no text."""
    head, counts = content[:HEAD], {"": 0}
    if b"\0" not in head:
        return "windows-1252"
    for name in WIDE:
        size = int(name[4:6]) // 8
        with suppress(UnicodeDecodeError):
            text = head[: len(head) // size * size].decode(name)
            if all(map(str.isprintable, text.split())):
                counts[name] = sum(character < "\u0800" for character in text)
    return max(counts, key=lambda name: counts[name])


def decode_text(content: bytes, errors: str = "strict") -> str:
    """Decode a text. Raise UnicodeDecodeError, with advice, for another encoding and for a zero byte."""
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding, errors)
        if "\0" not in text:
            return text
        start = content.index(0)
    except UnicodeDecodeError as error:
        start = error.start
    guess = guess_encoding(content)
    advice = f"save it as UTF-8, such as by iconv -f {guess} -t UTF-8" if guess else "it is binary"
    raise UnicodeDecodeError(encoding, content, start, start + 1, advice)


def read_text(path: Path, errors: str = "strict") -> str:
    """Read a text. Raise OSError, and UnicodeDecodeError as `decode_text`."""
    return decode_text(path.read_bytes(), errors)


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """Open a text, which gzip may have compressed, for reading line by line."""
    stream = gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # noqa: SIM115
    return io.TextIOWrapper(stream, encoding_of(stream.peek(4)), errors, newline="\n")
