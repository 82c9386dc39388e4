"""Table of the attention types: options, cost, source."""

from collections.abc import Iterator
from typing import Any

from attention import ATTENTIONS
from attention.attention_table import TIMM_NAMES


def describe_attentions() -> list[dict[str, Any]]:
    """Return each type of the table in JSON's types."""
    return [
        {
            "type": attention.name,
            "cost": "counted" if attention.cost is None else "formula",
            "source": attention.source,
            "options": {
                name: {"default": option.default, "choices": list(option.allowed)}
                for name, option in attention.options.items()
            },
        }
        for attention in ATTENTIONS.values()
    ]


def attentions_table() -> Iterator[str]:
    """Yield the lines of the table. The options of a type follow it, with defaults and allowed values."""
    yield f"{'type':14}{'cost':9}source"
    for described in describe_attentions():
        yield f"{described['type']:14}{described['cost']:9}{described['source']}"
        for name, option in described["options"].items():
            choices = f" ({', '.join(map(str, option['choices']))})" if option["choices"] else ""
            yield f"  {name}={option['default']}{choices}"
    yield f"timm's modules: timm:NAME; NAME is {', '.join(TIMM_NAMES)}"
    yield "a class of your own: file.py:Class or package.module:Class; automl check-attention checks it"
