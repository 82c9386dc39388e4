"""Count inputs that were left out, turned, rescaled or duplicated while a dataset was read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from automl.base.units import pluralize

EXAMPLES = 3  # names that are listed for each kind


@dataclass(frozen=True)
class Tally:
    """Counts and the first few names, by kind.

    A kind follows its count in a sentence: "4 that cannot be decoded".

    Attributes:
        left_out: inputs that are not used.
        kept: inputs that are used, but changed or duplicated.
    """

    left_out: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    kept: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def leave_out(self, kind: str, names: Iterable[str]) -> None:
        """Count files or images that are not used."""
        _add(self.left_out, kind, list(names))

    def keep(self, kind: str, names: Iterable[str]) -> None:
        """Count files or images that are used."""
        _add(self.kept, kind, list(names))

    def keep_copies(self, kind: str, inputs: Iterable[tuple[str, bytes]]) -> None:
        """Count inputs whose content an earlier one had, from names and hashes."""
        first: dict[bytes, str] = {}
        self.keep(kind, [name for name, content in inputs if first.setdefault(content, name) != name])

    def __add__(self, other: "Tally") -> "Tally":
        total = Tally()
        for tally in (self, other):
            for into, kinds in ((total.left_out, tally.left_out), (total.kept, tally.kept)):
                for kind, (count, names) in kinds.items():
                    _add(into, kind, names, count)
        return total

    def __bool__(self) -> bool:
        return bool(self.left_out or self.kept)

    def __str__(self) -> str:
        """Return a line for each kind: `left out    4 that cannot be decoded: a.jpg, ...`."""
        return "\n".join(
            f"{'' if i else name:11} {text}"
            for name, kinds in (("left out", self.left_out), ("inputs", self.kept))
            for i, text in enumerate(_text(kinds))
        )


def join_examples(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first few names, and dots if there are more."""
    return separator.join([*names[:EXAMPLES], *(["..."] if len(names) > EXAMPLES else [])])


def _add(
    kinds: dict[str, tuple[int, list[str]]], kind: str, names: list[str], count: int | None = None
) -> None:
    old, examples = kinds.get(kind, (0, []))
    count = len(names) if count is None else count
    if count:
        kinds[kind] = (old + count, (examples + names)[:EXAMPLES])


def _text(kinds: Mapping[str, tuple[int, list[str]]]) -> Iterable[str]:
    for kind, (count, names) in kinds.items():
        yield f"{pluralize(count, kind)}: {', '.join(names)}{', ...' if count > len(names) else ''}"
