"""An attention type with its options, as a placement names it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attention.errors import InputError, unknown
from attention.gated import Cost, Gated
from attention.table import ATTENTIONS

Option = int | str | None


@dataclass(frozen=True)
class Spec:
    """`type` from the table and the `options` that differ from, or repeat, its defaults.

    Raises InputError for an unknown type or option.
    """

    type: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in ATTENTIONS:
            raise unknown("attention", self.type, ATTENTIONS)
        known = ATTENTIONS[self.type].options
        for name in self.options:
            if name not in known:
                if not known:
                    raise InputError(f"attention {self.type!r} takes no options; got {name!r}")
                raise unknown(f"option of attention {self.type!r}", name, known)

    def build(self, channels: int) -> Gated:
        """A new module for `channels` channels. Raises InputError for options that cannot work."""
        return ATTENTIONS[self.type].module(channels, **self.options)

    def cost(self, channels: int, positions: int) -> Cost:
        """The cost of one module on a feature map of `channels` x `positions`."""
        return ATTENTIONS[self.type].cost(channels, positions, **self.options)

    def to_json(self) -> dict[str, Option]:
        return {"type": self.type, **self.options}

    @classmethod
    def from_json(cls, value: object) -> "Spec":
        """From `{"type": ..., **options}`, or from the type's name alone."""
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or "type" not in value:
            raise InputError(f'an attention is a name or {{"type": name, ...options}}; got {value!r}')
        return cls(value["type"], {k: v for k, v in value.items() if k != "type"})

    def __str__(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.type}({options})" if options else self.type
