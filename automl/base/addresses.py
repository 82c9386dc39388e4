"""Redact users, passwords and tokens in addresses."""

import re
from collections.abc import Mapping
from typing import Any

# Words in the names of options with secrets.
SECRETS = ("key", "secret", "token", "password", "credential", "signature", "sig")

# An address that was treated as a path has a single slash.
_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<slashes>//?)(?P<user>[^\s/?#'\"]*)@", re.IGNORECASE)
_OPTION = re.compile(rf"([?&][\w.-]*(?:{'|'.join(SECRETS)})[\w.-]*=)[^\s&#'\"]+", re.IGNORECASE)


def redact(text: str) -> str:
    """Replace credentials in all addresses of `text` by `***`: `http://***@host/path?token=***`."""
    return _OPTION.sub(r"\1***", _USER.sub(_without_user, text))


def redact_all(value: Any) -> Any:
    """Redact each text in nested dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: redact_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def _without_user(match: re.Match[str]) -> str:
    # Azure's addresses have a container instead of a user.
    if match["scheme"].lower() in ("abfs", "abfss", "wasb", "wasbs") and ":" not in match["user"]:
        return match[0]
    return f"{match['scheme']}:{match['slashes']}***@"
