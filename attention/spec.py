"""An attention type with its options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from attention.errors import InputError, unknown

# The table imports torch, which takes seconds. Reading and writing configurations must not need it.
if TYPE_CHECKING:
    from attention.gated import Gated

Option = int | float | bool | str | None


@dataclass(frozen=True)
class Spec:
    """Attention type with its options.

    Args:
        type: Name of the type, such as `ssa` or `decomposed`.
        options: Options that differ from the defaults of the type.

    Raises:
        InputError: The type or an option is unknown, or the value of an option has the wrong type.

    Example:
        >>> import automl
        >>> automl.Spec("decomposed", {"heads": 4})
        Spec(type='decomposed', options={'heads': 4})
        >>> str(automl.Spec("decomposed", {"heads": 4}))
        'decomposed(heads=4)'
    """

    type: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from attention.attention_table import ATTENTIONS

        if not isinstance(self.type, str) or self.type not in ATTENTIONS:
            raise unknown("attention", self.type, ATTENTIONS)
        known = ATTENTIONS[self.type].options
        hints = get_type_hints(ATTENTIONS[self.type].module.__init__)
        for name, value in self.options.items():
            if name not in known:
                if not known:
                    raise InputError(f"attention {self.type!r} takes no options; got {name!r}")
                raise unknown(f"option of attention {self.type!r}", name, known)
            if type(value) not in _types(hints[name]):
                expected = " or ".join("null" if t is type(None) else t.__name__ for t in _types(hints[name]))
                raise InputError(f"option {name!r} of {self.type!r} must be {expected}; got {value!r}")

    def build(self, channels: int) -> "Gated":
        """Build a new module.

        Args:
            channels: Number of channels of the features.

        Returns:
            A `Gated` module, which is the identity while it is new.

        Raises:
            InputError: An option does not suit `channels`.
        """
        from attention.attention_table import ATTENTIONS

        return ATTENTIONS[self.type].module(channels, **self.options)

    def to_json(self) -> dict[str, Option]:
        """Return `{"type": ..., **options}`."""
        return {"type": self.type, **self.options}

    @classmethod
    def from_json(cls, value: object) -> "Spec":
        """Create a spec from `{"type": ..., **options}`, or from the name of a type.

        Raises:
            InputError: `value` is neither, or names an unknown type or option.
        """
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or "type" not in value:
            raise InputError(f'an attention is a name or {{"type": name, ...options}}; got {value!r}')
        return cls(value["type"], {k: v for k, v in value.items() if k != "type"})

    def __str__(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.type}({options})" if options else self.type


def _types(hint: Any) -> tuple[type, ...]:
    """Return the types that an option accepts, by its annotation: `int`, `int | None` or a Literal."""
    if get_origin(hint) is Literal:
        return tuple({type(choice) for choice in get_args(hint)})
    return get_args(hint) or (hint,)
