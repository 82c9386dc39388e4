"""Parse and format quantities: `2h30m`, `5M`, `2GB`.

Each quantity has one unit in all texts: `format_duration` for a search, its trainings and what is left, s for
an epoch, a run and a limit, ms for a step, an input and a token, and `format_size` for memory and files.
`tests/house/test_units.py` holds texts to them.
"""

import math
import re
from collections.abc import Sequence

from automl.base.errors import InputError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BYTES = {"": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds of a time such as `90s`, `30m`, `2h`, `1h30m` or `1d`."""
    terms = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    total = sum(float(number) * _SECONDS[unit] for number, unit in terms)
    if "".join(number + unit for number, unit in terms) != text or not 0 < total < math.inf:
        raise InputError(f"{option} must be a time such as 90s, 30m, 2h or 1h30m; got {text!r}")
    return total


def parse_amounts(texts: Sequence[str], option: str) -> dict[str, float]:
    """Parse texts of the form `NAME=AMOUNT`. Reject a name that occurs twice."""
    amounts = {}
    for name, text in parse_labels(texts, option, "NAME=AMOUNT").items():
        try:
            amounts[name] = float(text)
        except ValueError:
            raise InputError(
                f"{option} must be NAME=AMOUNT with a number; got {f'{name}={text}'!r}"
            ) from None
    return amounts


def parse_labels(texts: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse texts of the form `KEY=VALUE`. Reject a key that occurs twice."""
    labels: dict[str, str] = {}
    for text in texts:
        match = re.fullmatch(r"([\w./:-]+)=([\w.-]+)", text)
        if match is None:
            raise InputError(f"{option} must be {form}; got {text!r}")
        if match[1] in labels:
            raise InputError(f"{option} names {match[1]} twice; give it once")
        labels[match[1]] = match[2]
    return labels


def format_duration(value: float) -> str:
    """Format seconds: `45s`, `3m20s`, `2h05m`."""
    s = round(value)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m{s % 60:02d}s" if s < 3600 else f"{s // 3600}h{s % 3600 // 60:02d}m"


def parse_count(text: str, option: str) -> float:
    """Parse a count such as `5000000`, `5M` or `1.8G`."""
    return _scaled(text, option, _COUNTS, "a number such as 500000, 5M or 1.8G")


def parse_size(text: str, option: str) -> float:
    """Return the bytes of a size such as `800MB`, `2GB` or `1.5GiB`."""
    return _scaled(text, option, _BYTES, "a size such as 800MB, 2GB or 1.5GiB")


def _scaled(text: str, option: str, units: dict[str, float], example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    value = float(match[1]) * units.get(match[2].lower(), 0) if match else 0
    if not 0 < value < math.inf:
        raise InputError(f"{option} must be {example}, above 0; got {text!r}")
    return value


def format_count(value: float) -> str:
    """Format a count with three significant digits: `950`, `16.4k`, `2.1M`."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:  # larger values round to 1000
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def format_size(value: float) -> str:
    """Format bytes with three significant digits: `950B`, `16.4kB`, `2.1GB`."""
    return f"{format_count(value)}B"


def decimals(margin: float) -> int:
    """Return the decimals that show a tenth of `margin`: at least two, and three for a margin of 0."""
    if margin <= 0:
        return 3
    return max(2, 1 - math.floor(math.log10(margin) + 1e-9))


# Words of a sentence of several things, with those of one.
SINGULAR = {"are": "is", "were": "was", "have": "has", "do": "does", "them": "it", "belong": "belongs"}
SINGULAR |= {"repeat": "repeats", "look": "looks"}
# A noun, perhaps behind an adjective.
_NOUN = re.compile(r"^((?:\w+ )?\w*?)(ies|(?<=ss)es|(?<=ch)es|s)\b")


def pluralize(number: float, text: str) -> str:
    """Format a number with a text of several things: `2 epochs are left`, `1 epoch is left`."""
    if number == 1:
        text = _NOUN.sub(lambda match: match[1] + ("y" if match[2] == "ies" else ""), text)
        text = re.sub(r"\w+", lambda match: SINGULAR.get(match[0], match[0]), text)
    return f"{number:,} {text}" if isinstance(number, int) else f"{number:g} {text}"
