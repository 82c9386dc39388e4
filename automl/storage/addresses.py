"""Redacts users, passwords and tokens in addresses."""

import re

# In the names of an address's options.
SECRETS = ("key", "secret", "token", "password", "credential", "signature", "sig")

# One slash is left where an address was taken for a path.
_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<slashes>//?)(?P<user>[^\s/?#'\"]*)@", re.IGNORECASE)
_OPTION = re.compile(rf"([?&][\w.-]*(?:{'|'.join(SECRETS)})[\w.-]*=)[^\s&#'\"]+", re.IGNORECASE)


def public(text: str) -> str:
    """`text` with `***` for what lets one in, in every address in it: `http://***@host/path?token=***`."""
    return _OPTION.sub(r"\1***", _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    # Azure's addresses name a container there.
    if found["scheme"].lower() in ("abfs", "abfss", "wasb", "wasbs") and ":" not in found["user"]:
        return found[0]
    return f"{found['scheme']}:{found['slashes']}***@"
