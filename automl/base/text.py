"""Text of users: the encoding of their files, and names of searches as folders and MLflow take them."""

import codecs
import gzip
import io
import os
import re
import stat
import unicodedata
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TextIO

from automl.base.errors import InputError

WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
HEAD = 1 << 13  # bytes by which an encoding is guessed, a multiple of four


class NotUtf8(InputError):
    """A file of text has another encoding."""


def is_special(path: str | PurePath) -> bool:
    """Return whether `path` is a pipe, a socket or a device: reading it may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_ends(path: str | PurePath) -> None:
    """Raise InputError for a pipe or a device, which may have no end, but for those of the process itself."""
    own = str(path).startswith(("/dev/fd/", "/dev/std", "/proc/self/", os.devnull))
    if not own and is_special(path):
        raise InputError(f"{path} is a pipe or a device; give a file or a folder")


def encoding_of(head: bytes) -> str:
    """Return the encoding that a byte order mark names, otherwise UTF-8."""
    if head[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    return "utf-16" if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


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


def read_text(path: Path, errors: str = "strict") -> str:
    """Read a text. Raise OSError, and NotUtf8 for another encoding or a zero byte."""
    check_ends(path)
    content = path.read_bytes()
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding, errors)
        if "\0" not in text:
            return text
        start = content.index(0)
    except UnicodeDecodeError as error:
        start = error.start
    line, guess = content.count(b"\n", 0, start) + 1, guess_encoding(content)
    advice = f"save it as UTF-8, such as by iconv -f {guess} -t UTF-8" if guess else "it is binary"
    raise NotUtf8(f"{path}, line {line}: it is not UTF-8 at byte {start}; {advice}")


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """Open a text, which gzip may have compressed, for reading line by line."""
    check_ends(path)
    stream = gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # noqa: SIM115
    return io.TextIOWrapper(stream, encoding_of(stream.peek(4)), errors, newline="\n")


MAX_TITLE = 40  # characters of the title of a search or experiment
MAX_NAME_BYTES = 200  # file systems allow 255, and an unfinished export adds to the name


def check_name(name: str, option: str = "--name") -> None:
    """Raise InputError if no folder can have this name, the value of `option`."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{option} may hold up to 100 letters, digits, '_' and, not first, '-' and '.'; got {name!r}"
        )
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise InputError(
            f"{option} may have up to {MAX_NAME_BYTES} bytes, as it names a folder; {name!r} has {size}. "
            f"Letters outside of ASCII take two to four bytes each. Give a shorter name"
        )


def short_name(space: str) -> str:
    """Return the name of a space as a component of the name of a folder or experiment.

    Return "space" for a function without a usable name, such as a lambda.
    """
    name = unicodedata.normalize("NFC", space.rpartition(":")[2].replace("<locals>.", ""))
    return re.sub(r"[^\w.-]+", "", name)[:MAX_TITLE] or "space"


def absolute_data(data: str) -> str:
    """Return the absolute path of data, or their address (`s3://bucket/photos`) as it is."""
    return data if "://" in data else str(Path(data).expanduser().resolve())


def data_name(data: str) -> str:
    """Return the name of a folder or archive of data as a component of other names."""
    place = data.partition("?")[0] if "://" in data else absolute_data(data)
    name = re.sub(r"(\.tar)?\.\w{1,4}$", "", Path(place).name)
    # In file names, a letter and its accent may be two characters. The accent alone is no letter.
    return re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", name)).strip("-")[:MAX_TITLE]
