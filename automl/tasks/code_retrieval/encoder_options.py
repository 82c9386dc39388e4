"""Checks of the options of text encoders, alone and together."""

from collections.abc import Mapping
from typing import Any

from automl.base.errors import InputError

LIMITS = {
    "hidden": (8, 4096),
    "layers": (0, 48),
    "convolutions": (0, 48),
    "heads": (1, 256),
    "intermediate": (1, 16384),
    "kernel": (1, 99),
}
LIMITED = (*LIMITS, "dropout", "channels", "kernels", "residual")


def check(
    *,
    dropout: float = 0.0,
    channels: str = "",
    kernels: str = "",
    residual: str = "none",
    **sizes: int,
) -> None:
    """Raise `InputError` if an option of a text encoder is out of range, or if options do not match."""
    for name, size in sizes.items():
        low, high = LIMITS[name]
        if not low <= size <= high:
            raise InputError(f"{name} of a text encoder must lie between {low} and {high}; got {size}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout of a text encoder must be at least 0 and below 1; got {dropout}")
    if "heads" in sizes and sizes["hidden"] % sizes["heads"]:
        hidden, heads = sizes["hidden"], sizes["heads"]
        raise InputError(f"hidden must be a multiple of heads; got hidden={hidden}, heads={heads}")
    for name, values, limit in (("channels", channels, "hidden"), ("kernels", kernels, "kernel")):
        if values:
            _check_each(name, values, sizes["convolutions"], *LIMITS[limit])
    widths = [int(width) for width in channels.split("-")] if channels else []
    if "heads" in sizes and widths and widths[-1] != sizes["hidden"]:
        raise InputError(
            f"the last width of channels must be hidden, where self-attention follows; got {channels!r} with "
            f"hidden={sizes['hidden']}"
        )
    if residual != "none" and len(set(widths)) > 1:
        raise InputError(
            f"residual connections need one width in all convolutions; got channels={channels!r}. "
            f"Pass residual=none"
        )


def _check_each(name: str, values: str, count: int, low: int, high: int) -> None:
    """Raise `InputError` unless `values` are `count` numbers from `low` to `high`."""
    numbers = values.split("-")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise InputError(f"{name} of a text encoder must be numbers such as 128-128; got {values!r}")
    if len(numbers) != count:
        raise InputError(
            f"{name} of a text encoder must have one number for each of {count} convolutions; got {values!r}"
        )
    for number in numbers:
        if not low <= int(number) <= high:
            raise InputError(
                f"{name} of a text encoder must lie between {low} and {high} each; got {values!r}"
            )


def output_width(options: Mapping[str, Any]) -> int:
    """Return the width of an encoder's vectors, given all of its options."""
    return parse_numbers(options.get("channels", ""), options["hidden"], 1)[-1]


def parse_numbers(values: str, default: int, count: int) -> list[int]:
    """Return the numbers in a text such as `128-64`, or `count` times the default if it is empty."""
    return [int(value) for value in values.split("-")] if values else [default] * count
