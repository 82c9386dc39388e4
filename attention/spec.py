"""An attention type with its options, and placements, which have one at each site."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attention.attention_table import ATTENTIONS, check_name
from attention.options import RESERVED, OptionValue, check_options
from automl.base import loading
from automl.base.errors import InputError
from automl.base.serialise import WITHOUT_TORCH

# The modules need torch, which takes seconds to import. Reading and writing configurations must not need it.
if TYPE_CHECKING:
    from attention.attention_table import Attention
    from attention.gated import Gated


@dataclass(frozen=True)
class Spec:
    """Attention type with its options.

    Args:
        type: Name of the type: of the table, such as `ssa` or `decomposed`, or `timm:NAME`, `file.py:Class`
            or `package.module:Class`.
        options: Options that differ from the defaults of the type.
        code: Hash of the code of a user-defined type. `identified` computes it.

    Raises:
        InputError: The type or an option is unknown, or the value of an option has the wrong type. Options
            of timm's and user-defined types are checked when they are loaded.

    Example:
        >>> import automl
        >>> automl.Spec("decomposed", {"heads": 4})
        Spec(type='decomposed', options={'heads': 4})
        >>> str(automl.Spec("decomposed", {"heads": 4}))
        'decomposed(heads=4)'
    """

    type: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    code: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_name(self.type)
        name = loading.find_local_name(loading.make_absolute(self.type), self.code)
        object.__setattr__(self, "type", name)
        if self.options and name in ATTENTIONS and not WITHOUT_TORCH.get():
            check_options(name, self.options, ATTENTIONS[name].options)

    @property
    def is_foreign(self) -> bool:
        """Return whether the type is not in the table, so that no test holds it to the contract."""
        return self.type not in ATTENTIONS

    @property
    def name(self) -> str:
        """Return the name of the type without the folder of its file: `mine.py:Gate`."""
        return loading.short_name(self.type)

    def identified(self) -> "Spec":
        """Load a user-defined type, and return the spec with the hash of its code.

        Raises:
            InputError: The code cannot be loaded, has changed, or lacks an option.
        """
        self._find()
        return self if self.code else replace(self, code=loading.hash_code(self.type))

    def build(self, channels: int, size: Sequence[int] = (8, 8)) -> "Gated":
        """Build a new module.

        Args:
            channels: Number of channels of the features.
            size: Extents of the features. Only modules whose class takes `size` depend on it.

        Returns:
            A `Gated` module, which is the identity while it is new.

        Raises:
            InputError: An option does not suit `channels`, or user-defined code has changed or fails.
        """
        return self._find().build(channels, size, self.options)

    def to_json(self) -> dict[str, OptionValue]:
        """Return `{"type": ..., **options}`, with the hash of user-defined code as `code`."""
        return {"type": self.type, **({"code": self.code} if self.code else {}), **self.options}

    @classmethod
    def from_json(cls, value: object) -> "Spec":
        """Create a spec from the result of `to_json`, or from the name of a type. Runs no user-defined code.

        Raises:
            InputError: `value` is neither, or names an unknown type or option.
        """
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or "type" not in value:
            raise InputError(f'an attention is a name or {{"type": name, ...options}}; got {value!r}')
        code = value.get("code", "")
        if not isinstance(code, str):
            raise InputError(f"code of attention {value['type']!r} must be text; got {code!r}")
        return cls(value["type"], {k: v for k, v in value.items() if k not in RESERVED}, code)

    @classmethod
    def parse(cls, text: str, source: str) -> "Spec":
        """Parse `TYPE` or `TYPE:option=value,option=value`.

        Args:
            text: The text.
            source: What the user wrote it for, for messages: `--place stage3.block2`.

        Raises:
            InputError: The text has another form, or names an unknown type or option.
        """
        name, colon, options = text.rpartition(":")
        if not colon or ("=" not in options and name not in ATTENTIONS):
            name, options = text, ""
        values = {}
        for option in filter(None, options.split(",")):
            key, equals, value = option.partition("=")
            if not equals:
                raise InputError(f"{source} takes TYPE or TYPE:option=value,option=value; got {text!r}")
            values[key] = parse_option(value)
        return cls(name, values)

    def __str__(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def _find(self) -> "Attention":
        from attention.attention_type import find_attention

        if self.code and loading.hash_code(self.type) != self.code:
            raise InputError(f"the code of {self.type} has changed; restore it, or start a new search")
        attention = find_attention(self.type)
        check_options(self.name, self.options, attention.options)
        return attention


def parse_option(text: str) -> OptionValue:
    """Parse a number, truth value or None. Return any other text unchanged."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool | None) else text


MAX_LISTED = 3  # modules in the short name of a placement
Placement = Mapping[str, Spec]  # Keys are the names of sites.


def as_placement(value: object) -> dict[str, Spec]:
    """Convert a mapping of specs, types' names or JSON objects to a placement, or raise InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"a placement is a mapping such as {{'stage3.block2': 'ssa'}}; got {value!r}")
    return {site: spec if isinstance(spec, Spec) else Spec.from_json(spec) for site, spec in value.items()}


def name_modules(placement: Placement, *, options: bool = True) -> str:
    """Return the short name of a placement, with `options` as in `decomposed(heads=8) @ stage1.block2`."""
    modules = list(placement.items())
    listed = modules if len(modules) <= MAX_LISTED else modules[: MAX_LISTED - 1]
    sites: dict[str, list[str]] = {}
    for site, spec in listed:
        sites.setdefault(str(spec) if options else spec.name, []).append(site)
    names = [f"{module} @ {', '.join(group)}" for module, group in sites.items()]
    if len(listed) < len(modules):
        names.append(f"{len(modules) - len(listed)} more")
    return " + ".join(names) or "plain"
