r"""Escape names for each kind of output, and redact users, passwords and tokens in addresses.

Names of folders, classes, sites and options may contain any character. The code that writes them escapes
them: `printable` for a terminal or a log, `markdown` and `markdown_code`, `shell`, `mlflow_key` and
`mlflow_value`. Jinja escapes HTML (`automl.report.run_report`), and
`automl.tracking.client.tag_filter` escapes MLflow's filters.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Control characters, line separators, marks that change the direction of text, and surrogates, which stand
# for bytes that are not UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Characters with a meaning in Markdown, GitHub's tables, formulas and links. An underscore between letters
# has none.
_MARKS = re.compile(
    r"[\\`*\[\]|~$#]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.|^[+-](?= |$)|^[-=](?=[-=]*$)|(?<=^\d)[.)](?= |$)",
    re.IGNORECASE,
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def printable(text: str, *, keep: str = "") -> str:
    r"""Escape `text` for a terminal or a log: control characters become `\x1b`, `\n` or `\u202e`.

    `keep` holds control characters to keep, such as "\n".
    """
    return _CONTROLS.sub(
        lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape").decode(), text
    )


def markdown(value: object) -> str:
    """Escape a value for one line of Markdown. Each run of white space becomes one space."""
    line = printable(" ".join(str(value).split()))
    line = re.sub("[&<>]", lambda match: _ENTITIES[match[0]], line)
    return _MARKS.sub(lambda match: f"\\{match[0]}", line)


def markdown_code(value: object) -> str:
    """Format a value as inline code of Markdown. It may contain backticks."""
    line = printable(str(value))
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith(("`", " ")) or line.endswith(("`", " ")) or not line else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def shell(words: Iterable[str]) -> str:
    r"""Quote the words of a command line. Words with control characters become `$'a\nb'` (Bash, Zsh)."""
    return " ".join(_ansi_c(word) if _CONTROLS.search(word) else shlex.quote(word) for word in words)


def mlflow_key(name: str) -> str:
    """Replace each character that MLflow rejects in the name of a metric or parameter by `-`."""
    return re.sub(r"[^\w.\- ]", "-", printable(name)).strip(".") or "-"


def mlflow_value(value: object) -> str:
    """Escape a name, or the value of a tag or parameter, for MLflow's database."""
    return printable(str(value), keep="\n\t")


def _ansi_c(word: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        if character in "\\'":
            return f"\\{character}"
        if "\ud800" <= character <= "\udfff":
            return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
        if character in "\n\t\r":
            return printable(character)
        return f"\\x{ord(character):02x}" if character < "\x80" else f"\\u{ord(character):04x}"

    return "$'" + re.sub(rf"[\\']|{_CONTROLS.pattern}", escaped, word) + "'"


# Words in the names of options with secrets.
SECRETS = ("key", "secret", "token", "password", "credential", "signature", "sig")

# An address that was treated as a path has a single slash.
_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<slashes>//?)(?P<user>[^\s/?#'\"]*)@", re.IGNORECASE)
_OPTION = re.compile(rf"([?&][\w.-]*(?:{'|'.join(SECRETS)})[\w.-]*=)[^\s&#'\"]+", re.IGNORECASE)

# Headers of a request, which servers repeat in their errors, and tokens of Hugging Face.
_HEADER = re.compile(r"(authorization\W{1,6}(?:\w+ +)?|bearer +)[^\s'\",;]{4,}", re.IGNORECASE)
_TOKEN = re.compile(r"\bhf_\w{4,}")
_LEAST = 8  # characters of a secret, so that words of a text are none


def redact(text: str, *secrets: str | None) -> str:
    """Replace credentials in `text` by `***`: in addresses (`http://***@host/path?token=***`) and in headers.

    Also those of environment variables such as HF_TOKEN, and these `secrets`.
    """
    return _redact(text, [*filter(None, secrets), *_of_environment()])


def _redact(text: str, secrets: Sequence[str]) -> str:
    text = _TOKEN.sub("***", _HEADER.sub(r"\1***", _OPTION.sub(r"\1***", _USER.sub(_without_user, text))))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        is_secret = not {*name.lower().split("_")}.isdisjoint(SECRETS)
        if is_secret and len(value) >= _LEAST and not value.startswith(("/", "~")):  # a path is none
            yield value


def redact_all(value: Any) -> Any:
    """Redact each text in nested dictionaries and lists."""
    secrets = list(_of_environment())

    def redact_each(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: redact_each(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [redact_each(item) for item in value]
        return _redact(value, secrets) if isinstance(value, str) else value

    return redact_each(value)


def _without_user(match: re.Match[str]) -> str:
    # Azure's addresses have a container instead of a user.
    if match["scheme"].lower() in ("abfs", "abfss", "wasb", "wasbs") and ":" not in match["user"]:
        return match[0]
    return f"{match['scheme']}:{match['slashes']}***@"
